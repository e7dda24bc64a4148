"""Copies between the pool of the streams' tails and the vocoder's packed frames, in one launch for each direction."""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.vocoder_source import (
    AFTER,
    BEFORE,
    CARRIED,
    CONTEXT,
    END,
    FADE,
    FADED,
    FIRST,
    FRESH,
    HELD,
    KNOWN,
    OUT,
    ROW_WIDTH,
    RULE,
    START,
    TAIL,
    TAIL_KNOWN,
)


class Pool(NamedTuple):
    """The streams' tails, all float32. mel: [rows, frames, bins]; source: [rows, frames, samples per frame]; held:
    like `source`, the samples that are held back for the next crossfade; phase: [rows, lanes], in cycles.
    """

    mel: Tensor
    source: Tensor
    held: Tensor
    phase: Tensor


@triton.jit
def _lay_in(
    fresh, tags, row_of, rows, pool_mel, pool_source, pool_phase, mel, source, carried,
    BINS: tl.constexpr, BIN_BLOCK: tl.constexpr, SAMPLES: tl.constexpr, SAMPLE_BLOCK: tl.constexpr,
    LANES: tl.constexpr, MEL_FRAMES: tl.constexpr, SOURCE_FRAMES: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    bins, tag = tl.arange(0, BIN_BLOCK), tl.load(tags + place)
    value = tl.zeros((BIN_BLOCK,), tl.float32)
    if (tag == 1) | (tag == 3):
        row = tl.load(row_of + place)
        table = rows + row * ROW_WIDTH
        frame, context, before = place - tl.load(table + START), tl.load(table + CONTEXT), tl.load(table + BEFORE)
        own = bins < BINS
        if frame < context:
            value = tl.load(pool_mel + (before * MEL_FRAMES + frame) * BINS + bins, mask=own, other=0.0)
        else:
            at = tl.load(table + FRESH) + frame - context
            value = tl.load(fresh + at * BINS + bins, mask=own, other=0.0).to(tl.float32)
        if frame < tl.load(table + KNOWN):
            sample = tl.arange(0, SAMPLE_BLOCK)
            kept = pool_source + (before * SOURCE_FRAMES + frame) * SAMPLES + sample
            known = tl.load(kept, mask=sample < SAMPLES)
            tl.store(source + place * SAMPLES + sample, known, mask=sample < SAMPLES)
        if (tag == 3) & (tl.load(table + CARRIED) > 0):
            lane = tl.arange(0, LANES)
            tl.store(carried + row * LANES + lane, tl.load(pool_phase + before * LANES + lane))
    tl.store(mel + place * BINS + bins, value, mask=bins < BINS)


@triton.jit
def _lay_out(
    wave, mel, source, phases, tags, row_of, rows, windows, pool_mel, pool_source, pool_held, pool_phase, out,
    BINS: tl.constexpr, BIN_BLOCK: tl.constexpr, SAMPLES: tl.constexpr, SAMPLE_BLOCK: tl.constexpr,
    LANES: tl.constexpr, MEL_FRAMES: tl.constexpr, SOURCE_FRAMES: tl.constexpr, HELD_FRAMES: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    tag = tl.load(tags + place)
    if (tag == 1) | (tag == 3):
        row = tl.load(row_of + place)
        table = rows + row * ROW_WIDTH
        frame, fade = place - tl.load(table + START), tl.load(table + FADE)
        sample = tl.arange(0, SAMPLE_BLOCK)
        own = sample < SAMPLES
        value = tl.load(wave + place * SAMPLES + sample, mask=own, other=0.0)
        given = frame - tl.load(table + FIRST)
        if (given >= 0) & (given < fade * tl.load(table + FADED)):
            window = windows + (tl.load(table + RULE) * 2 * HELD_FRAMES + given) * SAMPLES + sample
            held = pool_held + (tl.load(table + BEFORE) * HELD_FRAMES + given) * SAMPLES + sample
            rising, falling = tl.load(window, mask=own), tl.load(window + HELD_FRAMES * SAMPLES, mask=own)
            value = value * rising + tl.load(held, mask=own) * falling
        if (given >= 0) & (frame < tl.load(table + END)):
            tl.store(out + (tl.load(table + OUT) + given) * SAMPLES + sample, value, mask=own)
        after, seen = tl.load(table + AFTER), frame - tl.load(table + TAIL)
        if (after >= 0) & (seen >= 0):
            bins = tl.arange(0, BIN_BLOCK)
            there = bins < BINS
            again = tl.load(mel + place * BINS + bins, mask=there)
            tl.store(pool_mel + (after * MEL_FRAMES + seen) * BINS + bins, again, mask=there)
            if seen < tl.load(table + TAIL_KNOWN):
                kept = tl.load(source + place * SAMPLES + sample, mask=own)
                tl.store(pool_source + (after * SOURCE_FRAMES + seen) * SAMPLES + sample, kept, mask=own)
            back = frame - tl.load(table + HELD)
            if (back >= 0) & (back < fade):
                tl.store(pool_held + (after * HELD_FRAMES + back) * SAMPLES + sample, value, mask=own)
            if seen == 0:
                lane = tl.arange(0, LANES)
                tl.store(pool_phase + after * LANES + lane, tl.load(phases + row * LANES + lane))


def _sizes(mel: Tensor, pool: Pool) -> dict[str, int]:
    bins, samples = mel.shape[1], pool.source.shape[2]
    return {
        "BINS": bins,
        "BIN_BLOCK": triton.next_power_of_2(bins),
        "SAMPLES": samples,
        "SAMPLE_BLOCK": triton.next_power_of_2(samples),
        "LANES": pool.phase.shape[1],
        "MEL_FRAMES": pool.mel.shape[1],
        "SOURCE_FRAMES": pool.source.shape[1],
    }


def lay_in(
    fresh: Tensor, tags: Tensor, row_of: Tensor, rows: Tensor, pool: Pool, mel: Tensor, source: Tensor, carried: Tensor
) -> None:
    """Copy the pool's tails and the new frames into the batch. fresh: [any, bins], all rows' new frames, in any dtype.
    tags, row_of, rows: as in `make_source`. This writes mel [frames, bins] float32, with zeros outside the rows;
    source [frames · samples] float32, only in known frames; carried [rows, lanes] float32, only for continued rows.
    """
    launched(_lay_in, (len(tags),))(
        fresh, tags, row_of, rows, pool.mel, pool.source, pool.phase, mel, source, carried, **_sizes(mel, pool)
    )


def lay_out(
    wave: Tensor,
    mel: Tensor,
    source: Tensor,
    phases: Tensor,
    tags: Tensor,
    row_of: Tensor,
    rows: Tensor,
    windows: Tensor,
    pool: Pool,
    out: Tensor,
) -> None:
    """Crossfade each row with the samples that its previous piece held back, output its frames, and store its new
    tails. wave, source: [frames · samples] float32. mel: [frames, bins] float32. phases: [rows, lanes] float32, from
    `make_source`. windows: [rules, 2, held frames · samples] float32, rising, then falling. pool: written at each row's
    `after`, where no other row may read or write. out: [output frames · samples] float32, written.
    """
    launched(_lay_out, (len(tags),))(
        wave, mel, source, phases, tags, row_of, rows, windows, *pool, out,
        **_sizes(mel, pool), HELD_FRAMES=pool.held.shape[1],
    )  # fmt: skip
