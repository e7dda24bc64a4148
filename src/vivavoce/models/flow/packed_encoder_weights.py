"""The token encoder's weights as the packed path reads them: worked out once, with what is the same for all batches.

- What a token is embedded as depends on its id alone: a table of all ids.
- So do the keys of distances: a table for each attention, of all distances that can occur.
- The output biases of attention and feed-forward are not added where they arise. All of a half's are added before its
  first block, and every LayerNorm takes away what is not due yet: the products add to the residual stream in place.
- A token's frames are alike before the upsampling convolution, so its taps fall together by tokens; and the linear
  layer that reads its result is folded into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vivavoce.models.flow.biases_ahead import biases_ahead
from vivavoce.models.flow.layout import joined
from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.models.flow.model import Flow
from vivavoce.models.flow.token_encoder import UPSAMPLING_KERNEL, ConformerBlock, TokenEncoder
from vivavoce.models.kernels.encoder_attention import SPARE, RelativeWeights
from vivavoce.models.kernels.encoder_norm import ShiftedNorm
from vivavoce.models.layers.relative_attention import relative_positions

Linear = tuple[Tensor, Tensor]
"""A matrix [out, in], contiguous, and a bias [out]."""


@dataclass(frozen=True, eq=False)
class EncoderBlock:
    """A conformer block; mixed and contract: [out, in], their biases are added elsewhere."""

    attention_norm: ShiftedNorm
    queries_and_keys: Linear
    relative: RelativeWeights
    mixed: Tensor
    feed_forward_norm: ShiftedNorm
    expand: Linear
    contract: Tensor


@dataclass(frozen=True, eq=False)
class PackedEncoderWeights:
    """The whole network.

    embedded: [ids, size]; start: [size] float32, what is added to embedded tokens besides; look_ahead: over the windows
    of `lookahead` tokens more; look_back: [size, windows], whose bias is in `start`; upsample: [upsampling · size,
    windows of `up_taps` tokens]; up_norm: after it, with its scale and what the upper blocks' biases add.
    """

    embedded: Tensor
    start: Tensor
    look_ahead: Linear
    look_back: Tensor
    blocks: tuple[EncoderBlock, ...]
    up_taps: int
    upsample: Linear
    up_norm: ShiftedNorm
    up_blocks: tuple[EncoderBlock, ...]
    norm: ShiftedNorm
    mu: Linear

    @classmethod
    @torch.no_grad()
    def of(cls, flow: Flow) -> PackedEncoderWeights:
        """Those of a flow; what is not worked out anew is shared with it."""
        encoder = flow.encoder
        up, table = encoder.config.upsampling, flow.token_embedding.weight
        blocks, ahead = _blocks(encoder.blocks, MAX_FRAMES // up)
        up_blocks, up_ahead = _blocks(encoder.up_blocks, MAX_FRAMES)
        nothing, scale, of_up = torch.zeros_like(ahead), encoder.up_embed.scale, encoder.up_embed.norm
        return cls(
            encoder.embed(table),
            _bias(encoder.history_conv) + ahead,
            (_windowed(encoder.lookahead_conv), _bias(encoder.lookahead_conv).to(table.dtype)),
            _windowed(encoder.history_conv),
            blocks,
            up_taps(up),
            _upsampling(encoder),
            ShiftedNorm(nothing, of_up.weight.float() * scale, of_up.bias.float() * scale + up_ahead, of_up.eps),
            up_blocks,
            ShiftedNorm(nothing, encoder.norm.weight, encoder.norm.bias, encoder.norm.eps),
            (encoder.mu_projection.weight, encoder.mu_projection.bias),
        )


def up_taps(upsampling: int) -> int:
    """Tokens that the upsampling convolution reads for one token's frames."""
    return 1 + -(-(UPSAMPLING_KERNEL - 1) // upsampling)


def _blocks(modules: Iterable[nn.Module], reach: int) -> tuple[tuple[EncoderBlock, ...], Tensor]:
    """The blocks, and the sum of their output biases: [size] float32; reach: positions of the longest row."""
    blocks = [block for block in modules if isinstance(block, ConformerBlock)]
    ahead = biases_ahead(blocks)
    return tuple(
        _block(block, -ahead[2 * place], -ahead[2 * place + 1], reach) for place, block in enumerate(blocks)
    ), ahead[0]


def _block(block: ConformerBlock, before_attention: Tensor, before_feed_forward: Tensor, reach: int) -> EncoderBlock:
    attention, feed_forward = block.attention, block.feed_forward
    parts = (attention.query, attention.key, attention.value)
    return EncoderBlock(
        _norm(block.attention_norm, before_attention),
        (joined([part.weight for part in parts]), torch.cat([part.bias for part in parts])),
        RelativeWeights(
            _distances(attention.position, attention.num_heads, reach),
            attention.content_bias.flatten(),
            attention.position_bias.flatten(),
        ),
        attention.out.weight,
        _norm(block.feed_forward_norm, before_feed_forward),
        (feed_forward.expand.weight, feed_forward.expand.bias),
        feed_forward.contract.weight,
    )


def _norm(norm: nn.LayerNorm, shift: Tensor) -> ShiftedNorm:
    return ShiftedNorm(shift, norm.weight, norm.bias, norm.eps)


def _distances(position: nn.Linear, num_heads: int, reach: int) -> Tensor:
    """As `RelativeWeights` lays them; distances from reach − 1 down to 1 − reach, and zeros around."""
    weight = position.weight
    keys = position(relative_positions(reach, reach, weight.shape[1], weight.device, weight.dtype))
    return pad(keys.unflatten(1, (num_heads, -1)).transpose(0, 1), (0, 0, SPARE, SPARE + 1)).contiguous()


def _windowed(conv: nn.Conv1d) -> Tensor:
    """[out, kernel · in], as it multiplies windows."""
    return conv.weight.permute(0, 2, 1).flatten(1).contiguous()


def _bias(conv: nn.Conv1d) -> Tensor:
    assert conv.bias is not None
    return conv.bias.float()


def _upsampling(encoder: TokenEncoder) -> Linear:
    """Frames of a token, side by side, from the windows of tokens: the convolution, and the linear layer behind it."""
    conv, linear, up = encoder.up_conv, encoder.up_embed.linear, encoder.config.upsampling
    dtype, taps = linear.weight.dtype, up_taps(up)
    after, kernels = linear.weight.double(), conv.weight.double()
    weight = torch.zeros(up, taps, *after.shape, dtype=torch.float64, device=after.device)
    for frame in range(up):
        for tap in range(UPSAMPLING_KERNEL):
            token = (frame + tap - (UPSAMPLING_KERNEL - 1)) // up
            weight[frame, taps - 1 + token] += after @ kernels[..., tap]
    bias = after @ _bias(conv).double() + linear.bias.double()
    return weight.transpose(1, 2).reshape(up * len(after), -1).to(dtype), bias.repeat(up).to(dtype)
