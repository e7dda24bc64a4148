"""What attention kernels compute within a program: keys tile by tile, in a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)
"""Score of a key that a query does not see, and the highest one before the first tile."""


@triton.jit
def absorb_scores(score, value, scale, end, position, peak, total, out, MASKED: tl.constexpr):
    """One tile of keys more in the running softmax (arXiv:1805.02867); MASKED: queries see the keys before their ends.

    A tile that a query sees nothing of changes nothing for it, to the bit: its weights are 0 and its fade is 1.
    """
    if MASKED:
        score = tl.where(position[None, :] < end[:, None], score, HIDDEN)
    higher = tl.maximum(peak, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - higher[:, None])
    fade = tl.exp2(peak - higher)
    total = total * fade + tl.sum(weight, 1)
    out = tl.dot(weight.to(value.dtype), value, out * fade[:, None], input_precision="ieee")
    return higher, total, out


@triton.jit
def channels(pointer, inside, WHOLE: tl.constexpr):
    """Load where `inside`; WHOLE: that is everywhere."""
    if WHOLE:
        loaded = tl.load(pointer)
    else:
        loaded = tl.load(pointer, inside, 0.0)
    return loaded
