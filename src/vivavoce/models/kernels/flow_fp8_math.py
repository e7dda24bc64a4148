"""What the flow's eight-bit kernels compute within a program."""

from __future__ import annotations

import triton
import triton.language as tl

from vivavoce.models.quantised import E4M3_LARGEST, LEAST

_LARGEST = tl.constexpr(E4M3_LARGEST)
_LEAST = tl.constexpr(LEAST)


@triton.jit
def e4m3_scales(x):
    """What each row of x [rows, channels] float32 is divided by, so that its largest number is e4m3's: [rows]."""
    return tl.maximum(tl.max(tl.abs(x), 1), _LEAST) / _LARGEST


@triton.jit
def as_e4m3(x, scales):
    """x [rows, channels] float32 divided by the rows' scales, in e4m3."""
    return (x * (1.0 / scales)[:, None]).to(tl.float8e4nv)


@triton.jit
def gelu_by_tanh(x):
    """GELU with tanh in the error function's place, as a library's products have it; its error is far below e4m3's."""
    inner = x * (2.302208198 + 0.1029432397 * x * x)
    return x / (1 + tl.exp2(tl.minimum(-inner, 100.0)))
