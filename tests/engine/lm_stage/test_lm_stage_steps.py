"""Several decode steps in one launch: ids are those of single steps, and arrive together."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine.lm_stage.test_lm_stage_rules import EOS, FILL, Says, rows
from tests.engine.lm_stage.test_lm_stage_tokens import begin, request
from vivavoce.engine.lm_stage import LMStage, Run, Sampled
from vivavoce.engine.lm_stage.readback import Readback
from vivavoce.engine.lm_stage.slots import SlotTable
from vivavoce.engine.request import SamplingParams


@pytest.fixture
def counting(models):
    """A stage whose slots say 0, 1, 2 … until their run's forced end."""
    with torch.inference_mode():
        yield LMStage(models, slots=4, capacity=64, chooser=Says(10**6, EOS))


def start(stage: LMStage, slot: int, forced_at: int, control: int = EOS) -> None:
    stage.feed(slot, Run(rows(3), (), forced_at, control))
    stage.prefill([slot])


def opened(stage: LMStage, forced_at: int) -> int:
    slot = stage.open(SamplingParams(), 0)
    start(stage, slot, forced_at)
    return slot


@torch.inference_mode()
def spoken(models, steps: list[int], ahead: int) -> dict[int, list[int]]:
    """What five requests say, with so many steps in each launch; their ends lie anywhere in one."""
    stage, ids = LMStage(models, slots=5, capacity=300), {}
    begin(stage, models, [request(seed) for seed in range(5)])
    sizes = iter(steps)
    while stage.decoding or stage.in_flight:
        stage.decode(next(sizes))
        while stage.in_flight > (ahead if stage.decoding else 0):
            for one in stage.collect(wait=True):
                ids.setdefault(one.slot, []).extend(one.ids)
    return ids


@pytest.fixture(scope="module")
def one_by_one(models):
    return spoken(models, [1] * 500, 0)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("steps", [2, 4, 7])
def test_ids_do_not_depend_on_the_steps_of_a_launch(models, one_by_one, steps, ahead):
    assert len({len(ids) % steps for ids in one_by_one.values()}) > 1
    assert spoken(models, [steps] * 500, ahead) == one_by_one


def test_launches_of_any_steps_may_follow_one_another(models, one_by_one):
    rng = random.Random(0)
    assert spoken(models, [rng.choice([1, 2, 4]) for _ in range(500)], 1) == one_by_one


def test_ids_of_a_launch_arrive_together(counting):
    slot = opened(counting, 20)
    counting.decode(4)
    assert (counting.in_flight, counting.steps_in_flight) == (2, 4)  # a prefill is no step
    assert counting.collect(wait=True) == [Sampled(slot, (0,), False), Sampled(slot, (1, 2, 3, 4), False)]
    assert (counting.in_flight, counting.steps_in_flight) == (0, 0)


def test_a_run_that_ends_within_a_launch_leaves_its_neighbours_alone(counting):
    short, long = opened(counting, 3), opened(counting, 30)
    counting.decode(5)
    *_, first, second = counting.collect(wait=True)
    assert first == Sampled(short, (1, 2, EOS), True)
    assert second == Sampled(long, (1, 2, 3, 4, 5), False)


def test_no_step_is_launched_past_the_last_end(counting):
    opened(counting, 2)
    counting.decode(8)
    assert counting.decoding == 0
    launches = counting.in_flight
    counting.decode(8)
    assert counting.in_flight == launches


def test_a_slot_that_is_closed_within_a_launch_is_another_s_afterwards(counting):
    old, kept = opened(counting, 30), opened(counting, 30)
    counting.decode(4)
    counting.decode(4)
    counting.close(old)
    new = opened(counting, 6)
    assert new == old
    counting.decode(4)
    ids: dict[int, list[int]] = {new: [], kept: []}
    for one in counting.collect(wait=True):
        ids[one.slot] += one.ids
    assert ids == {new: [*range(5)], kept: [*range(13)]}


def test_a_slot_goes_on_while_a_launch_from_before_its_end_is_under_way(models):
    """A later launch knows nothing yet of the end that an earlier one brought."""
    held: list[bool] = []

    class Late(Readback):
        def receive(self, wait):
            kept = [self._launches.pop() for _ in held[: len(self._launches)]]
            arrived = super().receive(wait)
            self._launches.extend(reversed(kept))
            return arrived

    with torch.inference_mode():
        stage = LMStage(models, slots=2, capacity=64, chooser=Says(10**6, EOS))
        stage._readback = Late(2, torch.device("cpu"))
        slot, other = stage.open(SamplingParams(), 0), opened(stage, 40)
        start(stage, slot, 2, FILL)
        stage.decode(4)
        stage.decode(4)
        held.append(True)  # the last launch is still on the device
        (got,) = [one for one in stage.collect(wait=True) if one.slot == slot and one.ended]
        assert got.ids == (1, FILL)
        start(stage, slot, 3, EOS)
        held.clear()
        assert [one.slot for one in stage.collect(wait=True)] == [other, slot]
        stage.decode(4)
        (rest,) = [one for one in stage.collect(wait=True) if one.slot == slot]
        assert rest == Sampled(slot, (4, 5, EOS), True)  # counts go on, control ids included


def test_the_host_s_memory_is_used_again_but_not_what_was_given_out():
    table, readback = SlotTable(3), Readback(3, torch.device("cpu"))
    slots = [table.open(0, None) for _ in range(2)]  # type: ignore[arg-type]
    given = []
    for turn in range(4):
        steps = [torch.tensor([turn, step, -1]) for step in range(2)]
        readback.send(iter(steps), 2, slots, [2, 0], decode=True)
        given += readback.receive(wait=True)
    assert len(readback._spare) == 1
    assert [one.ids.tolist() for one in given] == [[[-1, turn], [-1, turn]] for turn in range(4)]
