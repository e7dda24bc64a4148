"""Random numbers as a pure function of (seed, stream, counter).

A request's noise must not depend on its batch, on the cutting of its audio into chunks, or on the device. A generator
with state cannot guarantee this; a hash of the position can (counter-based generators: Salmon et al., SC 2011). The
hash is SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014), in wrapping 64-bit integers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vivavoce_kernels.layouts import NoiseStream

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def uniform(seeds: Tensor, stream: NoiseStream, counters: Tensor) -> Tensor:
    """Uniform numbers in (0, 1); seeds, counters: int64, broadcast against one another  →  float32."""
    return _units(seeds, stream, counters, 40)[0]


def normal(seeds: Tensor, stream: NoiseStream, counters: Tensor) -> Tensor:
    """Standard normal numbers (Box and Muller, 1958), one per counter; shapes as in `uniform`."""
    first, second = _units(seeds, stream, counters, 40, 8)
    return torch.sqrt(-2.0 * torch.log(first)) * torch.cos(2.0 * math.pi * second)


def _units(seeds: Tensor, stream: NoiseStream, counters: Tensor, *shifts: int) -> list[Tensor]:
    """24 bits of the hash from each shift on, as float32 in (0, 1): never 0, so that the logarithm is finite."""
    x = seeds
    for summand in (torch.full_like(seeds, int(stream)), counters):
        x = x + summand * _GOLDEN
        for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
            # A logical right shift: torch's own keeps the sign.
            x = (x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))) * factor
    return [(((x >> shift) & 0xFFFFFF).float() + 0.5) * 2.0**-24 for shift in shifts]
