"""Matrices in int8 or int4 with one scale for each output, in the byte order of TensorRT-LLM's kernels.

The kernels for 16-bit inputs and small integers read weights in the order of their tensor cores' registers. That order
belongs to a generation of GPUs; the steps are those of TensorRT-LLM 0.17's `preprocess_weights_for_mixed_gemm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TILE = 64
_OCTET = 8


@dataclass(frozen=True, eq=False)
class WeightOnly:
    """stored: [inputs, outputs] (int8) or [inputs, outputs / 2] (int4, two in a byte) int8, in a GPU's byte order;
    scale: [outputs] in the checkpoint's dtype.
    """

    stored: Tensor
    scale: Tensor


def quantise(weight: Tensor, bits: int, layout: str) -> WeightOnly:
    """weight: [outputs, inputs] in the checkpoint's dtype, both multiples of 64; layout: "sm80" or "sm90"."""
    values, scale = whole_numbers(weight, bits)
    return WeightOnly(_store(values, bits, layout), scale.to(weight.dtype))


def dequantise(matrix: WeightOnly, bits: int, layout: str) -> Tensor:
    """The matrix that is meant, [outputs, inputs] float32."""
    return (_values(matrix.stored, bits, layout).float() * matrix.scale.float()).t()


def round_trip(weight: Tensor, bits: int) -> Tensor:
    """What remains of a matrix that is quantised while an engine is built: [outputs, inputs] → the same, float32."""
    values, scale = whole_numbers(weight, bits)
    return (values.float() * scale.to(weight.dtype).float()).t()


def whole_numbers(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """weight: [outputs, inputs]  →  whole numbers [inputs, outputs] int8, scales [outputs] float32."""
    wide = weight.float().t()
    limit = 2 ** (bits - 1)
    scale = wide.abs().amax(dim=0) / limit
    # An output without weights has no scale: its zeros stay zeros.
    numbers = _round_half_away(wide / torch.where(scale > 0, scale, 1.0))
    return numbers.clamp(-limit, limit - 1).to(torch.int8), scale


def _round_half_away(values: Tensor) -> Tensor:
    whole = values.trunc()
    return torch.where((values - whole).abs() >= 0.5, whole + values.sign(), whole)


def _store(values: Tensor, bits: int, layout: str) -> Tensor:
    """Whole numbers [inputs, outputs] → bytes in the order of the layout."""
    num_in, num_out = values.shape
    if layout == "sm90":
        return _to_bytes(values.t().reshape(-1), bits).view(num_in, -1)
    rows = values.view(-1, _block_rows(bits) // _OCTET, _OCTET // 2, 2, num_out).transpose(1, 2)
    columns = rows.reshape(num_in, num_out).t()
    group = 16 // bits
    tiles = columns.reshape(num_out // group, group, num_in // _TILE, _TILE).transpose(1, 2)
    registers = (tiles.reshape(-1, 32 // bits // 2, 2).transpose(1, 2)).to(torch.int16) + 2 ** (bits - 1)
    return _to_bytes(registers.reshape(-1), bits).view(num_in, -1)


def _values(stored: Tensor, bits: int, layout: str) -> Tensor:
    """The reverse of `_store`."""
    num_in, num_out = stored.shape[0], stored.shape[1] * 8 // bits
    if layout == "sm90":
        return _from_bytes(stored.reshape(-1), bits, signed=True).view(num_out, num_in).t()
    numbers = _from_bytes(stored.reshape(-1), bits, signed=False) - 2 ** (bits - 1)
    tiles = numbers.view(-1, 2, 32 // bits // 2).transpose(1, 2)
    group = 16 // bits
    columns = tiles.reshape(num_out // group, num_in // _TILE, group, _TILE).transpose(1, 2).reshape(num_out, num_in)
    rows = columns.t().reshape(-1, _OCTET // 2, _block_rows(bits) // _OCTET, 2, num_out).transpose(1, 2)
    return rows.reshape(num_in, num_out)


def _block_rows(bits: int) -> int:
    """Rows that are permuted among themselves: 16 of int8, 32 of int4."""
    return 128 // bits


def _to_bytes(numbers: Tensor, bits: int) -> Tensor:
    """Whole numbers in a row → int8, the low half of a byte first."""
    if bits == 8:
        return numbers.to(torch.uint8).view(torch.int8)
    pairs = numbers.to(torch.uint8).view(-1, 2) & 15
    return (pairs[:, 0] | pairs[:, 1] << 4).view(torch.int8)


def _from_bytes(stored: Tensor, bits: int, *, signed: bool) -> Tensor:
    """int8 → whole numbers in a row, int16."""
    numbers = stored.view(torch.uint8).to(torch.int16)
    if bits == 4:
        numbers = torch.stack((numbers & 15, numbers >> 4), dim=1).reshape(-1)
    return torch.where(numbers >= 2 ** (bits - 1), numbers - 2**bits, numbers) if signed else numbers
