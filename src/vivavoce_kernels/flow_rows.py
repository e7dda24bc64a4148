"""Operations of the flow on rows: LayerNorm, modulation by the time step, SiLU, and the ODE solver's step."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor, nn

import triton
from vivavoce_kernels.common import launched, layer_norm_rows

_VALUES = 4096


class ShiftedNorm(NamedTuple):
    """Parameters of LayerNorm(x + shift); the tensors are [channels]."""

    shift: Tensor
    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, norm: nn.LayerNorm, shift: Tensor) -> ShiftedNorm:
        return cls(shift, norm.weight, norm.bias, norm.eps)


@triton.jit(do_not_specialize=["num_rows"])
def _norm(
    x, shift, weight, bias, out, num_rows,
    EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = channel < SIZE
    there = (row < num_rows)[:, None] & inside[None, :]
    at = row[:, None] * SIZE + channel[None, :]
    value = tl.load(x + at, there, 0.0).to(tl.float32) + tl.load(shift + channel, inside, 0.0)[None, :].to(tl.float32)
    value = layer_norm_rows(
        value, tl.load(weight + channel, inside, 0.0), tl.load(bias + channel, inside, 0.0), inside, SIZE, EPS
    )
    tl.store(out + at, value.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=["count"])
def _silu(x, count, VALUES: tl.constexpr):
    at = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    value = tl.load(x + at, at < count, 0.0).to(tl.float32)
    tl.store(x + at, (value / (1 + tl.exp(-value))).to(x.dtype.element_ty), at < count)


def layer_norm(x: Tensor, norm: ShiftedNorm, rows: int) -> Tensor:
    """Compute LayerNorm in float32  →  like x. x: [n, channels], float32 or 16 bit, contiguous; rows: per program."""
    out = torch.empty_like(x)
    count, size = x.shape
    launched(_norm, (triton.cdiv(count, rows),))(
        x, norm.shift, norm.weight, norm.bias, out, count,
        EPS=norm.eps, SIZE=size, BLOCK=triton.next_power_of_2(size), ROWS=rows, num_warps=4,
    )  # fmt: skip
    return out


class Modulations(NamedTuple):
    """norms: [steps, norms, 2, channels] float32, the factor and summand that follow each LayerNorm without weights;
    gates: [steps, residuals, 2, channels] float32, for stream += gate · x + summand; step: [1] int32, current step.
    """

    norms: Tensor
    gates: Tensor
    step: Tensor


@triton.jit(do_not_specialize=["gate", "norm", "num_rows"])
def _modulated(
    x, added, gates, norms, step, out, gate, norm, num_rows,
    GATED: tl.constexpr, GATES: tl.constexpr, NORMS: tl.constexpr, EPS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside, now = channel < SIZE, tl.load(step)
    there = (row < num_rows)[:, None] & inside[None, :]
    at = row[:, None] * SIZE + channel[None, :]
    value = tl.load(x + at, there, 0.0).to(tl.float32)
    if GATED:
        of_step = gates + (now * GATES + gate) * (2 * SIZE) + channel
        more = tl.load(added + at, there, 0.0).to(tl.float32) * tl.load(of_step, inside, 0.0)[None, :]
        value += more + tl.load(of_step + SIZE, inside, 0.0)[None, :]
        tl.store(x + at, value.to(x.dtype.element_ty), there)
    of_step = norms + (now * NORMS + norm) * (2 * SIZE) + channel
    value = layer_norm_rows(
        value, tl.load(of_step, inside, 0.0), tl.load(of_step + SIZE, inside, 0.0), inside, SIZE, EPS
    )
    tl.store(out + at, value.to(out.dtype.element_ty), there)


def modulated(
    x: Tensor, added: tuple[Tensor, int] | None, modulations: Modulations, norm: int, eps: float, rows: int
) -> Tensor:
    """Do x += gate · added + summand in place, then LayerNorm number `norm` of x. added: a tensor and its gate's
    number; x and this tensor are [n, channels], float32 or 16 bit, contiguous. rows: rows per program  →  like x.
    """
    out, (count, size) = torch.empty_like(x), x.shape
    more, gate = added or (x, 0)
    norms, gates, step = modulations
    launched(_modulated, (triton.cdiv(count, rows),))(
        x, more, gates, norms, step, out, gate, norm, count,
        GATED=added is not None, GATES=gates.shape[1], NORMS=norms.shape[1], EPS=eps, SIZE=size,
        BLOCK=triton.next_power_of_2(size), ROWS=rows, num_warps=4,
    )  # fmt: skip
    return out


def silu_(x: Tensor) -> Tensor:
    """Compute x · sigmoid(x) in place; x: contiguous, with fewer than 2³¹ values  →  x."""
    count = x.numel()
    launched(_silu, (triton.cdiv(count, _VALUES),))(x, count, _VALUES, num_warps=4)
    return x


_SIZE = 1024


@triton.jit(do_not_specialize=["size"])
def _advance(
    x, velocity, features, spans, step, guidance, size, BINS: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    conditional = tl.load(velocity + place, there, 0.0).to(tl.float32)
    free = tl.load(velocity + size + place, there, 0.0).to(tl.float32)
    of_step = spans + 2 * tl.load(step)
    guided = (1 + guidance) * conditional - guidance * free
    start = tl.load(x + place, there, 0.0)
    tl.store(x + place, start + tl.load(of_step + 1) * guided, there)
    at = place // BINS * IN + place % BINS
    rounded = (start + tl.load(of_step) * guided).to(features.dtype.element_ty)
    tl.store(features + at, rounded, there)
    tl.store(features + size // BINS * IN + at, rounded, there)


def advance(x: Tensor, velocity: Tensor, features: Tensor, spans: Tensor, step: Tensor, guidance: float) -> None:
    """Write x + reach · v to both halves of `features`, then do x += move · v in place. The guided velocity v is
    (1 + guidance) · (velocity with conditions) − guidance · (velocity without).

    x: [frames, bins] float32; velocity: [2 · frames, bins], first with conditions, then without; features: [2 · frames,
    in], of which the first `bins` columns are written; spans: [evaluations, 2] float32, `reach` and `move`; step: [1 or
    more] int32, whose first element is the number of the evaluation.
    """
    size = x.numel()
    _advance[(triton.cdiv(size, _SIZE),)](
        x, velocity, features, spans, step, guidance, size, x.shape[1], features.shape[1], _SIZE, num_warps=4
    )
