"""SwiGLU after a library's product (arXiv:2002.05202): silu of the gate, times the other half."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.lm_launch import options, wait_for_inputs

_COLUMNS = 1024
"""Columns of one program: 8 values of each thread, 16 bytes at 16 bit."""


@triton.jit
def _swiglu_kernel(joined, out, size: tl.constexpr, block: tl.constexpr, dependent: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    if dependent:
        wait_for_inputs()
    gate = tl.load(joined + row * 2 * size + column, inside, 0.0).to(tl.float32)
    up = tl.load(joined + row * 2 * size + size + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * size + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside)


def swiglu(joined: Tensor, *, dependent: bool) -> Tensor:
    """joined: [rows, 2 · inner], gates before the rest  →  [rows, inner], the same dtype."""
    rows, size = len(joined), joined.shape[1] // 2
    out = torch.empty(rows, size, dtype=joined.dtype, device=joined.device)
    block = min(_COLUMNS, triton.next_power_of_2(size))
    launched(_swiglu_kernel, (rows, triton.cdiv(size, block)))(
        joined, out, size=size, block=block, dependent=dependent, num_warps=4, **options(dependent)
    )
    return out
