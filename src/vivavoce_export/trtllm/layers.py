"""Convert one layer of a Qwen2 model to the tensors of a TensorRT-LLM checkpoint, split for tensor-parallel GPUs.

A matrix is stored as [outputs, inputs]. `ROWS` splits it along the outputs, and `COLUMNS` along the inputs. `QKV`
splits each of the query, key and value parts along its heads. Biases and scales are split like the matrix's rows.

Weight-only int8 and int4: each output has one scale. The byte order is that of TensorRT-LLM's kernels and depends on
the GPU generation. The steps follow `preprocess_weights_for_mixed_gemm` of TensorRT-LLM 0.17.

SmoothQuant (arXiv:2211.10438): each input channel is divided by s, and its column of weights is multiplied by s. If a
norm precedes the matrix, the norm's weight is divided. The inputs of `COLUMNS` matrices (the attention's output and the
MLP's inner channels) are divided while the engine runs, by the tensor `smoother`. Values are rounded in TensorRT-LLM's
order: weights and their scales are float16, and s is float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce_export.files import cast
from vivavoce_export.merged_lm import QwenSizes
from vivavoce_export.trtllm.options import BITS, ConvertOptions

INT8_LIMIT = 127
_TILE = 64
_OCTET = 8
_PERMUTED_BITS = 128
"""Rows are permuted in groups of this many bits, which are 16 rows of int8 or 32 rows of int4."""
_LEAST = 1e-5
_LEAST_HALF = 2.0**-24


class ShardCut(Enum):
    ROWS = "rows"
    COLUMNS = "columns"
    QKV = "qkv"


@dataclass(frozen=True)
class LayerMatrix:
    """parts: Hugging Face's names of the joined matrices; input_scale: name of the inputs' scale."""

    cut: ShardCut
    parts: tuple[str, ...]
    input_scale: str


_AFTER_NORMS = ("input_layernorm.scale_to_int", "post_layernorm.scale_to_int")
MATRICES = {
    "attention.qkv": LayerMatrix(
        ShardCut.QKV, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), _AFTER_NORMS[0]
    ),
    "attention.dense": LayerMatrix(ShardCut.COLUMNS, ("self_attn.o_proj",), "attention.quantization_scaling_factor"),
    "mlp.fc": LayerMatrix(ShardCut.ROWS, ("mlp.gate_proj",), _AFTER_NORMS[1]),
    "mlp.gate": LayerMatrix(ShardCut.ROWS, ("mlp.up_proj",), _AFTER_NORMS[1]),
    "mlp.proj": LayerMatrix(ShardCut.COLUMNS, ("mlp.down_proj",), "mlp.quantization_scaling_factor"),
}
"""A layer's matrices by TensorRT-LLM's names. `fc` is Hugging Face's gate projection; `gate` is the up projection."""
LINEARS = tuple(part for matrix in MATRICES.values() for part in matrix.parts)
NORMS = {"input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm"}
QKV_BIAS, CACHE_SCALE = "attention.qkv.bias", "attention.kv_cache_scaling_factor"
_WITHOUT_SMOOTHQUANT = "SmoothQuant computes in it; leave --smoothquant out"


def shards(tensor: Tensor, cut: ShardCut, tp: int, sizes: QwenSizes) -> list[Tensor]:
    """Split a tensor [outputs, inputs] or [outputs] into one piece for each of `tp` GPUs.

    `QKV` tensors are query, key and value joined. With more GPUs than key-value heads, several GPUs get the same head.
    """
    if cut is not ShardCut.QKV:
        return list(tensor.chunk(tp, dim=1 if cut is ShardCut.COLUMNS else 0))
    query, *key_and_value = tensor.split(sizes.qkv_rows)
    heads = (part.unflatten(0, (sizes.num_kv_heads, sizes.head_dim)) for part in key_and_value)
    repeated = (part.repeat_interleave(max(tp // sizes.num_kv_heads, 1), dim=0).flatten(0, 1) for part in heads)
    return [torch.cat(pieces) for pieces in zip(*(part.chunk(tp) for part in (query, *repeated)), strict=True)]


def joined(pieces: Sequence[Tensor], cut: ShardCut, sizes: QwenSizes) -> Tensor:
    if cut is not ShardCut.QKV:
        return torch.cat(list(pieces), dim=1 if cut is ShardCut.COLUMNS else 0)
    tp = len(pieces)
    copies = max(tp // sizes.num_kv_heads, 1)
    query_rows, kv_rows, _ = (rows // tp for rows in sizes.qkv_rows)
    columns = zip(*(piece.split((query_rows, kv_rows * copies, kv_rows * copies)) for piece in pieces), strict=True)
    query, *key_and_value = (torch.cat(list(column)) for column in columns)
    heads = (part.unflatten(0, (sizes.num_kv_heads, copies, sizes.head_dim)) for part in key_and_value)
    return torch.cat((query, *(part[:, 0].flatten(0, 1) for part in heads)))


def convert_layer(
    layer: Mapping[str, Tensor],
    ranges: Mapping[str, Tensor],
    options: ConvertOptions,
    sizes: QwenSizes,
    dtype: torch.dtype,
) -> list[dict[str, Tensor]]:
    """Convert a layer to tensors by TensorRT-LLM's names within the layer: a dictionary for each of `options.tp` GPUs.

    layer: tensors of any float dtype by Hugging Face's names within the layer; ranges: of activations (`measure`), if
    `options.needs_calibration`; dtype: for tensors that are not quantised. CheckpointError: values do not fit it.
    """
    tp, alpha = options.tp, options.smoothquant
    tensors_by_rank: list[dict[str, Tensor]] = [{} for _ in range(tp)]

    def put(name: str, pieces: Sequence[Tensor]) -> None:
        for tensors, piece in zip(tensors_by_rank, pieces, strict=True):
            tensors.setdefault(name, piece)  # `mlp.fc` and `mlp.gate` share an input scale, which is stored once

    smoothing: dict[str, Tensor] = {}
    if alpha is not None:
        layer = {name: cast(tensor, torch.float16, name, _WITHOUT_SMOOTHQUANT) for name, tensor in layer.items()}
        smoothing = _smoothing(layer, ranges, alpha)
    for ours, theirs in NORMS.items():
        norm = layer[f"{theirs}.weight"]
        if smoothing:
            norm = (norm / smoothing[f"{ours}.scale_to_int"]).half()
        put(f"{ours}.weight", [cast(norm, dtype, theirs)] * tp)
    bias = torch.cat([layer[f"{part}.bias"] for part in MATRICES["attention.qkv"].parts])
    put(QKV_BIAS, shards(cast(bias, dtype, "qkv bias"), ShardCut.QKV, tp, sizes))
    for name, matrix in MATRICES.items():
        weight = torch.cat([layer[f"{part}.weight"] for part in matrix.parts])
        if smoothing:
            smooth = smoothing[matrix.input_scale]
            for suffix, pieces in _int8(name, (weight * smooth).half(), smooth, ranges, options, sizes).items():
                put(suffix, pieces)
            continue
        pieces = shards(cast(weight, dtype, name), matrix.cut, tp, sizes)
        if options.weight_only is not None and options.prequantize is not None:
            quantised = [quantise(piece, BITS[options.weight_only], options.prequantize) for piece in pieces]
            pieces = [stored for stored, _ in quantised]
            put(f"{name}.per_channel_scale", [scale for _, scale in quantised])
        put(f"{name}.weight", pieces)
    if options.int8_kv_cache:
        put(CACHE_SCALE, [(_largest_output("attention.qkv", ranges) / INT8_LIMIT).reshape(1)] * tp)
    return tensors_by_rank


def _smoothing(layer: Mapping[str, Tensor], ranges: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Return SmoothQuant's s, [inputs] float64, by the name of the input scale."""
    parts: dict[str, list[str]] = {}
    for matrix in MATRICES.values():
        parts.setdefault(matrix.input_scale, []).extend(matrix.parts)
    return {
        scale: strength([layer[f"{name}.weight"] for name in names], ranges[f"{names[0]}.x"], alpha)
        for scale, names in parts.items()
    }


def _largest_output(name: str, ranges: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([ranges[f"{part}.y"] for part in MATRICES[name].parts]).max()


def _int8(
    name: str, weight: Tensor, smooth: Tensor, ranges: Mapping[str, Tensor], options: ConvertOptions, sizes: QwenSizes
) -> dict[str, Sequence[Tensor]]:
    """Make an int8 product's tensors for each GPU. weight: smoothed, [outputs, inputs] float16; smooth: s, [inputs]."""
    matrix, tp = MATRICES[name], options.tp
    if not weight.is_meta and not bool(weight.isfinite().all()):
        raise CheckpointError(
            f"model: {name}, once smoothed, has values that float16 cannot hold; {_WITHOUT_SMOOTHQUANT}"
        )
    rows = sizes.qkv_rows if matrix.cut is ShardCut.QKV else (len(weight),)
    whole, to_int, scale = to_int8(weight, rows, per_channel=options.per_channel)
    tensors: dict[str, Sequence[Tensor]] = {f"{name}.weight": shards(whole, matrix.cut, tp, sizes)}
    if not options.per_token:
        inputs = ranges[f"{matrix.parts[0]}.x"] / smooth
        scale, of_output, of_input = static_scales(inputs, _largest_output(name, ranges), to_int)
        tensors |= {f"{name}.act_scale": [of_output] * tp, matrix.input_scale: [of_input] * tp}
    elif matrix.cut is not ShardCut.COLUMNS:
        tensors[matrix.input_scale] = [torch.ones(1, device=scale.device)] * tp
    shared = matrix.cut is ShardCut.COLUMNS or len(scale) == 1
    scales = [scale] * tp if shared else shards(scale, matrix.cut, tp, sizes)
    tensors[f"{name}.per_channel_scale"] = [one.reshape(1, -1) for one in scales]
    if matrix.cut is ShardCut.COLUMNS:
        tensors[f"{name}.smoother"] = [one.reshape(1, -1) for one in smooth.float().chunk(tp)]
    return tensors


def quantise(weight: Tensor, bits: int, layout: str) -> tuple[Tensor, Tensor]:
    """Quantise weight [outputs, inputs] in the checkpoint's dtype; sizes: multiples of 64; layout: "sm80" or "sm90".

    Returns int8 in the byte order of the layout, [inputs, outputs] or, for int4 (two values in a byte), [inputs,
    outputs / 2], and the scales [outputs] in the weight's dtype.
    """
    values, scale = whole_numbers(weight, bits)
    return _store(values, bits, layout), scale.to(weight.dtype)


def dequantise(stored: Tensor, scale: Tensor, bits: int, layout: str) -> Tensor:
    """Undo `quantise`  →  [outputs, inputs] float32."""
    return (_values(stored, bits, layout).float() * scale.float()).t()


def round_trip(weight: Tensor, bits: int) -> Tensor:
    """Return the weight as it is after trtllm-build has quantised it: [outputs, inputs] → [outputs, inputs] float32."""
    values, scale = whole_numbers(weight, bits)
    return (values.float() * scale.to(weight.dtype).float()).t()


def whole_numbers(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantise weight [outputs, inputs]  →  whole numbers [inputs, outputs] int8, scales [outputs] float32."""
    wide = weight.float().t()
    limit = 2 ** (bits - 1)
    scale = wide.abs().amax(dim=0) / limit
    # An output whose weights are all zero has the scale 0. Divide by 1 instead, so that its zeros stay zeros.
    exact = wide / torch.where(scale > 0, scale, 1.0)
    whole = exact.trunc()
    away_from_zero = torch.where((exact - whole).abs() >= 0.5, whole + exact.sign(), whole)
    return away_from_zero.clamp(-limit, limit - 1).to(torch.int8), scale


def _store(values: Tensor, bits: int, layout: str) -> Tensor:
    """Convert whole numbers [inputs, outputs] to bytes in the order of the layout."""
    num_in, num_out = values.shape
    if layout == "sm90":
        return _to_bytes(values.t().reshape(-1), bits).view(num_in, -1)
    rows = values.view(-1, _PERMUTED_BITS // bits // _OCTET, _OCTET // 2, 2, num_out).transpose(1, 2)
    columns = rows.reshape(num_in, num_out).t()
    group = 16 // bits
    tiles = columns.reshape(num_out // group, group, num_in // _TILE, _TILE).transpose(1, 2)
    registers = (tiles.reshape(-1, 32 // bits // 2, 2).transpose(1, 2)).to(torch.int16) + 2 ** (bits - 1)
    return _to_bytes(registers.reshape(-1), bits).view(num_in, -1)


def _values(stored: Tensor, bits: int, layout: str) -> Tensor:
    num_in, num_out = stored.shape[0], stored.shape[1] * 8 // bits
    if layout == "sm90":
        return _from_bytes(stored.reshape(-1), bits, signed=True).view(num_out, num_in).t()
    numbers = _from_bytes(stored.reshape(-1), bits, signed=False) - 2 ** (bits - 1)
    tiles = numbers.view(-1, 2, 32 // bits // 2).transpose(1, 2)
    group = 16 // bits
    columns = tiles.reshape(num_out // group, num_in // _TILE, group, _TILE).transpose(1, 2).reshape(num_out, num_in)
    rows = columns.t().reshape(-1, _OCTET // 2, _PERMUTED_BITS // bits // _OCTET, 2, num_out).transpose(1, 2)
    return rows.reshape(num_in, num_out)


def _to_bytes(numbers: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return numbers.to(torch.uint8).view(torch.int8)
    pairs = numbers.to(torch.uint8).view(-1, 2) & 15
    return (pairs[:, 0] | pairs[:, 1] << 4).view(torch.int8)


def _from_bytes(stored: Tensor, bits: int, *, signed: bool) -> Tensor:
    numbers = stored.view(torch.uint8).to(torch.int16)
    if bits == 4:
        numbers = torch.stack((numbers & 15, numbers >> 4), dim=1).reshape(-1)
    return torch.where(numbers >= 2 ** (bits - 1), numbers - 2**bits, numbers) if signed else numbers


def strength(weights: Sequence[Tensor], inputs: Tensor, alpha: float) -> Tensor:
    """Compute SmoothQuant's s, [inputs] float64, of matrices with the same inputs. inputs: [inputs], largest values."""
    wide = torch.stack([weight.abs().amax(dim=0) for weight in weights]).amax(dim=0).double().clamp(min=_LEAST)
    return (inputs.double().clamp(min=_LEAST).pow(alpha) / wide.pow(1 - alpha)).clamp(min=_LEAST)


def to_int8(matrix: Tensor, parts: Sequence[int], *, per_channel: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Round the scaled matrix to whole numbers from −127 to 127, half to even.

    matrix: [outputs, inputs] float16; parts: numbers of outputs that share a scale, if not `per_channel`. Returns the
    int8 matrix, the scale 127 / largest weight, and its reciprocal, both [outputs] or [1] float32.
    """
    weight, rows = matrix.float(), matrix.abs().amax(dim=1)
    if per_channel:
        to_int, from_int = _scales(rows)
        return _whole(weight * to_int[:, None]), to_int, from_int
    to_int, from_int = _scales(torch.stack([part.max() for part in rows.split(list(parts))]))
    if len(parts) == 1:
        return _whole((weight * to_int).half()), to_int, from_int
    to_int, from_int = (
        torch.cat([one.expand(size) for one, size in zip(scale, parts, strict=True)]) for scale in (to_int, from_int)
    )
    return _whole((weight / from_int[:, None]).half()), to_int, from_int


def static_scales(inputs: Tensor, output: Tensor, to_int: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a product's scales for a fixed input scale. inputs: largest input by channel; output: the largest output.

    Returns float32: the factor from the sum of whole numbers to the outputs' int8 range, [1] or [outputs]; the scale of
    the outputs, one number; the factor for the inputs, one number.
    """
    # In torch, number / tensor is a reciprocal, then a product. TensorRT-LLM divides so, and the two roundings count.
    of_inputs = inputs.max().reciprocal() * INT8_LIMIT
    of_output = output.reciprocal() * INT8_LIMIT
    accumulated = of_output / (of_inputs * to_int[0] if len(to_int) == 1 else of_inputs * to_int)
    return accumulated.float().reshape(-1), output / INT8_LIMIT, of_inputs.float()


def _scales(largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return 127 / largest, and its reciprocal, both float32. largest: the largest weights, float16."""
    half = largest.reciprocal() * INT8_LIMIT
    # For weights below 0.002 the scale exceeds float16, so it is computed in float32.
    wide = INT8_LIMIT / largest.float().clamp(min=_LEAST_HALF)
    fits = half.isfinite()
    return torch.where(fits, half.float(), wide), torch.where(fits, half.reciprocal().float(), wide.reciprocal())


def _whole(values: Tensor) -> Tensor:
    return values.round().clamp(-INT8_LIMIT, INT8_LIMIT).to(torch.int8)
