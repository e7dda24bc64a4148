"""The language model over slots by kernels of our own: decode steps and packed prefills that a graph can record.

The same network and the same slot memory as `SlotLM`'s. The residual stream is kept in float32; products take our
kernels where the table of tiles has one for their size, and a library elsewhere. Needs the package `triton`.

The layers' matrices may be read as int8 with a scale for each output (`models.quantised`): a step of few slots is as
long as its weights take to arrive. Norms, biases, embeddings and the speech head stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from vivavoce.models.kernels import lm_launch
from vivavoce.models.kernels.lm_decode_attention import (
    Divided,
    Rotations,
    dealing_for,
    decode_attention,
    divided_attention,
)
from vivavoce.models.kernels.lm_norm import Tables, add_norm, embed_norm
from vivavoce.models.kernels.lm_prefill_attention import ROW_TILE, prefill_attention
from vivavoce.models.kernels.lm_products import INT8_TILES, TILES, Shape, Tiles, plain_tile, product
from vivavoce.models.kernels.lm_vector_products import STRIPS, Strips, vector_product
from vivavoce.models.layers.rope import rotary_tables
from vivavoce.models.lm.products import shared
from vivavoce.models.lm.qwen2 import Layer, SpeechLM
from vivavoce.models.lm.slot_cache import SlotCache
from vivavoce.models.quantised import int8_rows

__all__ = ["ROW_TILE", "FusedLM", "TiledRows"]


@dataclass(frozen=True)
class TiledRows:
    """Packed rows of n sequences, each from a multiple of `ROW_TILE` rows on; all int64 on the model's device.

    kinds, ids: [rows] table (0 control, 1 text, 2 speech) and place in it; slots, positions: [rows] where each row's
    key goes; last: [n] each sequence's last row. Rows that only pad a tile have position 0 and a slot that is nobody's.
    """

    kinds: Tensor
    ids: Tensor
    slots: Tensor
    positions: Tensor
    last: Tensor


@dataclass(frozen=True)
class _Weights:
    """weight: [outputs, inputs]; bias: [outputs]; scale: [outputs] float32 where the weight is int8."""

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None = None


@dataclass(frozen=True)
class _FusedLayer:
    attention_norm: Tensor
    qkv: _Weights
    out: _Weights
    mlp_norm: Tensor
    gate_up: _Weights
    down: _Weights


Attend = Callable[[Tensor, Tensor], Tensor]
"""(joined query, key and value rows, the layer's memory) → [rows, heads · head_dim]; it stores keys and values."""


class FusedLM:
    """Args: lm: on its final device; capacity: positions per slot; tiles: of the products; strips: of a single slot's,
    which are used if there is one for every product; int8: the layers' matrices are read as int8.

    The parameters of the layers that are joined become views of the joined ones, as `SlotLM`'s do: whichever comes
    second finds them so. int8 ones are copies, which are held beside the parameters.

    Raises:
        ValueError: int8 for sizes that its products do not take.
    """

    def __init__(
        self, lm: SpeechLM, capacity: int, tiles: Tiles = TILES, strips: Strips = STRIPS, *, int8: bool = False
    ) -> None:
        self.config, self._head_tiles, self._strips = lm.config, tiles, strips
        self._layer_tiles = INT8_TILES if int8 else tiles
        device = lm.speech_head.weight.device
        self._dependent = lm_launch.supported(device)
        self._tables: Tables = (
            lm.control_embedding.weight.detach(),
            lm.text_embedding.weight.detach(),
            lm.speech_embedding.weight.detach(),
        )
        read = _eight_bits if int8 else _as_they_are
        self._layers = [_fuse(cast(Layer, layer), read) for layer in lm.layers]
        self._norm = lm.norm.weight.detach()
        self._head = _as_they_are([lm.speech_head])
        self._rotations = _rotations(capacity, lm.config.head_dim, lm.config.rope_theta, device)

    def step(self, ids: Tensor, positions: Tensor, running: Tensor, cache: SlotCache) -> Tensor:
        """Feed one speech token to each of the first n slots.

        ids, positions, running: [n] int64, all of one stride; a slot with running 0 stores nothing, and its scores
        mean nothing  →  [n, ids] logits, in float32 as far as the product has it
        """
        if len(ids) == 1 and all(shape in self._strips for shape in self._shapes()):
            return self._step_alone(ids, positions, running, cache)
        dealing = dealing_for(len(ids))

        def attend(qkv: Tensor, memory: Tensor) -> Tensor:
            return decode_attention(
                qkv, memory, positions, running, self._rotations, self.config.num_heads, dealing,
                dependent=self._dependent,
            )  # fmt: skip

        return self._scores(*self._hidden(ids, None, cache, attend), None)

    def _step_alone(self, ids: Tensor, positions: Tensor, running: Tensor, cache: SlotCache) -> Tensor:
        """`step` for one slot: fewer kernels, whose programs have their weights before their input comes."""
        eps, dependent, config = self.config.rms_norm_eps, self._dependent, self.config
        # The norm that comes with it is done again by the first product.
        stream, x = embed_norm(ids, None, self._tables, self._layers[0].attention_norm, eps)

        def times(x: Tensor | Divided, weights: _Weights, out: Tensor, norm: Tensor | None = None) -> Tensor:
            gated = weights.weight.shape[0] == 2 * out.shape[1]
            shape = Shape(out.shape[1], weights.weight.shape[1], gated)
            vector_product(
                x, weights.weight, weights.bias, out, self._strips[shape], dependent=dependent, scale=weights.scale,
                scaling=norm, eps=eps, gated=gated, added=out is stream,
            )  # fmt: skip
            return out

        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        for index, layer in enumerate(self._layers):
            qkv = times(stream, layer.qkv, x.new_empty(1, width), layer.attention_norm)
            attended = divided_attention(
                qkv, cache.memory[index], positions, running, self._rotations, config.num_heads, dealing_for(1),
                dependent=dependent,
            )  # fmt: skip
            times(attended, layer.out, stream)
            inner = times(stream, layer.gate_up, x.new_empty(1, config.intermediate_size), layer.mlp_norm)
            times(inner, layer.down, stream)
        return times(stream, self._head, stream.new_empty(1, len(self._head.weight)), self._norm)

    def _shapes(self) -> tuple[Shape, ...]:
        """Of all products."""
        layer, config = self._layers[0], self.config
        plain = (layer.qkv, layer.out, layer.down, self._head)
        gate_up = Shape(config.intermediate_size, config.hidden_size, gated=True)
        return (*(Shape(*one.weight.shape) for one in plain), gate_up)

    def prefill(self, rows: TiledRows, cache: SlotCache) -> Tensor:
        """Read packed rows; [n, ids] logits of what follows each sequence's last row."""

        def attend(qkv: Tensor, memory: Tensor) -> Tensor:
            return prefill_attention(
                qkv, memory, rows.slots, rows.positions, self._rotations, self.config.num_heads,
                dependent=self._dependent,
            )  # fmt: skip

        return self._scores(*self._hidden(rows.ids, rows.kinds, cache, attend), rows.last)

    def _hidden(self, ids: Tensor, kinds: Tensor | None, cache: SlotCache, attend: Attend) -> tuple[Tensor, Tensor]:
        """The residual stream before the last layer's MLP is added, and what is to be added."""
        eps, dependent = self.config.rms_norm_eps, self._dependent
        stream, x = embed_norm(ids, kinds, self._tables, self._layers[0].attention_norm, eps)
        added = stream[None, :0]
        for index, layer in enumerate(self._layers):
            if index:
                x = add_norm(stream, added, layer.attention_norm, eps, dependent=dependent)
            attended = attend(self._product(x, layer.qkv)[0], cache.memory[index])
            added = self._product(attended, layer.out, wide=True)
            x = add_norm(stream, added, layer.mlp_norm, eps, dependent=dependent)
            inner = self._product(x, layer.gate_up, gated=True)[0]
            added = self._product(inner, layer.down, wide=True)
        return stream, added

    def _scores(self, stream: Tensor, added: Tensor, picked: Tensor | None) -> Tensor:
        eps = self.config.rms_norm_eps
        x = add_norm(stream, added, self._norm, eps, dependent=self._dependent, picked=picked)
        return self._product(x, self._head, wide=True)[0]

    def _product(self, x: Tensor, weights: _Weights, *, gated: bool = False, wide: bool = False) -> Tensor:
        tiles = self._head_tiles if weights is self._head else self._layer_tiles
        return product(
            x, weights.weight, weights.bias, tiles, dependent=self._dependent, scale=weights.scale, gated=gated,
            wide=wide,
        )  # fmt: skip


def _fuse(layer: Layer, read: Callable[[list[nn.Linear]], _Weights]) -> _FusedLayer:
    attention, mlp = layer.attention, layer.mlp
    return _FusedLayer(
        attention_norm=layer.attention_norm.weight.detach(),
        qkv=read([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=read([attention.o_proj]),
        mlp_norm=layer.mlp_norm.weight.detach(),
        gate_up=read([mlp.gate_proj, mlp.up_proj]),
        down=read([mlp.down_proj]),
    )


def _as_they_are(linears: list[nn.Linear]) -> _Weights:
    return _Weights(*shared(linears))


def _eight_bits(linears: list[nn.Linear]) -> _Weights:
    plain_tile(linears[0].in_features)
    parts = [int8_rows(one.weight) for one in linears]
    biases = [one.bias.detach() for one in linears if one.bias is not None]
    return _Weights(
        torch.cat([part.values for part in parts]),
        torch.cat(biases) if biases else None,
        torch.cat([part.scales for part in parts]),
    )


def _rotations(capacity: int, head_dim: int, theta: float, device: torch.device) -> Rotations:
    positions = torch.arange(capacity, device=device)[None]
    cos, sin = (table[0, 0, :, : head_dim // 2].contiguous() for table in rotary_tables(positions, head_dim, theta))
    return Rotations(cos, sin)
