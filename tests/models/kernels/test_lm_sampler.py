"""The sampling kernels take what the plain path takes, and leave a slot's state as it does."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

pytest.importorskip("triton")

from vivavoce.engine.lm_stage.choosing import repetition_aware
from vivavoce.engine.lm_stage.state import SlotRows
from vivavoce.models.kernels.lm_sampler import advance_slots
from vivavoce.models.lm.slot_numbers import IDLE, Field

CONTROLS, WINDOW, SLOTS = 3, 20, 8
NUMBERS = {
    Field.RUNNING: (0, 1, 1, 1, 1),
    Field.POSITION: range(300),
    Field.COUNT: (0, 1, 3, 19, 20, 21, 400),
    Field.RUN_COUNT: range(10),
    Field.LAST: range(50),
    Field.FORCED_AT: (0, 5, 9, 100, 100, 100),
    Field.MIN_TOKENS: range(12),
    Field.SEED: range(-(2**40), 2**40),
    Field.TOP_K: (1, 2, 5, 25, 32),
    Field.WINDOW: (1, 5, 10, 20),
    Field.MAX_REPEATS: (0, 1, 1, 2, 4),
}


def states(rng: random.Random, ids: int) -> SlotRows:
    """Slots in the middle of anything; most of their past is of few ids, so that they repeat."""
    numbers = torch.zeros(SLOTS, len(Field), dtype=torch.int64)
    for slot in range(SLOTS):
        for field, values in NUMBERS.items():
            numbers[slot, field] = rng.choice(values)
        numbers[slot, Field.FORCED] = ids - rng.randrange(1, CONTROLS + 1)

    def flags() -> torch.Tensor:
        return torch.tensor([[rng.random() < 0.4 for _ in range(CONTROLS)] for _ in range(SLOTS)])

    return SlotRows(
        numbers,
        torch.tensor([rng.choice([0.0, 0.3, 0.8, 0.95, 1.0]) for _ in range(SLOTS)]),
        flags(),
        flags(),
        torch.tensor([[rng.randrange(min(ids, 12)) for _ in range(WINDOW)] for _ in range(SLOTS)]),
    )


def copied(rows: SlotRows) -> SlotRows:
    return SlotRows(*(getattr(rows, one.name).clone() for one in dataclasses.fields(rows)))


def plainly(scores: torch.Tensor, places: torch.Tensor, rows: SlotRows) -> torch.Tensor:
    """The plain path over the picked slots, whose state is put back."""
    picked = SlotRows(*(getattr(rows, one.name)[places] for one in dataclasses.fields(rows)))
    ids = picked.advance(scores.float().log_softmax(-1), repetition_aware, int(rows.column(Field.TOP_K).max()))
    for one in dataclasses.fields(rows):
        getattr(rows, one.name)[places] = getattr(picked, one.name)
    return ids


def by_kernels(scores: torch.Tensor, places: torch.Tensor, rows: SlotRows) -> torch.Tensor:
    result = torch.full((len(places),), 10**6)
    parts = (getattr(rows, one.name) for one in dataclasses.fields(rows))
    advance_slots(scores, places, *parts, result, dependent=False)
    return result


def assert_same(scores: torch.Tensor, places: torch.Tensor, rows: SlotRows) -> None:
    plain, ours = copied(rows), copied(rows)
    assert plainly(scores.clone(), places, plain).tolist() == by_kernels(scores, places, ours).tolist()
    for one in dataclasses.fields(rows):
        assert torch.equal(getattr(plain, one.name), getattr(ours, one.name)), one.name


@pytest.mark.parametrize("seed", range(24))
@torch.inference_mode()
def test_ids_and_state_are_the_plain_paths(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    ids = rng.choice([40, 300, 1000])
    scores = torch.randn(SLOTS - 2, ids, generator=generator) * rng.choice([0.1, 1.0, 4.0])
    scores[:, :12] += rng.choice([0.0, 3.0])
    places = torch.randperm(SLOTS, generator=generator)[: SLOTS - 2]
    assert_same(scores, places, states(rng, ids))


@pytest.mark.parametrize("seed", range(8))
@torch.inference_mode()
def test_equal_scores_stand_in_the_order_of_ids(seed):
    generator = torch.Generator().manual_seed(seed)
    # Half of the scores: few values, each many times, as in 16 bit.
    scores = torch.randint(-3, 4, (SLOTS, 300), generator=generator).float() / 2
    assert_same(scores, torch.arange(SLOTS), states(random.Random(seed), 300))


@torch.inference_mode()
def test_a_sum_that_meets_top_p_ends_the_nucleus():
    """0.5 + 0.3 is 0.8 when added one by one in float32: the third candidate is out, whatever is drawn."""
    rng = random.Random(0)
    rows = states(rng, 40)
    for field, value in ((Field.RUNNING, 1), (Field.FORCED_AT, 99), (Field.TOP_K, 25), (Field.MAX_REPEATS, 99)):
        rows.column(field).fill_(value)
    rows.top_p.fill_(0.8)
    scores = torch.full((SLOTS, 40), float("-inf"))
    scores[:, :5] = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).log()
    drawn = set()
    for _ in range(8):
        drawn |= set(by_kernels(scores, torch.arange(SLOTS), rows).tolist())
    assert drawn == {0, 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_scores_of_16_bits_are_read_as_they_are(dtype):
    rows = states(random.Random(3), 300)
    scores = torch.randn(SLOTS, 300, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert_same(scores, torch.arange(SLOTS), rows)


@torch.inference_mode()
def test_the_fallback_takes_what_is_not_forbidden():
    """One id but the candidate has weight: where the candidate stands too often, it comes."""
    rows = states(random.Random(1), 40)
    for field, value in ((Field.RUNNING, 1), (Field.FORCED_AT, 99), (Field.MAX_REPEATS, 0), (Field.TOP_K, 1)):
        rows.column(field).fill_(value)
    rows.forbidden.fill_(True)
    scores = torch.full((SLOTS, 40), -200.0)
    scores[:, 7], scores[:, 22], scores[:, 39] = 9.0, -60.0, 50.0
    assert by_kernels(scores, torch.arange(SLOTS), rows).tolist() == [22] * SLOTS


@torch.inference_mode()
def test_an_idle_slot_stays_as_it_is_whatever_its_scores_are():
    rows = states(random.Random(2), 40)
    rows.column(Field.RUNNING).zero_()
    before = copied(rows)
    scores = torch.full((SLOTS, 40), float("nan"))
    assert by_kernels(scores, torch.arange(SLOTS), rows).tolist() == [IDLE] * SLOTS
    assert all(torch.equal(getattr(before, one.name), getattr(rows, one.name)) for one in dataclasses.fields(rows))
