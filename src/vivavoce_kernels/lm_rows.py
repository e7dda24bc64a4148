"""Row operations of the language model: dependent launches, embeddings, RMSNorm with the residual sum, SwiGLU."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import triton
from vivavoce_kernels.common import launched


def dependent_launches(device: torch.device) -> bool:
    """Return whether the device supports programmatic dependent launches (compute capability 9.0 or higher)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(dependent: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if dependent else {}


@triton.jit
def wait_for_inputs():
    """Wait until the preceding kernel has finished, then allow the following kernel to start."""
    gdc_wait()
    gdc_launch_dependents()


Tables = tuple[Tensor, Tensor, Tensor]  # embeddings of control, text and speech ids: [ids, hidden], all of one dtype


@triton.jit(do_not_specialize=["stride"])
def _embed_kernel(
    ids, kinds, control, text, speech, weight, stream, out, stride, eps,
    size: tl.constexpr, block: tl.constexpr, with_kinds: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < size
    table = speech
    if with_kinds:
        kind = tl.load(kinds + row)
        if kind == 0:
            table = control
        elif kind == 1:
            table = text
    x = tl.load(table + tl.load(ids + row * stride) * size + column, inside, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    tl.store(stream + row * size + column, x, inside)
    normal = x * scale * tl.load(weight + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * size + column, normal.to(out.dtype.element_ty), inside)


LEAST = tl.constexpr(16)  # smallest dimension of a tensor core's product


@triton.jit
def rows_of_a(down, place, k, inside, stride, inputs: tl.constexpr, dependent: tl.constexpr):
    """Load this program's rows of the matrix A of `lm_adapters`  →  their numbers j [16], weights [16, inputs k].

    This first allows the following kernel to start, so that it loads B while this kernel still waits for its input.
    """
    if dependent:
        gdc_launch_dependents()
    j = tl.program_id(1) * LEAST + tl.arange(0, LEAST)
    weights = down + (place - 1) * stride + j[:, None] * inputs + k[None, :]
    return j, tl.load(weights, inside[None, :], 0.0)


@triton.jit(do_not_specialize=["rows", "step"])
def add_norm_kernel(
    stream, added, weight, out, picked, summed, down, places, low, rows, step, stride, eps,
    size: tl.constexpr, block: tl.constexpr, planes: tl.constexpr, with_picked: tl.constexpr, width: tl.constexpr,
    tile: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < size
    scaling = tl.load(weight + column, inside, 0.0).to(tl.float32)
    row = program
    if with_picked:
        row = tl.load(picked + program)
    target, stored = stream, inside
    if width > 0:
        target, stored = summed, column < tl.where(tl.program_id(1) == 0, size, 0)
        place = tl.load(places + row // tile * step)
        j, w = rows_of_a(down, place, column, column < tl.where(place > 0, size, 0), stride, size, dependent)
    if dependent:
        wait_for_inputs()
    x = tl.load(stream + row * size + column, inside, 0.0)
    for plane in tl.static_range(planes):
        x += tl.load(added + (plane * rows + row) * size + column, inside, 0.0).to(tl.float32)
    if not with_picked:
        tl.store(target + row * size + column, x, stored)
    scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    normal = (x * scale * scaling).to(out.dtype.element_ty)
    tl.store(out + program * size + column, normal, stored)
    if width > 0:  # noqa: SIM102 - this condition is known to the compiler, the next one is not
        if place > 0:
            total = tl.sum(w.to(tl.float32) * normal.to(tl.float32)[None, :], 1)
            tl.store(low + row * width + j, total)


def embed_norm(ids: Tensor, kinds: Tensor | None, tables: Tables, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Look up embeddings and normalise them. ids: [rows] int64, of any stride. kinds: [rows] int64 (0 control, 1 text,
    2 speech), or None if all are speech. weight: [hidden], of the RMSNorm  →  the residual stream, [rows, hidden]
    float32, and the normalised rows, [rows, hidden] in the tables' dtype.
    """
    size = tables[0].shape[1]
    stream = torch.empty(len(ids), size, dtype=torch.float32, device=ids.device)
    out = torch.empty(len(ids), size, dtype=tables[0].dtype, device=ids.device)
    launched(_embed_kernel, (len(ids),))(
        ids, ids if kinds is None else kinds, *tables, weight, stream, out, ids.stride(0), eps,
        size=size, block=triton.next_power_of_2(size), with_kinds=kinds is not None, num_warps=4,
    )  # fmt: skip
    return stream, out


def add_norm(
    stream: Tensor, added: Tensor, weight: Tensor, eps: float, *, dependent: bool, picked: Tensor | None = None
) -> Tensor:
    """Add the planes to the residual stream in place, one after the other, then apply RMSNorm. stream: [rows, hidden]
    float32; added: [planes, rows, hidden] of any float dtype; weight: [hidden]; picked: [n] int64, given after the last
    layer: only these rows are normalised, and the stream is unchanged  →  [rows or n, hidden] in weight's dtype.
    """
    rows, size = stream.shape
    out = torch.empty(rows if picked is None else len(picked), size, dtype=weight.dtype, device=stream.device)
    launched(add_norm_kernel, (len(out),))(
        stream, added, weight, out, stream if picked is None else picked, *(stream,) * 4, rows, 0, 0, eps,
        size=size, block=triton.next_power_of_2(size), planes=len(added), with_picked=picked is not None,
        width=0, tile=1, dependent=dependent, num_warps=4, **launch_options(dependent),
    )  # fmt: skip
    return out


_COLUMNS = 1024  # columns per program: 8 values per thread, which are 16 bytes at 16 bits


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
    """SwiGLU. joined: [rows, 2 · inner], gates first  →  [rows, inner], the same dtype."""
    rows, size = len(joined), joined.shape[1] // 2
    out = torch.empty(rows, size, dtype=joined.dtype, device=joined.device)
    block = min(_COLUMNS, triton.next_power_of_2(size))
    launched(_swiglu_kernel, (rows, triton.cdiv(size, block)))(
        joined, out, size=size, block=block, dependent=dependent, num_warps=4, **launch_options(dependent)
    )
    return out
