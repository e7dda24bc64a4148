"""The language model over slots, with the kernels of `vivavoce_kernels`: decode steps and packed prefills.

A CUDA graph can record them. The network and the slots' memory are the same as in `SlotLM`. The residual stream is
float32. A matrix product uses a kernel if the table of tiles has an entry for its size, otherwise a library. Needs the
package `triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vivavoce.models.layers import rotary_tables
from vivavoce.models.lm.adapters import AdapterStack
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.lm.slot_lm import JoinedLayer, SlotCache, shared
from vivavoce.models.lm.text_attention import Observed
from vivavoce_kernels.lm_adapters import LowRankRows, RowAdapters, add_norm_shrink, shrink
from vivavoce_kernels.lm_attention import (
    ROW_TILE,
    PartialAttention,
    Rotations,
    decode_attention,
    partial_attention,
    prefill_attention,
    split_k_for,
)
from vivavoce_kernels.lm_products import STRIPS, TILES, Shape, Strips, Tiles, product, vector_product
from vivavoce_kernels.lm_rows import Tables, add_norm, dependent_launches, embed_norm

__all__ = ["ROW_TILE", "FusedLM", "TiledRows"]


@dataclass(frozen=True)
class TiledRows:
    """Packed rows, in which each sequence begins at a multiple of `ROW_TILE`; all int64. kinds, ids: [rows], embedding
    table (0 control, 1 text, 2 speech) and index in this table; slots, positions: [rows], slot and position of the
    row's key; last: [n], last row of each sequence. Rows of padding have position 0 and a slot that never runs.
    adapters: [rows / `ROW_TILE`], 1 + the place of each tile's adapter, 0 for no adapter; None if no row has an
    adapter."""

    kinds: Tensor
    ids: Tensor
    slots: Tensor
    positions: Tensor
    last: Tensor
    adapters: Tensor | None = None


Weights = tuple[Tensor, Tensor | None]  # [outputs, inputs] and [outputs]
Attend = Callable[[Tensor, Tensor], Tensor]
"""(joined query, key and value rows, the layer's memory) → [rows, heads · head_dim]; it stores keys and values."""
Look = Callable[[int, Tensor], None]
"""Receives a layer's number and its joined query, key and value rows."""


class FusedLM:
    """The language model with kernels. capacity: positions per slot; tiles: tile sizes of the products; strips: sizes
    of the products for a single slot, used if every product has an entry; stack: memory of the adapters, or None if the
    model has no adapters. The parameters of joined layers become views of the joined weights, which this class and
    `SlotLM` share, in whatever order the two are created."""

    def __init__(
        self,
        lm: SpeechLM,
        capacity: int,
        tiles: Tiles = TILES,
        strips: Strips = STRIPS,
        stack: AdapterStack | None = None,
    ) -> None:
        self._stack = stack
        config = self.config = lm.config
        self._tiles, self._strips, device = tiles, strips, lm.speech_head.weight.device
        self._options: Any = {"dependent": dependent_launches(device)}
        self._tables: Tables = (
            lm.control_rows.weight.detach(),
            lm.text_embedding.weight.detach(),
            lm.speech_embedding.weight.detach(),
        )
        self._layers = JoinedLayer.all(lm, shared)
        self._norm, self._head = lm.norm.weight.detach(), shared([lm.speech_head])
        half, positions = config.head_dim // 2, torch.arange(capacity, device=device)[None]
        tables = rotary_tables(positions, config.head_dim, config.rope_theta)
        self._rotations = Rotations(*(table[0, 0, :, :half].contiguous() for table in tables))

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        running: Tensor,
        cache: SlotCache,
        observed: Observed | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Read one speech token in each of the first n slots → logits [n, ids], float32 if the product gives float32.

        ids, positions, running: [n] int64, all of one stride; a slot with running 0 stores nothing, and its logits are
        meaningless. observed: receives the attention to the text. adapters: [n] int64, of any stride, 1 + the place of
        each slot's adapter, 0 for no adapter."""
        taken: list[Tensor] = []

        def look(layer: int, qkv: Tensor) -> None:
            if observed is not None:
                heads, size = self.config.num_heads, self.config.head_dim
                observed.observer.take(taken, layer, qkv[:, : heads * size].unflatten(1, (heads, size)))

        if adapters is None and len(ids) == 1 and all(shape in self._strips for shape in self._shapes()):
            scores = self._step_alone(ids, positions, running, cache, look)
        else:
            scores = self._step_together(ids, positions, running, cache, look, self._row_adapters(adapters, 1))
        if observed is not None:
            cos, sin = (table[positions] for table in self._rotations)
            turn = torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]
            observed.write(taken, cache.memory, turn)
        return scores

    def _row_adapters(self, places: Tensor | None, tile: int) -> RowAdapters | None:
        if places is None:
            return None
        assert self._stack is not None
        return RowAdapters(places, tile, len(self._stack.memory), self._stack.memory.stride(0))

    def _step_together(
        self,
        ids: Tensor,
        positions: Tensor,
        running: Tensor,
        cache: SlotCache,
        look: Look,
        adapters: RowAdapters | None,
    ) -> Tensor:
        given = (positions, running, self._rotations, self.config.num_heads, split_k_for(len(ids)))

        def attend(qkv: Tensor, memory: Tensor) -> Tensor:
            return decode_attention(qkv, memory, *given, **self._options)

        return self._scores(*self._hidden(ids, None, cache, attend, look, adapters), None)

    def _step_alone(self, ids: Tensor, positions: Tensor, running: Tensor, cache: SlotCache, look: Look) -> Tensor:
        """Do `step` for one slot, with fewer kernels, which load their weights before their input is ready."""
        eps, config = self.config.rms_norm_eps, self.config
        # The normalised row is not used here: the first product of the loop computes the norm itself.
        stream, x = embed_norm(ids, None, self._tables, self._layers[0].attention_norm, eps)

        def times(x: Tensor | PartialAttention, weights: Weights, out: Tensor, norm: Tensor | None = None) -> Tensor:
            gated = weights[0].shape[0] == 2 * out.shape[1]
            strip = self._strips[Shape(out.shape[1], weights[0].shape[1], gated)]
            options = {"scaling": norm, "eps": eps, "gated": gated, "added": out is stream, **self._options}
            vector_product(x, *weights, out, strip, **options)
            return out

        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        given = (positions, running, self._rotations, config.num_heads, split_k_for(1))
        for index, layer in enumerate(self._layers):
            qkv = times(stream, layer.qkv, x.new_empty(1, width), layer.attention_norm)
            look(index, qkv)
            times(partial_attention(qkv, cache.memory[index], *given, **self._options), layer.out, stream)
            inner = times(stream, layer.gate_up, x.new_empty(1, config.intermediate_size), layer.mlp_norm)
            times(inner, layer.down, stream)
        return times(stream, self._head, stream.new_empty(1, len(self._head[0])), self._norm)

    def _shapes(self) -> tuple[Shape, ...]:
        layer, config = self._layers[0], self.config
        plain = (layer.qkv, layer.out, layer.down, self._head)
        gate_up = Shape(config.intermediate_size, config.hidden_size, gated=True)
        return (*(Shape(*weight.shape) for weight, _ in plain), gate_up)

    def prefill(self, rows: TiledRows, cache: SlotCache) -> Tensor:
        """Run packed rows → logits [n, ids] after each sequence's last row."""
        given = (rows.slots, rows.positions, self._rotations, self.config.num_heads)

        def attend(qkv: Tensor, memory: Tensor) -> Tensor:
            return prefill_attention(qkv, memory, *given, **self._options)

        adapters = self._row_adapters(rows.adapters, ROW_TILE)
        return self._scores(*self._hidden(rows.ids, rows.kinds, cache, attend, adapters=adapters), rows.last)

    def _hidden(
        self,
        ids: Tensor,
        kinds: Tensor | None,
        cache: SlotCache,
        attend: Attend,
        look: Look = lambda layer, qkv: None,
        adapters: RowAdapters | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream before the last layer's MLP is added, and this MLP's output."""
        eps = self.config.rms_norm_eps
        stream, x = embed_norm(ids, kinds, self._tables, self._layers[0].attention_norm, eps)
        added = stream[None, :0]

        pairs = self._stack.layers if self._stack else ()

        def normed(index: int, name: str, norm: Tensor) -> tuple[Tensor, Tensor, LowRankRows | None]:
            if adapters is None:
                return stream, add_norm(stream, added, norm, eps, **self._options), None
            return add_norm_shrink(stream, added, norm, eps, *pairs[index][name], adapters, **self._options)

        def low_of(index: int, name: str, x: Tensor) -> LowRankRows | None:
            return None if adapters is None else shrink(x, *pairs[index][name], adapters, **self._options)

        low = low_of(0, "qkv", x)
        for index, layer in enumerate(self._layers):
            if index:
                stream, x, low = normed(index, "qkv", layer.attention_norm)
            qkv = self._product(x, layer.qkv, low=low)[0]
            look(index, qkv)
            x = attend(qkv, cache.memory[index])
            added = self._product(x, layer.out, low=low_of(index, "out", x), wide=True)
            stream, x, low = normed(index, "gate_up", layer.mlp_norm)
            x = self._product(x, layer.gate_up, low=low, gated=True)[0]
            added = self._product(x, layer.down, low=low_of(index, "down", x), wide=True)
        return stream, added

    def _scores(self, stream: Tensor, added: Tensor, picked: Tensor | None) -> Tensor:
        x = add_norm(stream, added, self._norm, self.config.rms_norm_eps, picked=picked, **self._options)
        return self._product(x, self._head, wide=True)[0]

    def _product(self, x: Tensor, weights: Weights, **options: Any) -> Tensor:
        weight, bias = weights
        return product(x, weight, bias, self._tiles, **options, **self._options)
