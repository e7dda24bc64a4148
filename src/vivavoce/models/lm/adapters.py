"""LoRA adapters for the language model: for a slot with an adapter, B·A·x is added to the outputs of linear layers.

All numbers of an adapter are in one row of memory, layer by layer, joined as the matrix products of `SlotLM` are.
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
"""Ranks in `AdapterStack` are padded to a multiple of this: tensor cores need products over at least 16 values."""


class LowRank(NamedTuple):
    """An adapter's matrices for one joined product of several targets. down: matrices A of all targets, [targets ·
    rank, inputs]; up: matrices B of all targets, [outputs, rank]; ends: for each target, the index after its last
    output."""

    down: Tensor
    up: Tensor
    ends: tuple[int, ...]


Layers = Sequence[Mapping[str, LowRank]]
"""For each layer, an adapter's matrices by the name of the product, see `PRODUCTS`."""


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """A loaded adapter; its memory is kept as long as a sequence refers to this object. place: its number among the
    stage's adapters, from 1. layers: its matrices; () if they are in an `AdapterStack`."""

    place: int
    layers: Layers


def numbers_of(config: LMConfig, rank: int) -> int:
    """Return the number of values in an adapter's row of memory, which has space for all targets."""
    return config.num_layers * rank * sum(map(sum, target_sizes(config).values()))


def pairs_of(memory: Tensor, config: LMConfig, rank: int) -> list[dict[str, LowRank]]:
    """Return an adapter's matrices, for each layer by product, as views of its row of memory, [`numbers_of`]."""
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
    """Return a row of memory with an adapter, padded to `rank`. Raises InvalidRequest if a number exceeds `dtype`."""
    memory = torch.zeros(numbers_of(config, rank), dtype=dtype)
    for number, layer in enumerate(pairs_of(memory, config, rank)):
        for product, targets in PRODUCTS.items():
            down, up, ends = layer[product]
            for part, (target, begin, end) in enumerate(zip(targets, (0, *ends), ends, strict=False)):
                if (number, target) in weights.pairs:
                    a, b = weights.pairs[number, target]
                    down[part * rank : part * rank + len(a)] = a
                    up[begin:end, : b.shape[1]] = b
    if not memory.isfinite().all():  # an infinite number would spoil the rows of other adapters
        raise InvalidRequest(f"adapter: its numbers are too large for {str(dtype).removeprefix('torch.')}")
    return memory


def products_of(weights: AdapterWeights) -> tuple[str, ...]:
    """Return the names of the products that an adapter changes, see `PRODUCTS`."""
    return tuple(product for product, targets in PRODUCTS.items() if {*targets} & {*weights.targets})


@dataclass(frozen=True, eq=False)
class AdaptedRows:
    """The rows of a prefill or decode step that have an adapter. groups: for each adapter, its matrices and its rows
    [n] int64, which may repeat."""

    groups: Sequence[tuple[Layers, Tensor]]

    def over(self, layers: Sequence[JoinedLayer[Product]]) -> list[JoinedLayer[Product]]:
        """Return the layers with linear layers that also add the outputs of the adapters."""
        names = {name for pairs, _ in self.groups for layer in pairs for name in layer}
        adapted = []
        for place, layer in enumerate(layers):
            products: dict[str, Any] = {}
            for name in names:
                products[name] = partial(self._product, getattr(layer, name), place, name)
            adapted.append(replace(layer, **products))
        return adapted

    def _product(self, plain: Product, layer: int, name: str, x: Tensor) -> Tensor:
        """Apply a product and the adapters of its rows: x [rows, inputs] → [rows, outputs]."""
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
    """The memory of all adapters for the kernels on a device: [places, `numbers_of`]. layers: views of the matrices in
    the first place; the matrices in other places are at the same offsets."""

    def __init__(self, config: LMConfig, places: int, rank: int, device: torch.device, dtype: torch.dtype) -> None:
        self.memory = torch.zeros(places, numbers_of(config, rank), device=device, dtype=dtype)
        self.layers: Layers = pairs_of(self.memory[0], config, rank)

    def put(self, place: int, laid: Tensor) -> None:
        """Write an adapter's row to a place (counted from 0), after all work that is already queued on the device."""
        self.memory[place].copy_(laid, non_blocking=True)
