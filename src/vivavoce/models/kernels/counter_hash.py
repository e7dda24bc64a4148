"""The numbers of `models/counter_noise.py` inside kernels: uniform ones bit for bit, normal ones as sines round."""

from __future__ import annotations

import triton
import triton.language as tl

from vivavoce.models.counter_noise import Stream

_STEP = -0x61C8864680B583EB
_GOLDEN = tl.constexpr(_STEP)
_MIX_1 = tl.constexpr(-0x40A7B892E31B1A47)
_MIX_2 = tl.constexpr(-0x6B2FB644ECCEEE15)
_TWO_PI = tl.constexpr(6.283185307179586)


def stream_offset(stream: Stream) -> int:
    """What is added to a seed for one of its streams, as a signed 64-bit number."""
    return (int(stream) * _STEP + 2**63) % 2**64 - 2**63


@triton.jit
def _shift(x, bits: tl.constexpr):
    """Logical right shift of signed numbers."""
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
    """A float32 in (0, 1); seed, counter: int64; offset: the stream's."""
    return _unit(_hash(seed, counter, offset), 40)


@triton.jit
def normal(seed, counter, offset: tl.constexpr):
    """A standard normal float32; arguments as in `uniform`."""
    bits = _hash(seed, counter, offset)
    radius = tl.sqrt(-2.0 * tl.log(_unit(bits, 40)))
    return radius * tl.cos(_unit(bits, 8) * _TWO_PI)
