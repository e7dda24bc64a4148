"""The harmonic source of packed rows, and the short-time Fourier transforms around the generator, in float32.

Two kernels compute the signal of torch's `HarmonicSource` and round like it. Phases are sums of hundreds of thousands
of radians, so another order of float32 operations would be audible: the kernels keep torch's order, without fused
multiply-add. The noise is as in `models.randomness`; the transforms are `stft` and `istft` of `models.vocoder.hift`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched, normal, stream_offset, uniform
from vivavoce_kernels.layouts import WIDTH, NoiseStream

ROW_WIDTH = tl.constexpr(WIDTH)
(
    START, FRAMES, KNOWN, ORIGIN, CARRIED, SEED, COUNTER, KEPT_PHASE, CONTEXT, FRESH, BEFORE, AFTER, TAIL, TAIL_KNOWN,
    HELD, FADE, RULE, FADED, FIRST, END, OUT,
) = (tl.constexpr(column) for column in range(WIDTH))  # fmt: skip
"""Column numbers of the table of `PackedRow`s."""

_SOURCE = tl.constexpr(stream_offset(NoiseStream.SOURCE))
_TWO_PI = tl.constexpr(6.283185307179586)


class SourceShape(NamedTuple):
    """harmonics: their number, with the fundamental; samples: per frame; stepped: whether it is a `SteppedSource`."""

    harmonics: int
    samples: int
    sample_rate: int
    voiced_threshold_hz: float
    sine_amplitude: float
    noise_std: float
    stepped: bool


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
        # The order of a float64 sum does not matter: rounded to float32, the result is the same.
        turn = (turn - tl.floor(turn)).to(tl.float64)
        total = begun + (summed + tl.cumsum(turn, axis=0)).to(tl.float32)
        summed += tl.sum(turn, axis=0)[None, :]
        tl.store(cycles + ((start + frame) * LANES)[:, None] + lane[None, :], total, mask=there[:, None])
        end = ends + row * LANES + lane[None, :] + tl.zeros((BLOCK, LANES), tl.int32)
        tl.store(end, total - tl.floor(total), mask=(frame == kept)[:, None] & there[:, None])


@triton.jit
def _phase(cycles, carried, index, runs_on, first, lane, row, LANES: tl.constexpr, SAMPLES: tl.constexpr):
    # If the phase is carried over, index 0 is the carried phase and the frames' cycles start at index 1.
    own = cycles + (first + index - runs_on)[:, None] * LANES + lane[None, :]
    own_there = ((index >= runs_on)[:, None]) & (lane >= 0)[None, :]
    taken = tl.load(own, mask=own_there, other=0.0)
    before = tl.load(carried + row * LANES + lane)[None, :]
    return (tl.where(own_there, taken, before) * _TWO_PI) * SAMPLES


@triton.jit
def _excite(
    pitch, tags, row_of, rows, carried, cycles, merge, source,
    scale, threshold, amplitude, noise_std, unvoiced_std, bias, norm,
    PITCH_WIDTH: tl.constexpr, HARMONICS: tl.constexpr, LANES: tl.constexpr, SAMPLES: tl.constexpr,
    BLOCK: tl.constexpr, NOISE: tl.constexpr, STEPPED: tl.constexpr,
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
            if STEPPED:
                wave = tl.sin(tl.load(cycles + place * LANES + lane) * _TWO_PI * SAMPLES)[None, :]
            else:
                # Linear interpolation between the centres of two frames, `left` and `right`.
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
                if STEPPED:
                    drawn = uniform(seed[:, None], counter[:, None] * HARMONICS + lane[None, :], _SOURCE)
                    signal += strength * tl.sum(drawn * tl.load(merge + lane)[None, :], axis=1)
                else:
                    signal += strength * (normal(seed, counter, _SOURCE) * norm)
            # tanh by an exponential that cannot overflow.
            shrunk = tl.exp(-2.0 * tl.abs(signal))
            bent = (1.0 - shrunk) / (1.0 + shrunk)
            tl.store(source + place * SAMPLES + sample, tl.where(signal < 0, -bent, bent), mask=own)
    else:
        tl.store(source + place * SAMPLES + sample, tl.zeros((BLOCK,), tl.float32), mask=own)


def lanes(harmonics: int) -> int:
    """Return the columns per frame in the tables of phases: the number of harmonics, rounded up to a power of two."""
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
    """Write the source signal. pitch: [frames, any] float32, signed pitch in the first column. tags, row_of: [frames]
    int32, as in `snake_conv.convolve`, and the row of each frame. rows: [rows, ROW_WIDTH] int64, see
    `layouts.PackedRow`. carried: [rows, lanes] float32, phases, in cycles, of continued rows. merge: [lanes] float32,
    weights of the layer that merges the harmonics, then zeros; norm: their Euclidean norm; bias: the layer's bias.
    source: [frames · samples] float32, written in place except for known frames; zero outside the rows  →  [rows,
    lanes] float32: the phase at each row's `kept_phase`, in cycles; undefined for rows without frames.
    """
    frames, width = len(tags), lanes(shape.harmonics)
    cycles, ends = pitch.new_empty(frames, width), torch.zeros_like(carried)
    # No fused multiply-add and no approximate division: the rounding of the sums is part of the result.
    launched(_cycles, (len(rows),))(
        pitch, rows, carried, cycles, ends, float(shape.sample_rate),
        PITCH_WIDTH=pitch.shape[1], HARMONICS=shape.harmonics, LANES=width, BLOCK=32, enable_fp_fusion=False,
    )  # fmt: skip
    launched(_excite, (frames,))(
        pitch, tags, row_of, rows, carried, cycles, merge, source,
        1.0 / shape.samples, shape.voiced_threshold_hz, shape.sine_amplitude, shape.noise_std,
        shape.sine_amplitude / 3, bias, norm,
        PITCH_WIDTH=pitch.shape[1], HARMONICS=shape.harmonics, LANES=width, SAMPLES=shape.samples,
        BLOCK=triton.next_power_of_2(shape.samples), NOISE=noise, STEPPED=shape.stepped,
        enable_fp_fusion=False, num_warps=8,
    )  # fmt: skip
    return ends


def spectrum_lanes(n_fft: int) -> int:
    """Return the number of columns for one half of a spectrum (real or imaginary parts, magnitudes or phases)."""
    return triton.next_power_of_2(n_fft // 2 + 1)


def forward_table(n_fft: int) -> Tensor:
    """Return [n_fft, 2 · spectrum_lanes] float32, which maps samples to real, then imaginary parts, with the window."""
    return _table(n_fft, torch.ones(n_fft // 2 + 1))


def inverse_table(n_fft: int) -> Tensor:
    """Return [n_fft, 2 · spectrum_lanes] float32, which maps real, then imaginary parts to windowed samples."""
    half = n_fft // 2
    share = torch.full((half + 1,), 2.0 / n_fft, dtype=torch.float64)
    share[0] = share[half] = 1.0 / n_fft
    table = _table(n_fft, share)
    # The spectrum of a real signal has no imaginary part at frequency 0 and at half the sample rate.
    table[:, [spectrum_lanes(n_fft), spectrum_lanes(n_fft) + half]] = 0
    return table


def _table(n_fft: int, share: Tensor) -> Tensor:
    half, width = n_fft // 2, spectrum_lanes(n_fft)
    window = torch.hann_window(n_fft, dtype=torch.float64)[:, None] * share
    steps = torch.arange(n_fft, dtype=torch.float64)[:, None] * torch.arange(half + 1, dtype=torch.float64)
    turns = steps * (2 * torch.pi / n_fft)
    table = torch.zeros(n_fft, 2 * width, dtype=torch.float64)
    table[:, : half + 1] = window * torch.cos(turns)
    table[:, width : width + half + 1] = -window * torch.sin(turns)
    return table.float()


@triton.jit(do_not_specialize=["positions"])
def _spectrum(
    source, tags, row_of, rows, table, spectrum, positions,
    RATE: tl.constexpr, N_FFT: tl.constexpr, HOP: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    there = p < positions
    frame = p // RATE
    tag = tl.load(tags + frame, mask=there, other=0)
    reached = (tag == 1) | (tag == 3) | (tag == 2) & (p % RATE == 0)
    row = rows + tl.load(row_of + frame, mask=reached, other=0) * ROW_WIDTH
    samples: tl.constexpr = RATE * HOP
    first = tl.load(row + START, mask=reached, other=0).to(tl.int32) * samples
    last = first + tl.load(row + FRAMES, mask=reached, other=0).to(tl.int32) * samples - 1
    column = tl.arange(0, WIDTH)
    total = tl.zeros((BM, WIDTH), tl.float32)
    for n in tl.static_range(N_FFT):
        at = p * HOP + (n - N_FFT // 2)
        at = first + tl.abs(at - first)
        at = tl.where(at > last, 2 * last - at, at)
        value = tl.load(source + at, mask=reached & (at >= first), other=0.0)
        total += value[:, None] * tl.load(table + n * WIDTH + column)[None, :]
    total = tl.where(reached[:, None], total, 0.0)
    out = spectrum + p[:, None] * WIDTH + column[None, :]
    tl.store(out, total.to(spectrum.dtype.element_ty), mask=there[:, None])


@triton.jit(do_not_specialize=["positions"])
def _wave(
    polar, tags, table, envelope, wave, positions,
    limit, largest,
    RATE: tl.constexpr, N_FFT: tl.constexpr, HOP: tl.constexpr, LANES: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    there = p < positions
    own = tl.load(tags + p // RATE, mask=there, other=0)
    inside = (own == 1) | (own == 3)
    lane, sample = tl.arange(0, LANES), tl.arange(0, HOP)
    total = tl.zeros((BM, HOP), tl.float32)
    weight = tl.zeros((BM, HOP), tl.float32)
    for back in tl.static_range(N_FFT // HOP):
        q = p + (N_FFT // HOP // 2 - back)
        tag = tl.load(tags + q // RATE, mask=(q >= 0) & (q < positions), other=0)
        reached = inside & ((tag == 1) | (tag == 3) | (tag == 2) & (q % RATE == 0))
        at = polar + q[:, None] * (2 * LANES) + lane[None, :]
        magnitude = tl.load(at, mask=reached[:, None], other=0.0)
        phase = tl.sin(tl.load(at + LANES, mask=reached[:, None], other=0.0))
        # Keep NaN, here and below: clamping it would give a loud sample that looks valid.
        magnitude = tl.exp(tl.minimum(magnitude, largest, propagate_nan=tl.PropagateNan.ALL))
        magnitude = tl.where(reached[:, None], magnitude, 0.0)
        real, imaginary = magnitude * tl.cos(phase), magnitude * tl.sin(phase)
        rows = table + (back * HOP + sample)[:, None] * (2 * LANES) + lane[None, :]
        from_real, from_imaginary = tl.load(rows), tl.load(rows + LANES)
        terms = real[:, None, :] * from_real[None, :, :] + imaginary[:, None, :] * from_imaginary[None, :, :]
        total += tl.sum(terms, axis=2)
        share = tl.load(envelope + back * HOP + sample)[None, :]
        weight += tl.where(reached[:, None], share, 0.0)
    value = total / tl.maximum(weight, 1e-11)
    value = tl.maximum(value, -limit, propagate_nan=tl.PropagateNan.ALL)
    value = tl.where(inside[:, None], tl.minimum(value, limit, propagate_nan=tl.PropagateNan.ALL), 0.0)
    tl.store(wave + p[:, None] * HOP + sample[None, :], value, mask=there[:, None])


def spectrum(
    source: Tensor, tags: Tensor, row_of: Tensor, rows: Tensor, table: Tensor, rate: int, hop: int, dtype: torch.dtype
) -> Tensor:
    """Compute the short-time Fourier transform of the packed source. Each row is padded by reflection at its own ends.

    source: [frames · rate · hop] float32; tags, row_of, rows: as in `make_source`; table: from `forward_table`; rate:
    spectra per frame  →  [frames · rate, 2 · spectrum_lanes], zero outside the rows. A row's last spectrum is in the
    frame after the row.
    """
    positions, width = len(tags) * rate, table.shape[1]
    out = source.new_empty(positions, width, dtype=dtype)
    block = _block(source)
    launched(_spectrum, (triton.cdiv(positions, block),))(
        source, tags, row_of, rows, table, out, positions,
        RATE=rate, N_FFT=table.shape[0], HOP=hop, WIDTH=width, BM=block,
    )  # fmt: skip
    return out


def wave(
    polar: Tensor, tags: Tensor, table: Tensor, envelope: Tensor, rate: int, hop: int, limit: float, largest: float
) -> Tensor:
    """Compute each row's samples by overlap-add. polar: [frames · rate, 2 · spectrum_lanes] float32, log magnitudes,
    then values whose sine is the phase. table: `inverse_table`. envelope: [n_fft] float32, the squared window. limit:
    largest absolute sample. largest: largest magnitude  →  [frames · rate · hop] float32, zero outside the rows.
    """
    positions = len(tags) * rate
    out = polar.new_empty(positions * hop)
    block = _block(polar) // 4
    launched(_wave, (triton.cdiv(positions, block),))(
        polar, tags, table, envelope, out, positions, limit, math.log(largest),
        RATE=rate, N_FFT=table.shape[0], HOP=hop, LANES=table.shape[1] // 2, BM=block,
    )  # fmt: skip
    return out


def _block(x: Tensor) -> int:
    """Return the positions per program. The interpreter's time depends on the number of programs, not on their size."""
    return 128 if x.is_cuda else 4096
