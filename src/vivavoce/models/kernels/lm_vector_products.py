"""Products of a single row: without tensor cores, with everything around them in the same kernel.

With one row a step is bound by how soon weights arrive and by how many kernels follow one another. Each program asks
for its rows of the weights before it waits for its input; norms, the residual sum, SwiGLU and the putting together of
a divided attention are done on the way, so that a layer is five kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.lm_decode_attention import Divided
from vivavoce.models.kernels.lm_launch import options, wait_for_inputs
from vivavoce.models.kernels.lm_products import Shape


@dataclass(frozen=True)
class Strip:
    """Outputs of one program, and the compiler's warps."""

    outputs: int
    warps: int


Strips = Mapping[Shape, Strip]

STRIPS: Strips = {
    Shape(1152, 896): Strip(1, 4),
    Shape(896, 896): Strip(4, 4),
    Shape(4864, 896, gated=True): Strip(1, 4),
    Shape(896, 4864): Strip(4, 8),
    Shape(6564, 896): Strip(4, 4),
}
"""CosyVoice2's sizes, as measured on one H200 in bfloat16."""


@triton.jit
def _together(partial, parts, k, inside, head_dim: tl.constexpr, splits: tl.constexpr):
    """The row k of all heads, from its parts."""
    first = (k // head_dim) * splits
    highest = tl.load(parts + first * 2, inside, 0.0)
    for split in tl.static_range(1, splits):
        highest = tl.maximum(highest, tl.load(parts + (first + split) * 2, inside, 0.0))
    total, weight = tl.zeros_like(highest), tl.zeros_like(highest)
    for split in tl.static_range(splits):
        at = first + split
        share = tl.exp(tl.load(parts + at * 2, inside, 0.0) - highest)
        weight += share * tl.load(parts + at * 2 + 1, inside, 0.0)
        total += share * tl.load(partial + at * head_dim + k % head_dim, inside, 0.0)
    return total / tl.maximum(weight, 1e-30)


@triton.jit
def _vector_kernel(
    x, parts, scaling, weight, scale, bias, out, eps,
    outputs: tl.constexpr, inputs: tl.constexpr, block_outputs: tl.constexpr, block_inputs: tl.constexpr,
    normed: tl.constexpr, scaled: tl.constexpr, with_bias: tl.constexpr, gated: tl.constexpr, added: tl.constexpr,
    splits: tl.constexpr, head_dim: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    k = tl.arange(0, block_inputs)
    inside_n, inside_k = n < outputs, k < inputs
    inside = inside_n[:, None] & inside_k[None, :]
    at = n[:, None] * inputs + k[None, :]
    w = tl.load(weight + at, inside, 0.0)
    if gated:
        up = tl.load(weight + outputs * inputs + at, inside, 0.0)
    if normed:
        norm_weight = tl.load(scaling + k, inside_k, 0.0).to(tl.float32)
    if dependent:
        wait_for_inputs()
    if splits > 0:
        row = _together(x, parts, k, inside_k, head_dim, splits)
    else:
        row = tl.load(x + k, inside_k, 0.0).to(tl.float32)
    if normed:
        row *= tl.rsqrt(tl.sum(row * row, 0) / inputs + eps)
        row *= norm_weight
    total = tl.sum(w.to(tl.float32) * row[None, :], 1)
    if scaled:
        total *= tl.load(scale + n, inside_n, 0.0)
    if with_bias:
        total += tl.load(bias + n, inside_n, 0.0).to(tl.float32)
    if gated:
        total_up = tl.sum(up.to(tl.float32) * row[None, :], 1)
        if scaled:
            total_up *= tl.load(scale + outputs + n, inside_n, 0.0)
        total = total * tl.sigmoid(total) * total_up
    if added:
        total += tl.load(out + n, inside_n, 0.0)
    tl.store(out + n, total.to(out.dtype.element_ty), inside_n)


def vector_product(
    x: Tensor | Divided, weight: Tensor, bias: Tensor | None, out: Tensor, strip: Strip, *, dependent: bool,
    scale: Tensor | None = None, scaling: Tensor | None = None, eps: float = 0.0, gated: bool = False,
    added: bool = False,
) -> None:  # fmt: skip
    """One row times the weights.

    Args:
        x: [1, inputs], or a divided attention of so many channels.
        weight: [outputs, inputs], or [2 · outputs, inputs] with the gates first.
        bias: [outputs].
        out: [1, outputs], written; float32 if added.
        strip: how outputs are dealt out.
        dependent: see `lm_launch`.
        scale: [len(weight)] float32, what each row of an int8 weight is to be multiplied by; None: it is no such one.
        scaling: [inputs], the weight of an RMSNorm that x goes through first.
        eps: that norm's.
        gated: SwiGLU of the product is wanted.
        added: the product is added to `out`.
    """
    inputs = weight.shape[1]
    outputs = len(weight) // 2 if gated else len(weight)
    divided = x if isinstance(x, Divided) else Divided(x, x, 0)
    launched(_vector_kernel, (triton.cdiv(outputs, strip.outputs),))(
        divided.partial, divided.parts, weight if scaling is None else scaling, weight,
        weight if scale is None else scale, weight if bias is None else bias, out, eps, outputs=outputs, inputs=inputs,
        block_outputs=strip.outputs, block_inputs=triton.next_power_of_2(inputs), normed=scaling is not None,
        scaled=scale is not None, with_bias=bias is not None, gated=gated, added=added, splits=divided.splits,
        head_dim=divided.partial.shape[1], dependent=dependent, num_warps=strip.warps, **options(dependent),
    )  # fmt: skip
