"""The velocity estimator over packed rows, and its Euler steps: fixed shapes, no padding, nothing that waits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.models.flow.matching import Schedule
from vivavoce.models.flow.packed_batch import PackedBatch
from vivavoce.models.flow.packed_cuts import Cuts, ProductTiles, cuts_of
from vivavoce.models.flow.packed_weights import BlockWeights, LevelWeights, PackedWeights
from vivavoce.models.flow.unet import UNet
from vivavoce.models.kernels.flow_attention import attend
from vivavoce.models.kernels.flow_conv import ConvWeights, causal_conv
from vivavoce.models.kernels.flow_euler import advance
from vivavoce.models.kernels.flow_math import tile_of
from vivavoce.models.kernels.flow_norm import shifted_layer_norm
from vivavoce.models.kernels.flow_normed_product import Norm, expand, queries_and_keys
from vivavoce.models.kernels.flow_pages import keep_in_pages
from vivavoce.models.kernels.flow_product import product


class PackedUNet:
    """Computes what `matching.Path.step` does with a `UNet`, row by row; it holds weights only.

    Args:
        unet: on the device; it is read, and shares its weights.
        schedule: of the same network.
        guidance: of classifier-free guidance.
        invariant: what a row computes does not depend on its neighbours, to the bit; slower.

    Raises:
        ValueError: sizes that the kernels do not take.
    """

    def __init__(self, unet: UNet, schedule: Schedule, guidance: float, *, invariant: bool = False) -> None:
        config, device = unet.config, unet.out.weight.device
        for size in (config.in_channels, config.out_channels, config.channels, config.num_heads * config.head_dim):
            tile_of(size, 16)
        self._weights = PackedWeights.of(unet)
        self._num_heads, self._guidance, self._invariant = config.num_heads, guidance, invariant
        self._times = torch.stack(schedule.biases).flatten(1, -2).contiguous()
        self._spans = torch.tensor([dt for _, dt in schedule.times], device=device)
        self._dependent = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)

    def cuts(self, frames: int) -> Cuts:
        """How a batch of so many packed frames is cut; its attention's tiles must be of that size."""
        return cuts_of(frames, invariant=self._invariant, dependent=self._dependent)

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
            site = number * len(level.blocks) + place
            if self.cuts.products is None:
                self._library_block(h, block, site)
            else:
                self._own_block(h, block, site, self.cuts.products)
        return h

    def close(self, x: Tensor, level: LevelWeights) -> Tensor:
        """The convolution at the end of an outer level."""
        assert level.closing is not None
        return self._conv(x, level.closing)

    def velocity(self, x: Tensor, weights: PackedWeights) -> Tensor:
        h = self._conv(x, weights.final, weights.final_norm)
        weight, bias = weights.velocity
        if self.cuts.products is None:
            return torch.addmm(bias, h, weight.t())
        return product(h, weight, bias, self.cuts.products.velocity, dependent=self.cuts.dependent)

    def _conv(
        self,
        x: Tensor,
        conv: ConvWeights,
        norm: tuple[Tensor, Tensor] | None = None,
        time: tuple[Tensor, Tensor, int] | None = None,
        skip: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        batch, cuts = self.batch, self.cuts
        return causal_conv(
            x,
            conv,
            batch.tables.frames,
            batch.tails,
            cuts.conv,
            norm=norm,
            time=time,
            skip=skip,
            dependent=cuts.dependent,
        )

    def _library_block(self, x: Tensor, block: BlockWeights, site: int) -> None:
        products = _norm(x, block.attention_norm) @ block.queries_and_keys.t()
        places = self.batch.page_places
        if places is not None:
            keep_in_pages(products, places, site)
        x.addmm_(self._attend(products, site), block.mixed.t())
        wide = torch._addmm_activation(
            block.expand_bias, _norm(x, block.feed_forward_norm), block.expand.t(), use_gelu=True
        )
        x.addmm_(wide, block.contract.t())

    def _own_block(self, x: Tensor, block: BlockWeights, site: int, tiles: ProductTiles) -> None:
        dependent, places = self.cuts.dependent, self.batch.page_places
        products = queries_and_keys(
            x, block.attention_norm, block.queries_and_keys, places, site, tiles.queries_and_keys, dependent=dependent
        )
        product(self._attend(products, site), block.mixed, None, tiles.mixed, into=x, dependent=dependent)
        wide = expand(x, block.feed_forward_norm, block.expand, block.expand_bias, tiles.expand, dependent=dependent)
        product(wide, block.contract, None, tiles.contract, into=x, dependent=dependent)

    def _attend(self, products: Tensor, site: int) -> Tensor:
        batch, tables = self.batch, self.batch.tables
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
            dependent=self.cuts.dependent,
        )


def _norm(x: Tensor, norm: Norm) -> Tensor:
    return shifted_layer_norm(x, norm.shift, norm.weight, norm.bias)
