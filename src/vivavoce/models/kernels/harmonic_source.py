"""The harmonic source of packed rows: what `models.vocoder.source` computes, rounding for rounding, in two kernels.

Phases are sums of hundreds of thousands of radians, so the order of float32 operations can be heard; the kernels keep
it, and products are not fused with sums. Noise is `counter_noise`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.counter_noise import Stream
from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.counter_hash import normal, stream_offset
from vivavoce.models.kernels.row_table import (
    CARRIED,
    COUNTER,
    FRAMES,
    KEPT_PHASE,
    KNOWN,
    ORIGIN,
    ROW_WIDTH,
    SEED,
    START,
)

_SOURCE = tl.constexpr(stream_offset(Stream.SOURCE))
_TWO_PI = tl.constexpr(6.283185307179586)


@dataclass(frozen=True)
class SourceShape:
    """What of a vocoder's configuration the source depends on."""

    harmonics: int
    """The fundamental included."""
    samples: int
    """Per frame."""
    sample_rate: int
    voiced_threshold_hz: float
    sine_amplitude: float
    noise_std: float


@triton.jit
def _cycles(
    pitch, rows, carried, cycles, ends,
    sample_rate,
    PITCH_WIDTH: tl.constexpr, HARMONICS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    table = rows + row * ROW_WIDTH
    start, frames, origin = tl.load(table + START), tl.load(table + FRAMES), tl.load(table + ORIGIN)
    kept = tl.load(table + KEPT_PHASE)
    lane = tl.arange(0, LANES)
    runs_on = lane < tl.load(table + CARRIED).to(tl.int32) * HARMONICS
    begun = tl.load(carried + row * LANES + lane, mask=runs_on, other=0.0)[None, :]
    multiple = (lane + 1).to(tl.float32)[None, :]
    summed = tl.zeros((1, LANES), tl.float64)
    for block in range(0, tl.cdiv(frames - origin, BLOCK)):
        frame = origin + block * BLOCK + tl.arange(0, BLOCK)
        there = frame < frames
        f0 = tl.abs(tl.load(pitch + (start + frame) * PITCH_WIDTH, mask=there, other=0.0))[:, None]
        turn = tl.div_rn(f0 * multiple, sample_rate)
        # In float64 the order of a sum does not matter: it rounds to float32 as any other.
        turn = (turn - tl.floor(turn)).to(tl.float64)
        total = begun + (summed + tl.cumsum(turn, axis=0)).to(tl.float32)
        summed += tl.sum(turn, axis=0)[None, :]
        tl.store(cycles + ((start + frame) * LANES)[:, None] + lane[None, :], total, mask=there[:, None])
        end = ends + row * LANES + lane[None, :] + tl.zeros((BLOCK, LANES), tl.int32)
        tl.store(end, total - tl.floor(total), mask=(frame == kept)[:, None] & there[:, None])


@triton.jit
def _phase(cycles, carried, index, runs_on, first, lane, row, LANES: tl.constexpr, SAMPLES: tl.constexpr):
    # With a carried phase the frames' cycles are counted from 1.
    own = cycles + (first + index - runs_on)[:, None] * LANES + lane[None, :]
    own_there = ((index >= runs_on)[:, None]) & (lane >= 0)[None, :]
    taken = tl.load(own, mask=own_there, other=0.0)
    before = tl.load(carried + row * LANES + lane)[None, :]
    return (tl.where(own_there, taken, before) * _TWO_PI) * SAMPLES


@triton.jit
def _excite(
    pitch, tags, row_of, rows, carried, cycles, merge, source,
    scale, threshold, amplitude, noise_std, unvoiced_std, bias, norm,
    PITCH_WIDTH: tl.constexpr, LANES: tl.constexpr, SAMPLES: tl.constexpr, BLOCK: tl.constexpr, NOISE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    sample = tl.arange(0, BLOCK)
    own = sample < SAMPLES
    tag = tl.load(tags + place)
    if (tag == 1) | (tag == 3):
        row = tl.load(row_of + place)
        table = rows + row * ROW_WIDTH
        start, frames, origin = tl.load(table + START), tl.load(table + FRAMES), tl.load(table + ORIGIN)
        runs_on = tl.load(table + CARRIED).to(tl.int32)
        frame = (place - start).to(tl.int32)
        if frame >= tl.load(table + KNOWN):
            lane = tl.arange(0, LANES)
            # Where linear interpolation between frames' centres takes its two values from.
            drawn = (frame - origin.to(tl.int32) + runs_on) * SAMPLES + sample
            at = tl.maximum(scale * (drawn.to(tl.float32) + 0.5) - 0.5, 0.0)
            left = tl.floor(at).to(tl.int32)
            right = tl.minimum(left + 1, (frames - origin).to(tl.int32) + runs_on - 1)
            weight = (at - left.to(tl.float32))[:, None]
            first = (start + origin).to(tl.int32)
            low = _phase(cycles, carried, left, runs_on, first, lane, row, LANES, SAMPLES)
            high = _phase(cycles, carried, right, runs_on, first, lane, row, LANES, SAMPLES)
            wave = tl.sin((1.0 - weight) * low + weight * high)
            merged = tl.sum(wave * tl.load(merge + lane)[None, :], axis=1)
            voiced = tl.abs(tl.load(pitch + place * PITCH_WIDTH)) > threshold
            signal = tl.where(voiced, amplitude * merged, 0.0) + bias
            if NOISE:
                counter = (tl.load(table + COUNTER) + frame) * SAMPLES + sample.to(tl.int64)
                strength = tl.where(voiced, noise_std, unvoiced_std)
                seed = tl.load(table + SEED) + tl.zeros((BLOCK,), tl.int64)
                signal += strength * (normal(seed, counter, _SOURCE) * norm)
            # tanh; the exponential cannot overflow this way round.
            shrunk = tl.exp(-2.0 * tl.abs(signal))
            bent = (1.0 - shrunk) / (1.0 + shrunk)
            tl.store(source + place * SAMPLES + sample, tl.where(signal < 0, -bent, bent), mask=own)
    else:
        tl.store(source + place * SAMPLES + sample, tl.zeros((BLOCK,), tl.float32), mask=own)


def lanes(harmonics: int) -> int:
    """Numbers per frame in which that many harmonics' phases are kept."""
    return triton.next_power_of_2(harmonics)


def make_source(
    pitch: Tensor,
    tags: Tensor,
    row_of: Tensor,
    rows: Tensor,
    carried: Tensor,
    merge: Tensor,
    bias: float,
    norm: float,
    source: Tensor,
    shape: SourceShape,
    *,
    noise: bool,
) -> Tensor:
    """Write the excitation of every frame whose source is not known yet.

    Args:
        pitch: [frames, any] float32, the pitch ± in the first column.
        tags, row_of: [frames] int32, as in `snake_conv.convolve`, and the row of each frame inside.
        rows: [rows, ROW_WIDTH] int64, see `row_table`.
        carried: [rows, lanes] float32 cycles, of rows that run on.
        merge: [lanes] float32, zero past the harmonics; bias, norm: of the layer that merges them.
        source: [frames · samples] float32, written in place; zero outside of the rows.
        noise: whether there is noise.

    Returns:
        [rows, lanes] float32: the phase at each row's `kept_phase`, in cycles; what rows of no frames have is nothing.
    """
    frames, width = len(tags), lanes(shape.harmonics)
    cycles, ends = pitch.new_empty(frames, width), torch.zeros_like(carried)
    # Neither a fused product nor an approximate quotient: the sums' rounding is part of the result.
    launched(_cycles, (len(rows),))(
        pitch, rows, carried, cycles, ends, float(shape.sample_rate),
        PITCH_WIDTH=pitch.shape[1], HARMONICS=shape.harmonics, LANES=width, BLOCK=32, enable_fp_fusion=False,
    )  # fmt: skip
    launched(_excite, (frames,))(
        pitch, tags, row_of, rows, carried, cycles, merge, source,
        1.0 / shape.samples, shape.voiced_threshold_hz, shape.sine_amplitude, shape.noise_std,
        shape.sine_amplitude / 3, bias, norm,
        PITCH_WIDTH=pitch.shape[1], LANES=width, SAMPLES=shape.samples, BLOCK=triton.next_power_of_2(shape.samples),
        NOISE=noise, enable_fp_fusion=False, num_warps=8,
    )  # fmt: skip
    return ends
