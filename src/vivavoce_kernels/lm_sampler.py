"""Repetition-aware sampling, and the update of the slots' state, in one kernel.

The rules and the state are those of the code without kernels (`models/randomness.py`, `engine/lm_stage/slots.py`). A
program holds a slot's scores in registers. In each round it takes the best score, until the nucleus is complete.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched, stream_offset, uniform
from vivavoce_kernels.layouts import IDLE, Field, NoiseStream
from vivavoce_kernels.lm_rows import launch_options, wait_for_inputs

MOST_CANDIDATES = 128  # upper limit of a request's top_k

WARPS = 8  # warps per program; their registers hold a slot's scores

_NUCLEUS = tl.constexpr(stream_offset(NoiseStream.NUCLEUS))
_FALLBACK = tl.constexpr(stream_offset(NoiseStream.FALLBACK))
_IDLE = tl.constexpr(IDLE)
_COLUMNS = tl.constexpr(len(Field))
(
    _RUNNING, _POSITION, _COUNT, _RUN_COUNT, _LAST, _FORCED_AT, _FORCED, _MIN_TOKENS, _SEED, _TOP_K, _WINDOW,
    _MAX_REPEATS, _TOP_P, _ADAPTER,
) = (tl.constexpr(int(field)) for field in Field)  # fmt: skip


@triton.jit
def _masked_scores(scores, i, numbers, forbidden, early, ids: tl.constexpr, controls: tl.constexpr):
    z = tl.load(scores + i, i < ids, float("-inf")).to(tl.float32)
    control = i - (ids - controls)
    is_control = (control >= 0) & (i < ids)
    is_early = tl.load(numbers + _RUN_COUNT) < tl.load(numbers + _MIN_TOKENS)
    barred = tl.load(forbidden + control, is_control, 0) != 0
    barred |= (tl.load(early + control, is_control, 0) != 0) & is_early
    return tl.where(barred, float("-inf"), z)


@triton.jit
def _drawn_from_all(
    scores, numbers, forbidden, early, but, peak, mark, ids: tl.constexpr, controls: tl.constexpr, all_ids: tl.constexpr
):  # fmt: skip
    """Sample from all ids except `but`. mark: a uniform random number in (0, 1). Sums are float64, so that the order in
    which thousands of weights are added cannot change the sampled id.
    """
    total = tl.full([], 0.0, tl.float64)
    drawn, last = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    block: tl.constexpr = min(all_ids, 2048)
    for start in range(0, all_ids, block):
        i = start + tl.arange(0, block)
        z = _masked_scores(scores, i, numbers, forbidden, early, ids, controls)
        total += tl.sum(tl.where(i == but, 0.0, tl.exp(z - peak)).to(tl.float64), 0)
    target = total * mark.to(tl.float64)
    before = tl.full([], 0.0, tl.float64)
    for start in range(0, all_ids, block):
        i = start + tl.arange(0, block)
        z = _masked_scores(scores, i, numbers, forbidden, early, ids, controls)
        weights = tl.where(i == but, 0.0, tl.exp(z - peak))
        upto = before + tl.cumsum(weights.to(tl.float64), 0)
        drawn += tl.sum((upto <= target).to(tl.int32), 0)
        last = tl.maximum(last, tl.max(tl.where(weights > 0, i, 0), 0))
        before = tl.max(upto, 0)
    return tl.minimum(drawn, last)


@triton.jit
def _advance_kernel(
    scores, places, numbers, top_p, forbidden, early, history, result,
    ids: tl.constexpr, controls: tl.constexpr, all_ids: tl.constexpr, window: tl.constexpr, ages: tl.constexpr,
    most: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    own = numbers + place * _COLUMNS
    if dependent:
        wait_for_inputs()
    if tl.load(own + _RUNNING) == 0:
        tl.store(result + row, _IDLE)
    else:
        count, run_count = tl.load(own + _COUNT), tl.load(own + _RUN_COUNT)
        position, last = tl.load(own + _POSITION), tl.load(own + _LAST)
        seed = tl.load(own + _SEED)
        bound, most_wanted = tl.load(top_p + place), tl.load(own + _TOP_K)
        barred, barred_early = forbidden + place * controls, early + place * controls

        # Nucleus: take the most probable remaining id while the sum of the probabilities taken so far is below top_p.
        i = tl.arange(0, all_ids)
        z = _masked_scores(scores + row * ids, i, own, barred, barred_early, ids, controls)
        peak = tl.max(z, 0)
        whole = tl.sum(tl.exp(z - peak), 0)
        rank = tl.arange(0, most)
        candidates, upto = tl.zeros([most], tl.int32), tl.zeros([most], tl.float32)
        size, weighty, before = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float32)
        wanted = size == 0
        while wanted:
            best, candidate = tl.max(z, 0, return_indices=True, return_indices_tie_break_left=True)
            z = tl.where(i == candidate, float("-inf"), z)
            probability = tl.exp(best - peak) / whole
            before += probability
            candidates = tl.where(rank == size, candidate, candidates)
            upto = tl.where(rank == size, before, upto)
            size += 1
            weighty += (probability > 0).to(tl.int32)
            wanted = (before < bound) & (size < most_wanted)
        target = uniform(seed, count, _NUCLEUS) * before
        index = tl.sum(((rank < size) & (upto <= target)).to(tl.int32), 0)
        # Rounding can make the target equal to the total. Then the last id with a probability above 0 is sampled.
        index = tl.minimum(index, weighty - 1)
        chosen = tl.sum(tl.where(rank == index, candidates, 0), 0)

        # Count the chosen id among the slot's latest ids. The newest id is in the last column.
        column = tl.arange(0, ages)
        past = tl.load(history + place * window + column, column < window, _IDLE)
        reach = tl.minimum(tl.load(own + _WINDOW), count)
        seen = (past == chosen) & (window - column <= reach) & (column < window)
        if tl.sum(seen.to(tl.int32), 0) >= tl.load(own + _MAX_REPEATS):
            mark = uniform(seed, count, _FALLBACK)
            chosen = _drawn_from_all(
                scores + row * ids, own, barred, barred_early, chosen, peak, mark, ids, controls, all_ids
            )

        is_forced = run_count >= tl.load(own + _FORCED_AT)
        taken = tl.where(is_forced, tl.load(own + _FORCED), chosen.to(tl.int64))
        is_speech = taken < ids - controls
        newer = tl.load(history + place * window + column + 1, column + 1 < window, 0)
        newer = tl.where(column + 1 == window, taken, newer)
        # Barrier: the stores below overwrite values that other threads of this program load above.
        tl.debug_barrier()
        tl.store(history + place * window + column, newer, column < window)
        tl.store(own + _POSITION, position + 1)
        tl.store(own + _COUNT, count + 1)
        tl.store(own + _RUN_COUNT, run_count + 1)
        tl.store(own + _LAST, tl.where(is_speech, taken, last))
        tl.store(own + _RUNNING, is_speech.to(tl.int64))
        tl.store(result + row, taken)


def advance_slots(
    scores: Tensor, places: Tensor, numbers: Tensor, top_p: Tensor, forbidden: Tensor, early: Tensor,
    history: Tensor, result: Tensor, *, dependent: bool,
) -> None:  # fmt: skip
    """Sample an id for each running slot in `places`, and update the slots' state in place. scores: [n, ids], logits or
    log-probabilities of any float dtype. places: [n] int64, the slot of each row; a running slot occurs at most once.
    numbers: [slots, fields] int64 (`Field`); top_k of a running slot is at most `MOST_CANDIDATES`. top_p: [slots]
    float32. forbidden: [slots, control ids] bool, True for ids that are never sampled; control ids are the last ids.
    early: like `forbidden`, but only until the run has `Field.MIN_TOKENS` ids. history: [slots, window] int64, newest
    id last. result: [n] int64, receives the sampled id or `IDLE`.
    """
    count, ids = scores.shape
    window = history.shape[1]
    launched(_advance_kernel, (count,))(
        scores, places, numbers, top_p, forbidden.view(torch.uint8), early.view(torch.uint8), history, result,
        ids=ids, controls=forbidden.shape[1], all_ids=triton.next_power_of_2(ids), window=window,
        ages=triton.next_power_of_2(window), most=MOST_CANDIDATES, dependent=dependent, num_warps=WARPS,
        **launch_options(dependent),
    )  # fmt: skip
