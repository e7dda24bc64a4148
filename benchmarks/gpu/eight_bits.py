"""Eight bits in the plain networks: numbers are rounded as the kernels round them, the arithmetic stays as it is.

So what eight bits do to speech can be heard on any device; the kernels' own sums differ within their rounding.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from vivavoce.engine.precision import Precision
from vivavoce.models.build import Models
from vivavoce.models.flow.unet import TransformerBlock, UNet
from vivavoce.models.lm.qwen2 import Layer, SpeechLM
from vivavoce.models.quantised import GROUP, EightBits, e4m3_rows, int8_rows


def emulate(models: Models, precision: Precision) -> None:
    """Round the weights in place, and have the flow's products round what they read."""
    if precision.int8_lm:
        round_language_model(models.lm)
    if precision.fp8_flow:
        round_flow(models.flow.estimator)


def round_language_model(lm: SpeechLM) -> None:
    """The layers' matrices to int8."""
    for layer in (cast(Layer, one) for one in lm.layers):
        attention, mlp = layer.attention, layer.mlp
        parts = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        for linear in (*parts, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            _replace(linear, int8_rows(linear.weight))


def round_flow(estimator: UNet) -> None:
    """The transformer blocks' matrices, and the rows that they are multiplied with, to e4m3."""
    for block in (module for module in estimator.modules() if isinstance(module, TransformerBlock)):
        attention, feed_forward = block.attention, block.feed_forward
        for linear in (attention.query, attention.key, attention.value, attention.out, *feed_forward.children()):
            assert isinstance(linear, nn.Linear)
            _replace(linear, e4m3_rows(linear.weight))
        for norm in (block.attention_norm, block.feed_forward_norm):
            norm.register_forward_hook(_rounding_output)
        attention.out.register_forward_pre_hook(_rounding_groups(GROUP))
        inner = feed_forward.contract.in_features
        feed_forward.contract.register_forward_pre_hook(_rounding_groups(min(GROUP, inner & -inner)))


def rounded_groups(x: Tensor, size: int) -> Tensor:
    """Rows [..., channels] to e4m3, `size` channels from the first on with one scale."""
    parts = x.split(size, dim=-1)
    return torch.cat([e4m3_rows(part.flatten(0, -2)).widened().view(part.shape) for part in parts], dim=-1).to(x.dtype)


def _replace(linear: nn.Linear, eight: EightBits) -> None:
    with torch.no_grad():
        linear.weight.copy_(eight.widened())


def _rounding_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return rounded_groups(output, output.shape[-1])


def _rounding_groups(size: int) -> Any:
    def rounded(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounded_groups(inputs[0], size),)

    return rounded
