"""What the flow's kernels compute within a program, in float32."""

from __future__ import annotations

import triton
import triton.language as tl

NORM_EPS = tl.constexpr(1e-5)


def tile_of(size: int, most: int) -> int:
    """The largest power of two that divides `size`, at most `most`: tiles of it need no mask.

    Raises:
        ValueError: it is below 16, the least that a matrix product takes.
    """
    tile = min(size & -size, most)
    if tile < 16:
        raise ValueError(f"{size} channels, the flow's kernels need a multiple of 16; run without kernels")
    return tile


@triton.jit
def layer_norm_rows(x, weight, bias, inside, SIZE: tl.constexpr, EPS: tl.constexpr = NORM_EPS):
    """LayerNorm of each row; x: [rows, block], zeros where `inside` [block] is not; SIZE channels are inside."""
    x -= (tl.sum(x, 1) / SIZE)[:, None]
    if x.shape[1] != SIZE:
        x = tl.where(inside[None, :], x, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + EPS)
    return x * scale[:, None] * weight[None, :].to(tl.float32) + bias[None, :].to(tl.float32)


@triton.jit
def mish(x):
    """x · tanh(log(1 + eˣ)) with one exponential; past 20 it is x in float32."""
    e = tl.exp2(tl.minimum(x, 20.0) * 1.4426950408889634)
    n = e * (e + 2)
    return x * n / (n + 2)


@triton.jit
def gelu(x):
    """The exact GELU, of the error function."""
    return 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))
