"""LoRA adapters beside the language model's products: a row's output grows by B·A·x of the adapter that its slot has.

The numbers of an adapter stand in one row of memory, layer by layer, in the form of the joined products of `SlotLM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from vivavoce.checkpoint.adapter import PRODUCTS, AdapterWeights, target_sizes
from vivavoce.checkpoint.config import LMConfig
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.models.layout import Product
    from vivavoce.models.lm.slot_lm import JoinedLayer

RANK_STEP = 16
"""Ranks in the kernels' memory are multiples of this, the least inner size of a tensor core's product."""


class LowRank(NamedTuple):
    """The pair of one joined product. down: [parts · rank, inputs], one part for each target; up: [outputs, rank], for
    the part that the output belongs to; ends: the output behind each part.
    """

    down: Tensor
    up: Tensor
    ends: tuple[int, ...]


Layers = Sequence[Mapping[str, LowRank]]
"""For each layer the pairs by product, see `PRODUCTS`."""


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """An adapter that runs can have. While a run refers to it, its memory is kept. place: from 1 on, among the stage's
    adapters; layers: its pairs, () where the kernels' memory has them.
    """

    place: int
    layers: Layers


def numbers_of(config: LMConfig, rank: int) -> int:
    """The size of the row of memory that an adapter of this rank takes, whatever it targets."""
    return config.num_layers * rank * sum(map(sum, target_sizes(config).values()))


def pairs_of(memory: Tensor, config: LMConfig, rank: int) -> list[dict[str, LowRank]]:
    """The pairs in one row of memory, as views of it; memory: [`numbers_of`]."""
    sizes, start, layers = target_sizes(config), 0, []

    def take(rows: int, columns: int) -> Tensor:
        nonlocal start
        start += rows * columns
        return memory[start - rows * columns : start].view(rows, columns)

    for _ in range(config.num_layers):
        layer = {}
        for product, targets in PRODUCTS.items():
            ends = tuple(accumulate(sizes[target][0] for target in targets))
            layer[product] = LowRank(take(len(targets) * rank, sizes[targets[0]][1]), take(ends[-1], rank), ends)
        layers.append(layer)
    return layers


def laid_out(weights: AdapterWeights, config: LMConfig, rank: int, dtype: torch.dtype) -> Tensor:
    """An adapter's row of memory, in which its rank is padded to `rank`. InvalidRequest: `dtype` cannot hold it."""
    memory = torch.zeros(numbers_of(config, rank), dtype=dtype)
    for number, layer in enumerate(pairs_of(memory, config, rank)):
        for product, targets in PRODUCTS.items():
            down, up, ends = layer[product]
            for part, (target, begin, end) in enumerate(zip(targets, (0, *ends), ends, strict=False)):
                if (number, target) in weights.pairs:
                    a, b = weights.pairs[number, target]
                    down[part * rank : part * rank + len(a)] = a
                    up[begin:end, : b.shape[1]] = b
    if not memory.isfinite().all():  # an infinite number would reach the rows of other adapters
        raise InvalidRequest(f"adapter: its numbers are too large for {str(dtype).removeprefix('torch.')}")
    return memory


def products_of(weights: AdapterWeights) -> tuple[str, ...]:
    """The products that an adapter changes."""
    return tuple(product for product, targets in PRODUCTS.items() if {*targets} & {*weights.targets})


@dataclass(frozen=True, eq=False)
class AdaptedRows:
    """The rows of a pass that have an adapter. groups: pairs, and their rows [n] int64, where one may stand again."""

    groups: Sequence[tuple[Layers, Tensor]]

    def over(self, layers: Sequence[JoinedLayer[Product]]) -> list[JoinedLayer[Product]]:
        """The layers, with products that add what the adapters do."""
        names = {name for pairs, _ in self.groups for layer in pairs for name in layer}
        adapted = []
        for place, layer in enumerate(layers):
            products: dict[str, Any] = {}
            for name in names:
                products[name] = partial(self._product, getattr(layer, name), place, name)
            adapted.append(replace(layer, **products))
        return adapted

    def _product(self, plain: Product, layer: int, name: str, x: Tensor) -> Tensor:
        """x: [rows, inputs]  →  [rows, outputs]."""
        out = plain(x)
        for layers, rows in self.groups:
            if name not in layers[layer]:
                continue
            down, up, ends = layers[layer][name]
            low = linear(x[rows], down).chunk(len(ends), dim=1)
            for part, begin, end in zip(low, (0, *ends), ends, strict=False):
                out[rows, begin:end] += linear(part, up[begin:end])
        return out


class AdapterStack:
    """The adapters of one device for the kernels: [places, numbers]; layers: the pairs in the first place, beside which
    the others lie.
    """

    def __init__(self, config: LMConfig, places: int, rank: int, device: torch.device, dtype: torch.dtype) -> None:
        self.memory = torch.zeros(places, numbers_of(config, rank), device=device, dtype=dtype)
        self.layers: Layers = pairs_of(self.memory[0], config, rank)

    def put(self, place: int, laid: Tensor) -> None:
        """Fill a place, from 0 on, behind the work that was launched before."""
        self.memory[place].copy_(laid, non_blocking=True)
