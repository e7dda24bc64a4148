"""The velocity estimator over packed rows, and its solver, without padding of rows and without waiting for the GPU.

A batch has the new frames of all rows, one row after another, in tensors of fixed size. Guidance evaluates each frame
twice: row i of a tensor [2 · frames, …] is frame i with its conditions, row frames + i is frame i without conditions.

Most weights are views of the network's parameters. All output biases of attention and feed-forward are added at a
level's start, with the resnet block's shortcut, and every LayerNorm subtracts the biases of later blocks. So matrix
products can add to the residual stream in place, and no kernel is launched only to add a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from vivavoce.models.flow.dit import DiT
from vivavoce.models.flow.model import FlowSchedule
from vivavoce.models.flow.unet import CausalConv, Level, TransformerBlock, UNet
from vivavoce.models.layout import biases_ahead, joined
from vivavoce_kernels.common import tile_of
from vivavoce_kernels.cuda_kernel import compiled_kernel, takes_clusters
from vivavoce_kernels.flow_attention import AttentionTile, keep_in_pages
from vivavoce_kernels.flow_products import ConvTails, ConvTile, ConvWeights, ProductTile, causal_conv, product
from vivavoce_kernels.flow_rows import ShiftedNorm, advance, layer_norm
from vivavoce_kernels.layouts import PackedTables
from vivavoce_kernels.row_attention import attention_for
from vivavoce_kernels.short_rows import SOURCE, Block, Evaluation, Linear, Resnet, ShortLevels
from vivavoce_kernels.short_rows import Level as ShortLevel


@dataclass(frozen=True)
class Cuts:
    attention: AttentionTile
    conv: ConvTile
    products: ProductTile | None = None


FEW_FRAMES = 512  # with at most this many packed frames, small tiles use the GPU better
NORM_ROWS = 16  # rows of each LayerNorm program
MANY_FRAMES = 4096  # with at least this many packed frames, large tiles use the GPU better

_FEW = Cuts(AttentionTile(64, 4, 3), ConvTile(16, 64, 4, 3))
_SOME = Cuts(AttentionTile(64, 4, 3), ConvTile(32, 64, 4, 3))
_MANY = Cuts(AttentionTile(64, 4, 3), ConvTile(128, 64, 8, 3))
_INVARIANT = Cuts(AttentionTile(64, 4, 3), ConvTile(64, 64, 8, 3), ProductTile(128, 128, 64, 8, 3))


def cuts_of(frames: int, *, invariant: bool) -> Cuts:
    """Choose tile sizes. invariant: choose equal sizes for all batches, so that a row has the same bits in each."""
    if invariant:
        return _INVARIANT
    if frames <= FEW_FRAMES:
        return _FEW
    return _MANY if frames >= MANY_FRAMES else _SOME


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Tensors that one evaluation reads and updates in place.

    x: [frames, bins] float32, the solution at the beginning of the solver's current step.
    features: [2 · frames, in], the estimator's inputs side by side: the point where the velocity is evaluated, mu, the
    speaker and the condition; without conditions, all but the point are zeros.
    step: [2] int32, the index of the evaluation among those of all schedules, and its index in its own schedule, which
    is also the index of the cached state for this evaluation.
    keys: the pages of keys and values, as in `flow_attention.attend`. tails: the last inputs of the convolutions. Both
    are None if rows have no past and leave no state.
    short: whether every row has pages and at most `layouts.SHORT_FRAMES` frames.
    """

    x: Tensor
    features: Tensor
    step: Tensor
    tables: PackedTables
    keys: Tensor | None
    tails: ConvTails | None
    short: bool = False

    @property
    def kept_at(self) -> Tensor:
        """[1] int32, the evaluation's index in its own schedule: which cached state is read and written."""
        return self.step[1:]


class BlockWeights(NamedTuple):
    attention_norm: ShiftedNorm
    queries_and_keys: Tensor
    mixed: Tensor
    feed_forward_norm: ShiftedNorm
    expand: Tensor
    expand_bias: Tensor
    contract: Tensor


class LevelWeights(NamedTuple):
    """shortcut: weight [out, in] and bias [out], which includes all output biases of the level."""

    convs: tuple[ConvWeights, ConvWeights]
    norms: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    shortcut: tuple[Tensor, Tensor]
    blocks: tuple[BlockWeights, ...]
    closing: ConvWeights | None


def _level(level: Level) -> LevelWeights:
    resnet, blocks = level.resnet, [cast(TransformerBlock, block) for block in level.blocks]
    ahead = biases_ahead([bias for one in blocks for bias in (one.attention.out.bias, one.feed_forward.contract.bias)])
    assert resnet.shortcut.bias is not None
    return LevelWeights(
        (_conv(resnet.conv1), _conv(resnet.conv2)),
        ((resnet.norm1.weight, resnet.norm1.bias), (resnet.norm2.weight, resnet.norm2.bias)),
        (resnet.shortcut.weight[..., 0].contiguous(), resnet.shortcut.bias.float() + ahead[0]),
        tuple(_block(block, -ahead[2 * index], -ahead[2 * index + 1]) for index, block in enumerate(blocks)),
        _conv(level.conv) if hasattr(level, "conv") else None,
    )


def _block(block: TransformerBlock, before_attention: Tensor, before_feed_forward: Tensor) -> BlockWeights:
    attention, feed_forward = block.attention, block.feed_forward
    return BlockWeights(
        ShiftedNorm.of(block.attention_norm, before_attention),
        joined((attention.query.weight, attention.key.weight, attention.value.weight)),
        attention.out.weight,
        ShiftedNorm.of(block.feed_forward_norm, before_feed_forward),
        feed_forward.expand.weight,
        feed_forward.expand.bias,
        feed_forward.contract.weight,
    )


def _conv(conv: CausalConv) -> ConvWeights:
    assert conv.bias is not None
    return ConvWeights(conv.weight.permute(0, 2, 1).contiguous(), conv.bias, conv.first)


def _levels_of(unet: UNet) -> list[Level]:
    return [cast(Level, level) for level in (unet.down, *unet.mid, unet.up)]


def _short_levels(unet: UNet) -> tuple[ShortLevels, ...] | None:
    """Return the first level's blocks, all inner levels, and the last level's blocks, for batches of short rows; None
    if this network or device has no kernel for short rows."""
    config, weight = unet.config, unet.out.weight
    sizes = (config.channels, config.num_heads, config.head_dim)
    if sizes != ShortLevels.SIZES or not unet.mid or not takes_clusters(weight):
        return None
    kernel = compiled_kernel(SOURCE, weight.device, "first chunks take longer")
    if kernel is None:
        return None
    first, *middle, last = _levels_of(unet)
    inner = [short_level(level, with_resnet=True) for level in middle]
    ends = [[short_level(level, with_resnet=False)] for level in (first, last)]
    parts = ((ends[0], 0), (inner, 1), (ends[1], 1 + len(middle)))
    return tuple(ShortLevels(part, first, kernel) for part, first in parts)


def short_level(level: Level, *, with_resnet: bool) -> ShortLevel:
    blocks = [_short_block(cast(TransformerBlock, block)) for block in level.blocks]
    if not with_resnet:
        return ShortLevel(None, blocks)
    weights, bias = _level(level), level.resnet.shortcut.bias
    assert bias is not None
    return ShortLevel(Resnet(weights.convs, weights.norms, Linear(weights.shortcut[0], bias)), blocks)


def _short_block(block: TransformerBlock) -> Block:
    attention, feed_forward = block.attention, block.feed_forward
    products = joined((attention.query.weight, attention.key.weight, attention.value.weight))
    expand, contract = feed_forward.expand, feed_forward.contract
    return Block(
        Linear.behind(block.attention_norm, products, None),
        Linear(attention.out.weight, attention.out.bias),
        Linear.behind(block.feed_forward_norm, expand.weight, expand.bias),
        Linear(contract.weight, contract.bias),
    )


class PackedEstimator:
    """Computes `model.Path.step` for packed rows. schedules: all schedules in use; guidance: the strength of
    classifier-free guidance; invariant: slower, but a row's bits do not depend on the other rows of its batch. Raises
    ValueError if the kernels do not support the network's sizes."""

    takes_short = False  # whether there is a kernel for batches of short rows

    def __init__(
        self, network: UNet | DiT, schedules: Sequence[FlowSchedule], guidance: float, *, invariant: bool = False
    ) -> None:
        config, weight = network.config, network.out.weight
        self._attend = attention_for(weight, config.num_heads, config.head_dim)
        self._guidance, self._invariant = guidance, invariant
        spans = [(one.reach, one.move) for schedule in schedules for one in schedule.evaluations]
        self._spans = torch.tensor(spans, device=weight.device)

    def cuts(self, frames: int) -> Cuts:
        return cuts_of(frames, invariant=self._invariant)

    def step(self, batch: PackedBatch) -> None:
        velocity = self.velocity(batch)
        advance(batch.x, velocity, batch.features, self._spans, batch.step, self._guidance)

    def velocity(self, batch: PackedBatch) -> Tensor:
        """Return velocities [2 · frames, bins], with conditions, then without; values of padding are arbitrary."""
        raise NotImplementedError


class PackedUNet(PackedEstimator):
    @torch.no_grad()
    def __init__(
        self, unet: UNet, schedules: Sequence[FlowSchedule], guidance: float, *, invariant: bool = False
    ) -> None:
        super().__init__(unet, schedules, guidance, invariant=invariant)
        config = unet.config
        for size in (config.in_channels, config.out_channels, config.channels, config.num_heads * config.head_dim):
            tile_of(size, 16)
        assert unet.out.bias is not None
        self._levels = [_level(level) for level in _levels_of(unet)]
        self._final, self._final_norm = _conv(unet.final_conv), (unet.final_norm.weight, unet.final_norm.bias)
        self._velocity = unet.out.weight[..., 0].contiguous(), unet.out.bias
        self._times = torch.stack([bias for one in schedules for bias in one.biases]).flatten(1, -2).contiguous()
        self._short = None if invariant else _short_levels(unet)
        self.takes_short = self._short is not None

    def velocity(self, batch: PackedBatch) -> Tensor:
        cuts, tables = self.cuts(len(batch.x)), batch.tables
        places, last = (tables.row, tables.local, tables.length), len(self._levels) - 1

        def conv(
            x: Tensor, weights: ConvWeights | None, norm: tuple[Tensor, Tensor] | None = None, **more: Any
        ) -> Tensor:
            assert weights is not None
            return causal_conv(x, weights, places, batch.tails, cuts.conv, norm=norm, **more)

        def short(x: Tensor, number: int) -> bool:
            if not batch.short or self._short is None or batch.keys is None or batch.tails is None:
                return False
            part = self._short[0 if number == 0 else 1 if number < last else 2]
            part(x, batch.keys, batch.tails, tables, Evaluation(self._times, batch.step))
            return True

        def level(x: Tensor, number: int) -> Tensor:
            weights = self._levels[number]
            h = conv(x, weights.convs[0], weights.norms[0], time=(self._times, batch.step, number))
            h = conv(h, weights.convs[1], weights.norms[1], skip=(x, *weights.shortcut))
            if short(h, number):
                return h
            for index, block in enumerate(weights.blocks):
                self._block(h, block, batch, cuts, number * len(weights.blocks) + index)
            return h

        skip = level(batch.features, 0)
        h = conv(skip, self._levels[0].closing)
        if not short(h, 1):
            for number in range(1, last):
                h = level(h, number)
        h = conv(level(torch.cat((h, skip), dim=1), last), self._levels[last].closing)
        return product(conv(h, self._final, self._final_norm), *self._velocity, cuts.products)

    def _block(self, x: Tensor, block: BlockWeights, batch: PackedBatch, cuts: Cuts, site: int) -> None:
        products = product(layer_norm(x, block.attention_norm, NORM_ROWS), block.queries_and_keys, None, cuts.products)
        if batch.keys is not None:
            keep_in_pages(products, batch.keys, batch.tables, batch.kept_at, site)
        mixed = self._attend(products, batch.keys, batch.tables, batch.kept_at, site, cuts.attention)
        product(mixed, block.mixed, None, cuts.products, into=x)
        normal = layer_norm(x, block.feed_forward_norm, NORM_ROWS)
        wide = product(normal, block.expand, block.expand_bias, cuts.products, gelu="none")
        product(wide, block.contract, None, cuts.products, into=x)
