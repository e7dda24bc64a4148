"""The estimator's weights as the packed path reads them: views of the network's own, and a few vectors more.

The output biases of attention and feed-forward are not added where they arise. All of a level's are added at its
start, with the resnet block's shortcut, and every LayerNorm takes away what is not due yet: so the products add to the
residual stream in place, and no launch adds a bias.

For products in e4m3 the matrices of the transformer blocks are copied, 59 MB at the released model's size; those in 16
bit stay where they are, for they are the network's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.models.flow.biases_ahead import biases_ahead
from vivavoce.models.flow.layout import joined
from vivavoce.models.flow.unet import CausalConv, Level, ResnetBlock, TransformerBlock, UNet
from vivavoce.models.kernels.flow_conv import ConvWeights
from vivavoce.models.kernels.flow_norm import Norm
from vivavoce.models.quantised import EightBits, e4m3_rows


@dataclass(frozen=True, eq=False)
class Fp8Matrices:
    """A transformer block's matrices in e4m3."""

    queries_and_keys: EightBits
    mixed: EightBits
    expand: EightBits
    contract: EightBits


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """A transformer block: norms, and matrices [out, in]; fp8: the same matrices, if products are to take those."""

    attention_norm: Norm
    queries_and_keys: Tensor
    mixed: Tensor
    feed_forward_norm: Norm
    expand: Tensor
    expand_bias: Tensor
    contract: Tensor
    fp8: Fp8Matrices | None = None


@dataclass(frozen=True, eq=False)
class LevelWeights:
    """A level: its resnet block's convolutions with their norms, its shortcut, transformer blocks, its last one.

    shortcut: weight [out, in] and bias [out], the latter with all output biases of the level.
    """

    convs: tuple[ConvWeights, ConvWeights]
    norms: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    shortcut: tuple[Tensor, Tensor]
    blocks: tuple[BlockWeights, ...]
    closing: ConvWeights | None


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """The whole network; velocity: weight [bins, channels] and bias of the last product."""

    levels: tuple[LevelWeights, ...]
    final: ConvWeights
    final_norm: tuple[Tensor, Tensor]
    velocity: tuple[Tensor, Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, unet: UNet, *, fp8: bool = False) -> PackedWeights:
        """Those of a network after `UNet.lay_out`; without it matrices are copied. fp8: with copies in e4m3."""
        norm, out = unet.final_norm, unet.out
        assert out.bias is not None
        levels = (unet.down, *unet.mid, unet.up)
        return cls(
            tuple(_level(level, fp8) for level in levels if isinstance(level, Level)),
            _conv(unet.final_conv),
            (norm.weight, norm.bias),
            (out.weight[..., 0].contiguous(), out.bias),
        )


def _level(level: Level, fp8: bool) -> LevelWeights:
    resnet: ResnetBlock = level.resnet
    blocks = [block for block in level.blocks if isinstance(block, TransformerBlock)]
    ahead = biases_ahead(blocks)
    assert resnet.shortcut.bias is not None
    return LevelWeights(
        (_conv(resnet.conv1), _conv(resnet.conv2)),
        ((resnet.norm1.weight, resnet.norm1.bias), (resnet.norm2.weight, resnet.norm2.bias)),
        (resnet.shortcut.weight[..., 0].contiguous(), resnet.shortcut.bias.float() + ahead[0]),
        tuple(_block(block, -ahead[2 * place], -ahead[2 * place + 1], fp8) for place, block in enumerate(blocks)),
        _conv(level.conv) if hasattr(level, "conv") else None,
    )


def _block(block: TransformerBlock, before_attention: Tensor, before_feed_forward: Tensor, fp8: bool) -> BlockWeights:
    attention, feed_forward = block.attention, block.feed_forward
    queries_and_keys = joined((attention.query.weight, attention.key.weight, attention.value.weight))
    matrices = (queries_and_keys, attention.out.weight, feed_forward.expand.weight, feed_forward.contract.weight)
    return BlockWeights(
        Norm(before_attention, block.attention_norm.weight, block.attention_norm.bias),
        queries_and_keys,
        attention.out.weight,
        Norm(before_feed_forward, block.feed_forward_norm.weight, block.feed_forward_norm.bias),
        feed_forward.expand.weight,
        feed_forward.expand.bias,
        feed_forward.contract.weight,
        Fp8Matrices(*(e4m3_rows(matrix) for matrix in matrices)) if fp8 else None,
    )


def _conv(conv: CausalConv) -> ConvWeights:
    assert conv.bias is not None
    return ConvWeights(conv.weight.permute(0, 2, 1).contiguous(), conv.bias, conv.first)
