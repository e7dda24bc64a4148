"""Code that the kernels of several networks share: launches, random numbers, online softmax, norms and activations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import triton.language as tl

import triton
from vivavoce_kernels.layouts import NoiseStream

_ahead: ContextVar[bool] = ContextVar("ahead", default=False)


def launched(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    return partial(kernel.warmup, grid=grid) if _ahead.get() else kernel[grid]


@contextmanager
def compiled_ahead() -> Iterator[bool]:
    """Within this context, launches only compile their kernels, on all cores, and write no outputs. Leaving the context
    waits for the compilation. Yield True, or False if Triton cannot compile ahead (interpreter): launches then run.
    """
    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or os.environ.get("TRITON_INTERPRET") == "1":
        yield False
        return
    token = _ahead.set(True)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as workers, mode(workers):
            yield True
    finally:
        _ahead.reset(token)


_STEP = -0x61C8864680B583EB
_GOLDEN = tl.constexpr(_STEP)
_MIX_1 = tl.constexpr(-0x40A7B892E31B1A47)
_MIX_2 = tl.constexpr(-0x6B2FB644ECCEEE15)
_TWO_PI = tl.constexpr(6.283185307179586)


def stream_offset(stream: NoiseStream) -> int:
    return (int(stream) * _STEP + 2**63) % 2**64 - 2**63


@triton.jit
def _shift(x, bits: tl.constexpr):
    return (x >> bits) & ((1 << (64 - bits)) - 1)


@triton.jit
def _mix(x):
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


@triton.jit
def _hash(seed, counter, offset: tl.constexpr):
    return _mix(_mix(seed + offset) + counter * _GOLDEN)


@triton.jit
def _unit(bits, shift: tl.constexpr):
    return ((_shift(bits, shift) & 0xFFFFFF).to(tl.float32) + 0.5) * 5.9604644775390625e-08


@triton.jit
def uniform(seed, counter, offset: tl.constexpr):
    return _unit(_hash(seed, counter, offset), 40)


@triton.jit
def normal(seed, counter, offset: tl.constexpr):
    bits = _hash(seed, counter, offset)
    radius = tl.sqrt(-2.0 * tl.log(_unit(bits, 40)))
    return radius * tl.cos(_unit(bits, 8) * _TWO_PI)


HIDDEN = tl.constexpr(-1e30)  # score of a key that the query must not attend to; also the initial running maximum m_i


@triton.jit
def online_softmax(score, value, scale, end, position, m_i, l_i, acc, MASKED: tl.constexpr):
    """Add one tile of keys to the online softmax (arXiv:1805.02867). MASKED: a query attends only to keys before its
    `end`. If a tile has no keys for a query, the query's state stays bitwise the same: weights are 0 and alpha is 1.
    """
    if MASKED:
        score = tl.where(position[None, :] < end[:, None], score, HIDDEN)
    m_new = tl.maximum(m_i, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(weight, 1)
    acc = tl.dot(weight.to(value.dtype), value, acc * alpha[:, None], input_precision="ieee")
    return m_new, l_i, acc


@triton.jit
def channels(pointer, inside, WHOLE: tl.constexpr):
    if WHOLE:
        loaded = tl.load(pointer)
    else:
        loaded = tl.load(pointer, inside, 0.0)
    return loaded


NORM_EPS = tl.constexpr(1e-5)


def tile_of(size: int, most: int) -> int:
    """Return the largest power of two ≤ `most` that divides `size`, so tiles need no mask; ValueError if it is < 16."""
    tile = min(size & -size, most)
    if tile < 16:
        raise ValueError(f"{size} channels, the flow's kernels need a multiple of 16; run without kernels")
    return tile


@triton.jit
def layer_norm_rows(x, weight, bias, inside, SIZE: tl.constexpr, EPS: tl.constexpr = NORM_EPS):
    """Layer norm of each row of x [rows, block]. `inside` [block] is True for SIZE channels; elsewhere x is 0."""
    x -= (tl.sum(x, 1) / SIZE)[:, None]
    if x.shape[1] != SIZE:
        x = tl.where(inside[None, :], x, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + EPS)
    return x * scale[:, None] * weight[None, :].to(tl.float32) + bias[None, :].to(tl.float32)


@triton.jit
def mish(x):
    """Mish, x · tanh(log(1 + eˣ)), with a single exponential; for x > 20, mish(x) equals x in float32."""
    e = tl.exp2(tl.minimum(x, 20.0) * 1.4426950408889634)
    n = e * (e + 2)
    return x * n / (n + 2)


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def gelu_by_tanh(x):
    return x / (1 + tl.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))
