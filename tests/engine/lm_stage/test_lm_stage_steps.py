"""Several decode steps in one launch: ids are those of single steps, and arrive together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, repeat

import pytest

from tests.engine.lm_stage.lm_talk import EOS, FILL, Ids, Says, begin, collect, finish, request, rows, start
from vivavoce.engine.lm_stage import DecodeRun, LMStage, Sampled


@pytest.fixture
def counting(models):
    """A stage whose slots say 0, 1, 2 … until their run's forced end."""
    return LMStage(models, slots=4, capacity=64, chooser=Says())


def opened(stage: LMStage, forced_at: int) -> int:
    return start(stage, DecodeRun(rows(3), (), forced_at, EOS))


def spoken(models, steps: Iterator[int], ahead: int = 0) -> Ids:
    """What five requests say, with so many steps in each launch; their ends lie anywhere in one."""
    stage = LMStage(models, slots=5, capacity=300)
    begin(stage, models, [request(seed) for seed in range(5)])
    return finish(stage, steps, ahead)


@pytest.fixture(scope="module")
def one_by_one(models):
    return spoken(models, repeat(1))


def any_steps() -> Iterator[int]:
    rng = random.Random(0)
    return (rng.choice([1, 2, 4]) for _ in count())


@pytest.mark.parametrize(
    ("steps", "ahead"),
    [(1, 2), (1, 7), *((steps, ahead) for steps in (2, 4, 7) for ahead in (0, 2)), (None, 1)],
)
def test_ids_do_not_depend_on_the_steps_of_a_launch_nor_on_when_they_are_collected(models, one_by_one, steps, ahead):
    assert steps in (1, None) or len({len(ids) % steps for ids in one_by_one.values()}) > 1
    assert spoken(models, repeat(steps) if steps else any_steps(), ahead) == one_by_one


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
    ids: Ids = {}
    collect(counting, ids)
    assert ids == {new: [*range(5)], kept: [*range(13)]}


def test_a_slot_goes_on_while_a_launch_from_before_its_end_is_under_way(counting):
    """A later launch knows nothing yet of the end that an earlier one brought."""
    slot, other = start(counting, DecodeRun(rows(3), (), 2, FILL)), opened(counting, 40)
    counting.decode(4)
    counting.decode(4)
    late = counting._launches.pop()  # still on the device
    (got,) = [one for one in counting.collect(wait=True) if one.slot == slot and one.ended]
    assert got.ids == (1, FILL)
    counting._launches.append(late)
    start(counting, DecodeRun(rows(3), (), 3, EOS), slot)
    assert [one.slot for one in counting.collect(wait=True)] == [other, slot]
    counting.decode(4)
    (rest,) = [one for one in counting.collect(wait=True) if one.slot == slot]
    assert rest == Sampled(slot, (4, 5, EOS), True)  # counts go on, control ids included


def test_the_host_s_memory_is_used_again_but_not_what_was_given_out(counting):
    slots = [opened(counting, 40), opened(counting, 40)]
    given = counting.collect(wait=True)
    for _ in range(4):
        counting.decode(2)
        given += counting.collect(wait=True)
    assert len(counting._spare) == 2
    assert [one.ids for one in given if one.slot == slots[1]] == [(0,), (1, 2), (3, 4), (5, 6), (7, 8)]
