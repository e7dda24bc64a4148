"""The language model over slots: packed rows of several sequences in (prefill), or one row of every slot (decode).

The same network as `SpeechLM`, whose weights it reads, arranged for serving: joined products, rotary tables and
masks made once per call, keys and values in a `SlotCache`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention, silu

from vivavoce.models.layers.rope import rotary_tables
from vivavoce.models.lm.products import Product, fewest_rows, joined
from vivavoce.models.lm.qwen2 import Layer, SpeechLM
from vivavoce.models.lm.slot_cache import SlotCache


@dataclass(frozen=True)
class PackedRows:
    """Rows of n sequences, one sequence after another, and where they belong; all int64 on the model's device.

    kinds, ids: [rows] table (0 control, 1 text, 2 speech) and place in it; slots, positions: [rows] where each row's
    key goes; sequences: [n] slots; starts: [n] position of each one's first row; padded: [n, longest] the packed row
    that stands at each place of a rectangle; unpadded: [rows] the place in the rectangle of each packed row;
    last: [n] each one's last packed row. Rows that only pad belong to a slot's last position, which is never read.
    """

    kinds: Tensor
    ids: Tensor
    slots: Tensor
    positions: Tensor
    sequences: Tensor
    starts: Tensor
    padded: Tensor
    unpadded: Tensor
    last: Tensor


@dataclass(frozen=True)
class _FusedLayer:
    attention_norm: Tensor
    qkv: Product
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, query [rows, heads, head_dim], keys and values [rows, 2, kv_heads, head_dim]) → [rows, heads · head_dim]."""


class SlotLM:
    """Args: lm: on its final device; capacity: positions per slot."""

    def __init__(self, lm: SpeechLM, capacity: int) -> None:
        self.config = lm.config
        weight = lm.speech_head.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._tables = (
            lm.control_embedding.weight.detach(),
            lm.text_embedding.weight.detach(),
            lm.speech_embedding.weight.detach(),
        )
        self._layers = [_fuse(cast(Layer, layer)) for layer in lm.layers]
        self._norm = lm.norm.weight.detach()
        self._head = joined([lm.speech_head])
        self._cos, self._sin = self._rotations(capacity)
        self._reached = torch.arange(capacity, device=self._device)
        self.row_step = self._row_step()

    def prefill(self, packed: PackedRows, cache: SlotCache, reach: int) -> Tensor:
        """Scores of what follows each sequence's last row.

        reach: a bound on the sequences' positions  →  [n, ids] float32 log-probabilities
        """
        count, longest = packed.padded.shape
        asking = packed.starts[:, None] + self._reached[:longest]
        bias = self._bias(asking, reach)[:, None].repeat(1, 1, self._group, 1)

        def attend(layer: int, query: Tensor, keys_values: Tensor) -> Tensor:
            cache.write(layer, keys_values, packed.slots, packed.positions)
            keys, values = cache.gathered(layer, packed.sequences, reach)
            rows = query[packed.padded].view(count, longest, self.config.num_kv_heads, self._group, -1)
            rows = rows.permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = scaled_dot_product_attention(rows, keys, values, attn_mask=bias)
            out = out.view(count, -1, self._group, longest, self.config.head_dim).permute(0, 3, 1, 2, 4)
            return out.reshape(count * longest, -1)[packed.unpadded]

        hidden = self._hidden(self._embed(packed.kinds, packed.ids), packed.positions, attend)
        return self._scores(pad(hidden[packed.last], (0, 0, 0, -count % 8)), count)

    def step(self, ids: Tensor, positions: Tensor, cache: SlotCache, reach: int) -> Tensor:
        """Feed one speech token to each of the first slots.

        ids, positions: [slots] int64; reach: a bound on the positions  →  [slots, ids] float32 log-probabilities
        """
        slots, heads = len(ids), self.config.num_kv_heads
        bias = self._bias(positions[:, None], reach)[:, None]
        index = positions[None, :, None, None, None].expand(2, slots, heads, 1, self.config.head_dim)
        idle = -slots % self.row_step
        stored, readable = cache.first(slots, reach)

        def attend(layer: int, query: Tensor, keys_values: Tensor) -> Tensor:
            stored[layer].scatter_(3, index, keys_values[:slots].transpose(0, 1).unsqueeze(3))
            rows = query[:slots].view(slots, heads, self._group, -1)
            out = scaled_dot_product_attention(rows, *readable[layer], attn_mask=bias).reshape(slots, -1)
            return pad(out, (0, 0, 0, idle)) if idle else out

        if idle:
            ids, positions = pad(ids, (0, idle)), pad(positions, (0, idle))
        return self._scores(self._hidden(self._tables[2][ids], positions, attend), slots)

    @property
    def _group(self) -> int:
        return self.config.num_heads // self.config.num_kv_heads

    def _embed(self, kinds: Tensor, ids: Tensor) -> Tensor:
        rows = [table[ids.clamp(max=len(table) - 1)] for table in self._tables]
        of_kind = kinds[:, None]
        return torch.where(of_kind == 0, rows[0], torch.where(of_kind == 1, rows[1], rows[2]))

    def _hidden(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        config = self.config
        rows, eps = len(x), config.rms_norm_eps
        size, turned = (config.hidden_size,), config.num_heads + config.num_kv_heads
        cos, sin = self._cos[positions], self._sin[positions]
        for index, layer in enumerate(self._layers):
            heads = layer.qkv(rms_norm(x, size, layer.attention_norm, eps)).view(rows, -1, config.head_dim)
            rotating = heads[:, :turned]
            # In place: the rotated keys stand before the values again, and both are stored at once.
            rotating.copy_(torch.addcmul(rotating * cos, rotating.roll(config.head_dim // 2, -1), sin))
            keys_values = heads[:, config.num_heads :].view(rows, 2, config.num_kv_heads, config.head_dim)
            x = x + layer.out(attend(index, heads[:, : config.num_heads], keys_values))
            gate, up = layer.gate_up(rms_norm(x, size, layer.mlp_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate) * up)
        return x

    def _scores(self, hidden: Tensor, count: int) -> Tensor:
        normal = rms_norm(hidden, (self.config.hidden_size,), self._norm, self.config.rms_norm_eps)
        return self._head(normal)[:count].float().log_softmax(dim=-1)

    def _bias(self, positions: Tensor, reach: int) -> Tensor:
        """0 where a row may look, −inf elsewhere; positions: [n, rows]  →  [n, rows, reach]."""
        hidden = self._reached[:reach] > positions[..., None]
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, float("-inf"))

    def _rotations(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Tables by position, [capacity, 1, head_dim]: a row times the first, and its halves exchanged times the
        second, give the rotated row.
        """
        head_dim = self.config.head_dim
        positions = torch.arange(capacity, device=self._device)[None]
        cos, sin = (table[0, 0] for table in rotary_tables(positions, head_dim, self.config.rope_theta))
        sin[:, : head_dim // 2] *= -1
        return cos[:, None].to(self._dtype), sin[:, None].to(self._dtype)

    def _row_step(self) -> int:
        layer, config = self._layers[0], self.config
        products = (layer.qkv, layer.out, layer.gate_up, layer.down, self._head)
        inner = config.num_heads * config.head_dim
        sizes = (config.hidden_size, inner, config.hidden_size, config.intermediate_size, config.hidden_size)
        return fewest_rows(products, sizes, self._device, self._dtype)


def _fuse(layer: Layer) -> _FusedLayer:
    attention, mlp = layer.attention, layer.mlp
    return _FusedLayer(
        attention_norm=layer.attention_norm.weight.detach(),
        qkv=joined([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=joined([attention.o_proj]),
        mlp_norm=layer.mlp_norm.weight.detach(),
        gate_up=joined([mlp.gate_proj, mlp.up_proj]),
        down=joined([mlp.down_proj]),
    )
