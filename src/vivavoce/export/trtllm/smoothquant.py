"""SmoothQuant (arXiv:2211.10438): int8 weights and int8 inputs, whose outliers were moved into the weights.

Each input channel is divided by s and its column of weights multiplied by it. Where a norm stands in front, its
weight is divided instead; the attention's output and the MLP's inner channels are divided while the engine runs (the
`smoother`). The order of the roundings is that of TensorRT-LLM: weights and their scales are float16 throughout,
s is float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.export.trtllm.ranges import LayerRanges

_LIMIT = 127
_LEAST = 1e-5
_LEAST_HALF = 2.0**-24
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True, eq=False)
class SmoothedMatrix:
    """A matrix that reads inputs divided by s.

    weight: [outputs, inputs] float16, multiplied by s; inputs: [inputs] float64, the largest ones after the
    division; output: the largest output, one number in float32; smoother: s, [inputs] float32, where no norm does the
    division; parts: outputs that share a scale where there is one for each matrix.
    """

    weight: Tensor
    inputs: Tensor
    output: Tensor
    parts: tuple[int, ...]
    smoother: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SmoothedLayer:
    """A layer's matrices by TensorRT-LLM's names, and the weights of its two norms, [hidden] float16."""

    matrices: dict[str, SmoothedMatrix]
    input_norm: Tensor
    post_norm: Tensor


@dataclass(frozen=True, eq=False)
class Int8Matrix:
    """weight: [outputs, inputs] int8; to_int, from_int: the scales [outputs] or [1], float32, 127 over the largest
    weight and its reciprocal.
    """

    weight: Tensor
    to_int: Tensor
    from_int: Tensor


def smooth(layer: Mapping[str, Tensor], ranges: LayerRanges, alpha: float) -> SmoothedLayer:
    """layer: tensors of one layer by Hugging Face's names within it, float16."""
    weight = {name.removesuffix(".weight"): tensor for name, tensor in layer.items()}
    query_key_value = torch.cat([weight[name] for name in _QKV])
    s_qkv = _strength([query_key_value], ranges.inputs[_QKV[0]], alpha)
    s_dense = _strength([weight["self_attn.o_proj"]], ranges.inputs["self_attn.o_proj"], alpha)
    s_fc = _strength([weight["mlp.gate_proj"], weight["mlp.up_proj"]], ranges.inputs["mlp.gate_proj"], alpha)
    s_proj = _strength([weight["mlp.down_proj"]], ranges.inputs["mlp.down_proj"], alpha)

    def matrix(name: str, s: Tensor, smoother: bool = False) -> SmoothedMatrix:
        smoothed = (weight[name] * s).half()
        inputs, output = ranges.inputs[name] / s, ranges.outputs[name].max()
        return SmoothedMatrix(smoothed, inputs, output, (len(smoothed),), s.float() if smoother else None)

    qkv = SmoothedMatrix(
        (query_key_value * s_qkv).half(),
        ranges.inputs[_QKV[0]] / s_qkv,
        ranges.qkv_output,
        tuple(len(weight[name]) for name in _QKV),
    )
    return SmoothedLayer(
        {
            "attention.qkv": qkv,
            "attention.dense": matrix("self_attn.o_proj", s_dense, smoother=True),
            "mlp.fc": matrix("mlp.gate_proj", s_fc),
            "mlp.gate": matrix("mlp.up_proj", s_fc),
            "mlp.proj": matrix("mlp.down_proj", s_proj, smoother=True),
        },
        input_norm=(weight["input_layernorm"] / s_qkv).half(),
        post_norm=(weight["post_attention_layernorm"] / s_fc).half(),
    )


def to_int8(matrix: SmoothedMatrix, *, per_channel: bool) -> Int8Matrix:
    """The nearest whole numbers, half to even, of −127 … 127."""
    weight, rows = matrix.weight.float(), matrix.weight.abs().amax(dim=1)
    if per_channel:
        to_int, from_int = _scales(rows)
        return Int8Matrix(_whole(weight * to_int[:, None]), to_int, from_int)
    to_int, from_int = _scales(torch.stack([part.max() for part in rows.split(matrix.parts)]))
    if len(matrix.parts) == 1:
        return Int8Matrix(_whole((weight * to_int).half()), to_int, from_int)
    to_int, from_int = (
        torch.cat([one.expand(size) for one, size in zip(scale, matrix.parts, strict=True)])
        for scale in (to_int, from_int)
    )
    return Int8Matrix(_whole((weight / from_int[:, None]).half()), to_int, from_int)


def static_scales(matrix: SmoothedMatrix, to_int: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three scales of a product whose inputs' scale is fixed.

    Returns:
        [1] or [outputs], what turns the sum of whole numbers into a number of the outputs' int8 range; one number,
        the outputs' scale; one number, what inputs are multiplied by. All float32.
    """
    # A number divided by a tensor is torch's reciprocal and product: two roundings, which the reference has as well.
    of_inputs = matrix.inputs.max().reciprocal() * _LIMIT
    of_output = matrix.output.reciprocal() * _LIMIT
    accumulated = of_output / (of_inputs * to_int[0] if len(to_int) == 1 else of_inputs * to_int)
    return accumulated.float().reshape(-1), matrix.output / _LIMIT, of_inputs.float()


def _scales(largest: Tensor) -> tuple[Tensor, Tensor]:
    """largest: float16  →  127 over it and that one's reciprocal, float32."""
    half = largest.reciprocal() * _LIMIT
    # Below 0.002 the scale is beyond float16.
    wide = _LIMIT / largest.float().clamp(min=_LEAST_HALF)
    fits = half.isfinite()
    return torch.where(fits, half.float(), wide), torch.where(fits, half.reciprocal().float(), wide.reciprocal())


def _whole(values: Tensor) -> Tensor:
    return values.round().clamp(-_LIMIT, _LIMIT).to(torch.int8)


def _strength(weights: Sequence[Tensor], inputs: Tensor, alpha: float) -> Tensor:
    """s: [inputs] float64."""
    columns = torch.stack([weight.abs().amax(dim=0) for weight in weights]).amax(dim=0)
    wide = columns.double().clamp(min=_LEAST)
    return (inputs.double().clamp(min=_LEAST).pow(alpha) / wide.pow(1 - alpha)).clamp(min=_LEAST)
