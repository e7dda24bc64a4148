"""The token encoder for packed rows, without padding and without synchronising with the GPU.

A batch has the new tokens of all rows, one row after another. Some values are computed in advance:

- The embedded token depends only on the token's id: one table has the values of all ids.
- The keys of relative positions are constant: each attention layer has a table of all possible distances.
- All output biases of attention and feed-forward are added before the first block of each half, and every LayerNorm
  subtracts the biases of later blocks. So matrix products can add to the residual stream in place.
- Before the upsampling convolution, all frames of a token are equal. So the convolution's taps are summed for each
  token, and the linear layer after the convolution is multiplied into its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vivavoce.checkpoint.config import TokenEncoderConfig
from vivavoce.models.flow.model import MAX_FRAMES, Flow
from vivavoce.models.flow.unet import HISTORY_KERNEL, UPSAMPLING_KERNEL, TokenEncoder
from vivavoce.models.layers import ConformerBlock, relative_positions
from vivavoce.models.layout import biases_ahead, joined
from vivavoce_kernels.common import tile_of
from vivavoce_kernels.encoder_attention import SPARE, RelativePlaces, RelativeTile, RelativeWeights, attend_relatively
from vivavoce_kernels.encoder_windows import EncoderTails, windows_ahead, windows_behind
from vivavoce_kernels.flow_products import ProductTile, product
from vivavoce_kernels.flow_rows import ShiftedNorm, layer_norm, silu_


@dataclass(frozen=True)
class EncoderCuts:
    attention: RelativeTile
    rows: int
    products: ProductTile | None = None


FEW_TOKENS = 256  # with at most this many packed tokens, small tiles use the GPU better

_FEW = EncoderCuts(RelativeTile(16, 4, 3), 4)
_MANY = EncoderCuts(RelativeTile(64, 8, 3), 4)
_INVARIANT = EncoderCuts(RelativeTile(64, 8, 3), 4, ProductTile(64, 128, 64, 4, 3))


def encoder_cuts(tokens: int, *, invariant: bool) -> EncoderCuts:
    """Choose tile sizes. invariant: choose equal sizes for all batches, so that the batch does not change a result."""
    if invariant:
        return _INVARIANT
    return _FEW if tokens <= FEW_TOKENS else _MANY


class EncoderTables(NamedTuple):
    """Positions of packed tokens. All tensors are int32.

    ids [tokens, 1 + lookahead]: a packed token's id and the next ids of its row; −1 means an embedding of zeros. row,
    local, ends [tokens]: a token's row, its index among the row's new tokens (−1 for padding), and the number of the
    row's first tokens that it attends to (0 for padding). frame_ends [frames]: number of the row's first frames that a
    frame attends to. first, length, past [rows]: packed index of the row's first new token, number of new tokens,
    number of earlier tokens. slots [rows]: index of the row's tails in `EncoderPast.tails`. tiles, frame_tiles [tiles,
    3]: the tokens or frames that one program of the attention kernel computes: row, first packed position, number of
    positions (0 if none). pages [rows, width]: the pages of each row in order; width is 0 if rows have no pages.
    """

    ids: Tensor
    row: Tensor
    local: Tensor
    ends: Tensor
    frame_ends: Tensor
    first: Tensor
    length: Tensor
    past: Tensor
    slots: Tensor
    tiles: Tensor
    frame_tiles: Tensor
    pages: Tensor


class EncoderPast(NamedTuple):
    """Cached state. keys: keys and values [pages, 1, sites, 1, page, 2 · size]; tails: last inputs of convolutions."""

    keys: Tensor
    tails: EncoderTails


@dataclass(frozen=True, eq=False)
class EncoderBatch:
    """A batch of tokens. mu: [frames, bins], the output. past: cached state at token rate and at mel rate, or None."""

    tables: EncoderTables
    mu: Tensor
    past: tuple[EncoderPast, EncoderPast] | None


Linear = tuple[Tensor, Tensor]  # matrix [out, in], contiguous, and bias [out]


class EncoderBlock(NamedTuple):
    """Weights of a block. mixed, contract: [out, in]; their biases are added before the first block."""

    attention_norm: ShiftedNorm
    queries_and_keys: Linear
    relative: RelativeWeights
    mixed: Tensor
    feed_forward_norm: ShiftedNorm
    expand: Linear
    contract: Tensor


@dataclass(frozen=True, eq=False)
class PackedEncoderWeights:
    """embedded: [ids, size], the embedded tokens. start: [size] float32, biases that are added to the embedded tokens.
    look_ahead: convolution over 1 + `lookahead` tokens. look_back: [size, taps · size], convolution over earlier
    tokens; its bias is part of `start`. upsample: [upsampling · size, `up_taps` · size]. up_norm: the norm after
    upsampling, with the embedding's scale and the upper blocks' biases."""

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
        encoder = flow.encoder
        assert isinstance(encoder, TokenEncoder)
        up, table = encoder.config.upsampling, flow.token_embedding.weight
        blocks, ahead = _blocks(encoder.blocks, MAX_FRAMES // up)
        up_blocks, up_ahead = _blocks(encoder.up_blocks, MAX_FRAMES)
        nothing, scale, of_up = torch.zeros_like(ahead), encoder.up_embed.scale, encoder.up_embed.norm
        return cls(
            encoder.embed(table),
            _bias(encoder.history_conv) + ahead,
            (windowed(encoder.lookahead_conv), _bias(encoder.lookahead_conv).to(table.dtype)),
            windowed(encoder.history_conv),
            blocks,
            up_taps(up),
            _upsampling(encoder),
            ShiftedNorm(nothing, of_up.weight.float() * scale, of_up.bias.float() * scale + up_ahead, of_up.eps),
            up_blocks,
            ShiftedNorm.of(encoder.norm, nothing),
            (encoder.mu_projection.weight, encoder.mu_projection.bias),
        )


def up_taps(upsampling: int) -> int:
    """Return the number of tokens that the upsampling convolution reads for the frames of a token."""
    return 1 + -(-(UPSAMPLING_KERNEL - 1) // upsampling)


def _blocks(modules: nn.ModuleList, reach: int) -> tuple[tuple[EncoderBlock, ...], Tensor]:
    """Pack the blocks; also return the sum [size] float32 of their output biases. reach: maximum length of a row."""
    blocks = [cast(ConformerBlock, block) for block in modules]
    ahead = biases_ahead([bias for one in blocks for bias in (one.attention.out.bias, one.feed_forward.contract.bias)])
    packed = [_block(block, -ahead[2 * index], -ahead[2 * index + 1], reach) for index, block in enumerate(blocks)]
    return tuple(packed), ahead[0]


def _block(block: ConformerBlock, before_attention: Tensor, before_feed_forward: Tensor, reach: int) -> EncoderBlock:
    attention, feed_forward = block.attention, block.feed_forward
    parts, weight = (attention.query, attention.key, attention.value), attention.position.weight
    # Distances from reach − 1 down to 1 − reach, with zeros at both ends.
    keys = attention.position(relative_positions(reach, reach, weight.shape[1], weight.device, weight.dtype))
    distances = pad(keys.unflatten(1, (attention.num_heads, -1)).transpose(0, 1), (0, 0, SPARE, SPARE + 1))
    return EncoderBlock(
        ShiftedNorm.of(block.attention_norm, before_attention),
        (joined([part.weight for part in parts]), torch.cat([part.bias for part in parts])),
        RelativeWeights(distances.contiguous(), attention.content_bias.flatten(), attention.position_bias.flatten()),
        attention.out.weight,
        ShiftedNorm.of(block.feed_forward_norm, before_feed_forward),
        (feed_forward.expand.weight, feed_forward.expand.bias),
        feed_forward.contract.weight,
    )


def windowed(conv: nn.Conv1d) -> Tensor:
    """Return a convolution's weight as a matrix [out, kernel · in], for products with windows of its input."""
    return conv.weight.permute(0, 2, 1).flatten(1).contiguous()


def _bias(conv: nn.Conv1d) -> Tensor:
    assert conv.bias is not None
    return conv.bias.float()


def _upsampling(encoder: TokenEncoder) -> Linear:
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


class PackedEncoder:
    """Runs the token encoder on packed rows. invariant: slower, but a row's result depends neither on other rows, nor
    on whether its past was cached or is recomputed. Raises ValueError if the kernels do not support the sizes."""

    def __init__(self, flow: Flow, *, invariant: bool = False) -> None:
        config = flow.encoder.config
        assert isinstance(config, TokenEncoderConfig)
        for size in (config.hidden_size, config.feed_forward_size, flow.config.num_mel_bins):
            tile_of(size, 16)
        self._weights, self._up, self._invariant = PackedEncoderWeights.of(flow), config.upsampling, invariant

    def cuts(self, tokens: int) -> EncoderCuts:
        return encoder_cuts(tokens, invariant=self._invariant)

    def encode(self, batch: EncoderBatch) -> None:
        """Write `batch.mu`, and update the cached keys, values and tails in `batch.past`."""
        tables, weights, up = batch.tables, self._weights, self._up
        cuts = self.cuts(len(tables.row))
        places, cut = (tables.row, tables.local, tables.length), cuts.products
        of_tokens, of_frames = batch.past or (None, None)
        windows, x = windows_ahead(tables.ids, weights.embedded, weights.start, cuts.rows)
        ahead = product(windows, *weights.look_ahead, cut)
        tails = of_tokens.tails if of_tokens else None
        windows = windows_behind(ahead, places, tails, HISTORY_KERNEL, cuts.rows, leaky=True)
        product(windows, weights.look_back, None, cut, into=x)
        at_token_rate = RelativePlaces(tables.tiles, tables.ends, tables.first, tables.past, tables.pages)
        _run_blocks(x, weights.blocks, at_token_rate, of_tokens, 1, cuts)
        windows = windows_behind(x, places, of_frames.tails if of_frames else None, weights.up_taps, cuts.rows, rate=up)
        x = layer_norm(product(windows, *weights.upsample, cut).view(len(batch.mu), -1), weights.up_norm, cuts.rows)
        at_mel_rate = at_token_rate._replace(tiles=tables.frame_tiles, ends=tables.frame_ends)
        _run_blocks(x, weights.up_blocks, at_mel_rate, of_frames, up, cuts)
        batch.mu.copy_(product(layer_norm(x, weights.norm, cuts.rows), *weights.mu, cut))


def _run_blocks(
    x: Tensor,
    blocks: tuple[EncoderBlock, ...],
    places: RelativePlaces,
    past: EncoderPast | None,
    rate: int,
    cuts: EncoderCuts,
) -> None:
    keys, cut = past.keys if past else None, cuts.products
    for site, block in enumerate(blocks):
        products = product(layer_norm(x, block.attention_norm, cuts.rows), *block.queries_and_keys, cut)
        mixed = attend_relatively(products, keys, places, block.relative, site, cuts.attention, rate=rate)
        product(mixed, block.mixed, None, cut, into=x)
        wide = product(layer_norm(x, block.feed_forward_norm, cuts.rows), *block.expand, cut)
        product(silu_(wide), block.contract, None, cut, into=x)
