"""The token encoder over packed rows: fixed shapes, no padding, nothing that waits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.models.flow.model import Flow
from vivavoce.models.flow.packed_encoder_batch import EncoderBatch, EncoderPast
from vivavoce.models.flow.packed_encoder_cuts import EncoderCuts, encoder_cuts
from vivavoce.models.flow.packed_encoder_weights import EncoderBlock, Linear, PackedEncoderWeights
from vivavoce.models.flow.token_encoder import HISTORY_KERNEL
from vivavoce.models.kernels.encoder_attention import RelativePlaces, attend_relatively
from vivavoce.models.kernels.encoder_norm import ShiftedNorm, layer_norm, silu_
from vivavoce.models.kernels.encoder_windows import windows_ahead, windows_behind
from vivavoce.models.kernels.flow_math import tile_of
from vivavoce.models.kernels.flow_product import product


class PackedEncoder:
    """Computes what `TokenEncoder.encode` does, row by row; it holds weights only.

    Args:
        flow: on the device; it is read, and shares some of its weights.
        invariant: what a row computes does not depend on its neighbours, nor on whether its past was kept or is
            computed again, to the bit; slower.

    Raises:
        ValueError: sizes that the kernels do not take.
    """

    def __init__(self, flow: Flow, *, invariant: bool = False) -> None:
        config = flow.encoder.config
        for size in (config.hidden_size, config.feed_forward_size, flow.config.num_mel_bins):
            tile_of(size, 16)
        self._weights, self._up, self._invariant = PackedEncoderWeights.of(flow), config.upsampling, invariant

    def cuts(self, tokens: int) -> EncoderCuts:
        """How a batch of so many packed tokens is cut; its attention's tiles must be of that size."""
        return encoder_cuts(tokens, invariant=self._invariant)

    def encode(self, batch: EncoderBatch) -> None:
        """Fill `batch.mu`; new keys and values go to the pages, tails to where the batch says."""
        tables, weights = batch.tables, self._weights
        run = _Run(self.cuts(len(tables.row)))
        of_tokens, of_frames = batch.past or (None, None)
        x = run.begin(batch, weights)
        run.blocks(x, weights.blocks, tables.of_tokens, of_tokens, 1)
        windows = run.behind(x, batch, of_frames, weights.up_taps, rate=self._up)
        x = run.linear(windows, weights.upsample).view(len(batch.mu), -1)
        x = run.norm(x, weights.up_norm)
        run.blocks(x, weights.up_blocks, tables.of_frames, of_frames, self._up)
        batch.mu.copy_(run.linear(run.norm(x, weights.norm), weights.mu))


@dataclass(frozen=True, eq=False)
class _Run:
    """One evaluation: the network's parts, cut as the batch needs it."""

    cuts: EncoderCuts

    def begin(self, batch: EncoderBatch, weights: PackedEncoderWeights) -> Tensor:
        """Embedded tokens with what they hear ahead and behind, [tokens, size]."""
        cuts, past = self.cuts, batch.past[0] if batch.past else None
        windows, x = windows_ahead(batch.tables.ids, weights.embedded, weights.start, cuts.rows)
        ahead = self.linear(windows, weights.look_ahead)
        windows = self.behind(ahead, batch, past, HISTORY_KERNEL, leaky=True)
        self.add(x, windows, weights.look_back)
        return x

    def blocks(
        self, x: Tensor, blocks: tuple[EncoderBlock, ...], places: RelativePlaces, past: EncoderPast | None, rate: int
    ) -> None:
        """Conformer blocks, in place."""
        cuts = self.cuts
        for site, block in enumerate(blocks):
            products = self.linear(self.norm(x, block.attention_norm), block.queries_and_keys)
            keys = past.keys if past else None
            mixed = attend_relatively(products, keys, places, block.relative, site, cuts.attention, rate=rate)
            self.add(x, mixed, block.mixed)
            wide = self.linear(self.norm(x, block.feed_forward_norm), block.expand)
            self.add(x, silu_(wide), block.contract)

    def norm(self, x: Tensor, norm: ShiftedNorm) -> Tensor:
        return layer_norm(x, norm, self.cuts.rows)

    def behind(
        self, x: Tensor, batch: EncoderBatch, past: EncoderPast | None, taps: int, rate: int = 1, leaky: bool = False
    ) -> Tensor:
        cuts, tails = self.cuts, past.tails if past else None
        return windows_behind(x, batch.tables.tokens, tails, taps, cuts.rows, rate=rate, leaky=leaky)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        weight, bias = linear
        if self.cuts.products is None:
            return torch.addmm(bias, x, weight.t())
        return product(x, weight, bias, self.cuts.products)

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """x += y · weightᵀ"""
        if self.cuts.products is None:
            x.addmm_(y, weight.t())
        else:
            product(y, weight, None, self.cuts.products, into=x)
