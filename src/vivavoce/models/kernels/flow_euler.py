"""One Euler step of packed frames, with classifier-free guidance."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_SIZE = 1024


@triton.jit(do_not_specialize=["size"])
def _advance(
    x, velocity, features, spans, step, guidance, size, BINS: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    conditional = tl.load(velocity + place, there, 0.0).to(tl.float32)
    free = tl.load(velocity + size + place, there, 0.0).to(tl.float32)
    span = tl.load(spans + tl.load(step))
    moved = tl.load(x + place, there, 0.0) + span * ((1 + guidance) * conditional - guidance * free)
    tl.store(x + place, moved, there)
    at = place // BINS * IN + place % BINS
    told = moved.to(features.dtype.element_ty)
    tl.store(features + at, told, there)
    tl.store(features + size // BINS * IN + at, told, there)


def advance(x: Tensor, velocity: Tensor, features: Tensor, spans: Tensor, step: Tensor, guidance: float) -> None:
    """x += span · ((1 + guidance) · v(conditions) − guidance · v(nothing)), and the features follow.

    x: [frames, bins] float32; velocity: [2 · frames, bins], with conditions and then without; features: [2 · frames,
    in], whose first bins are x; spans: [steps] float32; step: [1] int32
    """
    size = x.numel()
    _advance[(triton.cdiv(size, _SIZE),)](
        x, velocity, features, spans, step, guidance, size, x.shape[1], features.shape[1], _SIZE, num_warps=4
    )
