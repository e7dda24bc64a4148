"""Short-time Fourier transform of packed rows and its inverse, in float32: what `models.vocoder.stft` computes."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.row_table import FRAMES, ROW_WIDTH, START


def lanes(n_fft: int) -> int:
    """Columns in which one half of a spectrum stands: real or imaginary parts, magnitudes or phases."""
    return triton.next_power_of_2(n_fft // 2 + 1)


def forward_table(n_fft: int) -> Tensor:
    """[n_fft, 2 · lanes] float32: windowed sample → real parts, then imaginary ones (periodic Hann window)."""
    window, turns, width = _window(n_fft), _turns(n_fft), lanes(n_fft)
    table = torch.zeros(n_fft, 2 * width, dtype=torch.float64)
    table[:, : n_fft // 2 + 1] = window[:, None] * torch.cos(turns)
    table[:, width : width + n_fft // 2 + 1] = -window[:, None] * torch.sin(turns)
    return table.float()


def inverse_table(n_fft: int) -> Tensor:
    """[n_fft, 2 · lanes] float32: real and imaginary parts → windowed sample."""
    window, turns, width = _window(n_fft), _turns(n_fft), lanes(n_fft)
    half = n_fft // 2
    share = torch.full((half + 1,), 2.0 / n_fft, dtype=torch.float64)
    share[0] = share[half] = 1.0 / n_fft
    table = torch.zeros(n_fft, 2 * width, dtype=torch.float64)
    table[:, : half + 1] = window[:, None] * share * torch.cos(turns)
    table[:, width : width + half + 1] = -window[:, None] * share * torch.sin(turns)
    # A real signal has none there.
    table[:, [width, width + half]] = 0
    return table.float()


def _window(n_fft: int) -> Tensor:
    return torch.hann_window(n_fft, dtype=torch.float64)


def _turns(n_fft: int) -> Tensor:
    steps = torch.arange(n_fft, dtype=torch.float64)[:, None] * torch.arange(n_fft // 2 + 1, dtype=torch.float64)
    return steps * (2 * torch.pi / n_fft)


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
        # What is no number stays so, here and below: clamped it would pass for a loud sample.
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
    """Spectra with centred frames, each row mirrored at its own ends.

    source: [frames · rate · hop] float32; tags, row_of, rows: as in `harmonic_source.make_source`; table:
    `forward_table`; rate: spectra per frame  →  [frames · rate, 2 · lanes], a row's last one in the frame after it,
    zero outside of the rows
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
    """Overlap-add of each row's own spectra.

    polar: [frames · rate, 2 · lanes] float32, logarithms of magnitudes, then what phases are the sine of; table:
    `inverse_table`; envelope: [n_fft] float32, the squared window; limit: of the samples; largest: of the magnitudes
    →  [frames · rate · hop] float32, zero outside of the rows
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
    """Positions of a program; Triton's interpreter takes a program's time for each, whatever its size."""
    return 128 if x.is_cuda else 4096
