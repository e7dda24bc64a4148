"""One layer of a Qwen2 model → the tensors of a TensorRT-LLM checkpoint, for each GPU that shares the layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.export.trtllm import smoothquant, weight_only
from vivavoce.export.trtllm.options import BITS, ConvertOptions
from vivavoce.export.trtllm.ranges import LayerRanges
from vivavoce.export.trtllm.sharding import Cut, shards
from vivavoce.export.trtllm.sizes import QwenSizes

CUTS = {
    "attention.qkv": Cut.QKV,
    "attention.dense": Cut.COLUMNS,
    "mlp.fc": Cut.ROWS,
    "mlp.gate": Cut.ROWS,
    "mlp.proj": Cut.COLUMNS,
}
"""The matrices of a layer and how GPUs share them; `fc` is the gate's projection, `gate` the one that it gates."""

SINGLE = {"attention.dense": "self_attn.o_proj", "mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj"} | {
    "mlp.proj": "mlp.down_proj"
}
"""Hugging Face's names of the matrices that stay one."""
NORMS = {"input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm"}
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

INPUT_SCALE = {
    "attention.qkv": "input_layernorm.scale_to_int",
    "attention.dense": "attention.quantization_scaling_factor",
    "mlp.fc": "post_layernorm.scale_to_int",
    "mlp.proj": "mlp.quantization_scaling_factor",
}
"""Where a matrix's input scale stands: with what makes the input. `mlp.gate` reads what `mlp.fc` reads."""

_WITHOUT_SMOOTHQUANT = "SmoothQuant computes in it, so leave that out"

Layer = Mapping[str, Tensor]
"""A layer's tensors by Hugging Face's names within it: "self_attn.q_proj.weight" …"""


def convert_layer(
    layer: Layer, ranges: LayerRanges | None, options: ConvertOptions, sizes: QwenSizes, dtype: torch.dtype
) -> list[dict[str, Tensor]]:
    """The layer's tensors by TensorRT-LLM's names within it, once for each of `options.tp` GPUs.

    Args:
        layer: in any float dtype.
        ranges: of activations; needed where `options.needs_calibration`.
        options: what to make.
        sizes: of the whole model.
        dtype: of everything that is not quantised.

    Raises:
        CheckpointError: the dtype cannot hold a value.
    """
    if options.smoothquant is not None:
        assert ranges is not None
        made = _smoothed(layer, ranges, options, options.smoothquant, sizes, dtype)
    else:
        made = _plain(layer, options, sizes, dtype)
    if options.int8_kv_cache:
        assert ranges is not None
        scale = (ranges.qkv_output / 127).reshape(1)
        for tensors in made:
            tensors["attention.kv_cache_scaling_factor"] = scale
    return made


def cast(tensor: Tensor, dtype: torch.dtype, name: str, way_out: str = "choose bfloat16 or float32") -> Tensor:
    """The tensor as `dtype`.

    Raises:
        CheckpointError: it holds a value that the dtype does not, or one that is no number.
    """
    narrow = tensor.to(dtype)
    if not tensor.is_meta and not bool(narrow.isfinite().all()):
        shown = str(dtype).removeprefix("torch.")
        reason = (
            f"has values that {shown} cannot hold; {way_out}"
            if bool(tensor.isfinite().all())
            else "has values that are no finite numbers; download the model again"
        )
        raise CheckpointError(f"model: {name} {reason}")
    return narrow


def _fused(layer: Layer, kind: str) -> Tensor:
    return torch.cat([layer[f"{name}.{kind}"] for name in QKV])


def _plain(layer: Layer, options: ConvertOptions, sizes: QwenSizes, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    weights = {"attention.qkv": _fused(layer, "weight"), **{ours: layer[f"{hf}.weight"] for ours, hf in SINGLE.items()}}
    made = _shared(layer, options, sizes, dtype)
    for name, weight in weights.items():
        pieces = shards(cast(weight, dtype, name), CUTS[name], options.tp, sizes)
        for tensors, piece in zip(made, pieces, strict=True):
            if options.weight_only is None or options.prequantize is None:
                tensors[f"{name}.weight"] = piece
                continue
            quantised = weight_only.quantise(piece, BITS[options.weight_only], options.prequantize)
            tensors[f"{name}.weight"] = quantised.stored
            tensors[f"{name}.per_channel_scale"] = quantised.scale
    return made


def _shared(layer: Layer, options: ConvertOptions, sizes: QwenSizes, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """What is never quantised: the norms, on every GPU, and the bias."""
    norms = {f"{ours}.weight": cast(layer[f"{hf}.weight"], dtype, hf) for ours, hf in NORMS.items()}
    biases = shards(cast(_fused(layer, "bias"), dtype, "qkv bias"), Cut.QKV, options.tp, sizes)
    return [{**norms, "attention.qkv.bias": bias} for bias in biases]


def _smoothed(
    layer: Layer, ranges: LayerRanges, options: ConvertOptions, alpha: float, sizes: QwenSizes, dtype: torch.dtype
) -> list[dict[str, Tensor]]:
    half = {name: cast(tensor, torch.float16, name, _WITHOUT_SMOOTHQUANT) for name, tensor in layer.items()}
    smoothed = smoothquant.smooth(half, ranges, alpha)
    made = _shared(half, options, sizes, dtype)
    for tensors in made:
        tensors["input_layernorm.weight"] = cast(smoothed.input_norm, dtype, "input_layernorm")
        tensors["post_layernorm.weight"] = cast(smoothed.post_norm, dtype, "post_layernorm")
    for name, matrix in smoothed.matrices.items():
        if not matrix.weight.is_meta and not bool(matrix.weight.isfinite().all()):
            raise CheckpointError(
                f"model: {name}, once smoothed, has values that float16 cannot hold; {_WITHOUT_SMOOTHQUANT}"
            )
        _put_int8(made, name, matrix, options, sizes)
    return made


def _put_int8(
    made: list[dict[str, Tensor]],
    name: str,
    matrix: smoothquant.SmoothedMatrix,
    options: ConvertOptions,
    sizes: QwenSizes,
) -> None:
    cut, whole = CUTS[name], smoothquant.to_int8(matrix, per_channel=options.per_channel)
    scale = whole.from_int
    if not options.per_token:
        scale, of_output, of_input = smoothquant.static_scales(matrix, whole.to_int)
        for tensors in made:
            tensors[f"{name}.act_scale"] = of_output
            if name in INPUT_SCALE:
                tensors[INPUT_SCALE[name]] = of_input
    elif name in INPUT_SCALE and matrix.smoother is None:
        for tensors in made:
            tensors[INPUT_SCALE[name]] = torch.ones(1, device=scale.device)
    scales = [scale] * options.tp if cut is Cut.COLUMNS or len(scale) == 1 else shards(scale, cut, options.tp, sizes)
    weights = shards(whole.weight, cut, options.tp, sizes)
    smoothers = [None] * options.tp if matrix.smoother is None else matrix.smoother.chunk(options.tp)
    for tensors, weight, one_scale, smoother in zip(made, weights, scales, smoothers, strict=True):
        tensors[f"{name}.weight"] = weight
        tensors[f"{name}.per_channel_scale"] = one_scale.reshape(1, -1)
        if smoother is not None:
            tensors[f"{name}.smoother"] = smoother.reshape(1, -1)
