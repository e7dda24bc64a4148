"""The velocity estimator over packed rows, and its Euler steps: fixed shapes, no padding, nothing that waits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.models.flow.matching import Schedule
from vivavoce.models.flow.packed_batch import PackedBatch
from vivavoce.models.flow.packed_cuts import Cuts, cuts_of
from vivavoce.models.flow.packed_fp8 import fp8_block
from vivavoce.models.flow.packed_weights import BlockWeights, LevelWeights, PackedWeights
from vivavoce.models.flow.unet import UNet
from vivavoce.models.kernels.flow_attention import attend
from vivavoce.models.kernels.flow_conv import ConvWeights, causal_conv
from vivavoce.models.kernels.flow_euler import advance
from vivavoce.models.kernels.flow_math import tile_of
from vivavoce.models.kernels.flow_norm import Norm, shifted_layer_norm
from vivavoce.models.kernels.flow_pages import keep_in_pages
from vivavoce.models.kernels.flow_product import product


class PackedUNet:
    """Computes what `matching.Path.step` does with a `UNet`, row by row; it holds weights only.

    Args:
        unet: on the device; it is read, and shares its weights.
        schedule: of the same network.
        guidance: of classifier-free guidance.
        invariant: what a row computes does not depend on its neighbours, to the bit; slower.
        fp8: the products of the transformer blocks are of e4m3; the convolutions and the attention stay as they are.

    Raises:
        ValueError: sizes that the kernels do not take.
    """

    def __init__(
        self, unet: UNet, schedule: Schedule, guidance: float, *, invariant: bool = False, fp8: bool = False
    ) -> None:
        config, device = unet.config, unet.out.weight.device
        for size in (config.in_channels, config.out_channels, config.channels, config.num_heads * config.head_dim):
            tile_of(size, 16)
        self._weights = PackedWeights.of(unet, fp8=fp8)
        self._num_heads, self._guidance, self._invariant = config.num_heads, guidance, invariant
        self._times = torch.stack(schedule.biases).flatten(1, -2).contiguous()
        self._spans = torch.tensor([dt for _, dt in schedule.times], device=device)

    def cuts(self, frames: int) -> Cuts:
        """How a batch of so many packed frames is cut; its attention's tiles must be of that size."""
        return cuts_of(frames, invariant=self._invariant)

    def step(self, batch: PackedBatch) -> None:
        """Take the Euler step that `batch.step` names, in place; new keys and tails are left for the next chunk."""
        velocity = self.velocity(batch)
        advance(batch.x, velocity, batch.features, self._spans, batch.step, self._guidance)

    def velocity(self, batch: PackedBatch) -> Tensor:
        """Velocities of all frames with conditions and then without, [2 · frames, bins]; anything in padding."""
        run = _Pass(batch, self.cuts(len(batch.x)), self._num_heads, self._times)
        first, *middle, last = self._weights.levels
        skip = run.level(batch.features, first, 0)
        h = run.close(skip, first)
        for number, level in enumerate(middle, 1):
            h = run.level(h, level, number)
        h = run.level(torch.cat((h, skip), dim=1), last, len(middle) + 1)
        return run.velocity(run.close(h, last), self._weights)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One evaluation: the network's parts over one batch."""

    batch: PackedBatch
    cuts: Cuts
    num_heads: int
    times: Tensor

    def level(self, x: Tensor, level: LevelWeights, number: int) -> Tensor:
        time, skip = (self.times, self.batch.step, number), (x, *level.shortcut)
        h = self._conv(x, level.convs[0], level.norms[0], time=time)
        h = self._conv(h, level.convs[1], level.norms[1], skip=skip)
        for place, block in enumerate(level.blocks):
            self._block(h, block, number * len(level.blocks) + place)
        return h

    def close(self, x: Tensor, level: LevelWeights) -> Tensor:
        """The convolution at the end of an outer level."""
        assert level.closing is not None
        return self._conv(x, level.closing)

    def velocity(self, x: Tensor, weights: PackedWeights) -> Tensor:
        return self._product(self._conv(x, weights.final, weights.final_norm), *weights.velocity)

    def _conv(
        self,
        x: Tensor,
        conv: ConvWeights,
        norm: tuple[Tensor, Tensor] | None = None,
        time: tuple[Tensor, Tensor, int] | None = None,
        skip: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        batch, cuts = self.batch, self.cuts
        return causal_conv(x, conv, batch.tables.frames, batch.tails, cuts.conv, norm=norm, time=time, skip=skip)

    def _block(self, x: Tensor, block: BlockWeights, site: int) -> None:
        """In place."""
        if block.fp8 is not None:
            fp8_block(x, block, block.fp8, lambda products: self._attend(products, site))
            return
        products = self._product(_norm(x, block.attention_norm), block.queries_and_keys)
        self._add(x, self._attend(products, site), block.mixed)
        wide = self._expand(_norm(x, block.feed_forward_norm), block.expand, block.expand_bias)
        self._add(x, wide, block.contract)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.cuts.products is not None:
            return product(x, weight, bias, self.cuts.products)
        return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())

    def _add(self, into: Tensor, x: Tensor, weight: Tensor) -> None:
        if self.cuts.products is not None:
            product(x, weight, None, self.cuts.products, into=into)
        else:
            into.addmm_(x, weight.t())

    def _expand(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.cuts.products is not None:
            return product(x, weight, bias, self.cuts.products, gelu=True)
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)

    def _attend(self, products: Tensor, site: int) -> Tensor:
        """Keep the new keys and values, and attend."""
        batch, tables, places = self.batch, self.batch.tables, self.batch.page_places
        if places is not None:
            keep_in_pages(products, places, site)
        return attend(
            products,
            batch.keys,
            tables.tiles,
            tables.ends,
            tables.first,
            tables.pages,
            batch.step,
            site,
            self.num_heads,
            self.cuts.attention,
        )


def _norm(x: Tensor, norm: Norm) -> Tensor:
    return shifted_layer_norm(x, norm.shift, norm.weight, norm.bias)
