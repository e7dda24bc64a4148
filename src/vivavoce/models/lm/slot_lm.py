"""The language model for batches of slots: prefill of packed rows of several sequences, and decode steps of all slots.

This is the network of `SpeechLM` with the same weights, arranged for serving: rotary tables are computed once, masks
once for each call, keys and values are in a `SlotCache`, weights are joined, and packed where the library is faster
with packed weights. A decode step multiplies a few rows by all weights of the model, so its time depends on the memory
bandwidth for weights and on the number of matrix products.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu

from vivavoce.checkpoint.config import ConformerLMConfig, LMConfig
from vivavoce.models.layers import rotary_tables
from vivavoce.models.layout import Product, lay_together, packed, packs
from vivavoce.models.lm.qwen2 import Layer, SpeechLM
from vivavoce.models.lm.text_attention import Observed

if TYPE_CHECKING:
    from vivavoce.models.lm.adapters import AdaptedRows

SAFE_ROWS = 8  # if the number of rows is a multiple of this, all tested libraries give a row's result independent of it
_TRIED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 40, 64)


def joined(linears: Sequence[nn.Linear]) -> Product:
    """Join linear layers with the same input into one product. Unless weights are packed, the layers' parameters become
    views of the joined weights."""
    if packs(linears[0].weight):
        biases = [one.bias.detach() for one in linears if one.bias is not None]
        weights = torch.cat([one.weight.detach() for one in linears])
        return packed(weights, torch.cat(biases) if biases else None)
    weight, bias = shared(linears)

    def plain(x: Tensor) -> Tensor:
        return linear(x, weight, bias)

    return plain


def fewest_rows(products: Sequence[Product], sizes: Sequence[int], device: torch.device, dtype: torch.dtype) -> int:
    """Return the smallest n (1, 2, 4 or 8) so that a row has equal results in all batches of a multiple of n rows.

    Libraries choose kernels by the number of rows, so this is tested on this machine with these weights. sizes: number
    of inputs of each product."""
    if device.type != "cpu":
        return SAFE_ROWS
    generator = torch.Generator().manual_seed(0)
    different = set()
    for product, size in zip(products, sizes, strict=True):
        rows = torch.randn(_TRIED_ROWS[-1], size, generator=generator).to(dtype)
        whole = product(rows)
        for count in _TRIED_ROWS:
            if count not in different and not torch.equal(product(rows[:count]), whole[:count]):
                different.add(count)
    fitting = [step for step in (1, 2, 4) if not any(count % step == 0 for count in different)]
    return min(fitting, default=SAFE_ROWS)


def shared(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Join the layers' weights to [outputs, inputs], and their biases, if any, to [outputs]. The parameters become
    views of the joined tensors."""
    biases = [one.bias for one in linears if one.bias is not None]
    return lay_together([one.weight for one in linears]), lay_together(biases) if biases else None


Weights = TypeVar("Weights")


@dataclass(frozen=True)
class JoinedLayer(Generic[Weights]):
    attention_norm: Tensor
    qkv: Weights
    out: Weights
    mlp_norm: Tensor
    gate_up: Weights
    down: Weights

    @classmethod
    def all(cls, lm: SpeechLM, join: Callable[[Sequence[nn.Linear]], Weights]) -> list[JoinedLayer[Weights]]:
        layers = [(layer, layer.attention, layer.mlp) for layer in cast(Iterable[Layer], lm.layers)]
        return [
            JoinedLayer(
                layer.attention_norm.weight.detach(),
                join([attention.q_proj, attention.k_proj, attention.v_proj]),
                join([attention.o_proj]),
                layer.mlp_norm.weight.detach(),
                join([mlp.gate_proj, mlp.up_proj]),
                join([mlp.down_proj]),
            )
            for layer, attention, mlp in layers
        ]


@dataclass(frozen=True)
class SlotCache:
    """Keys and values of all slots. memory: [layers, 2 (keys, values), slots, kv_heads, capacity, head_dim], initially
    zero; on a CPU, a page takes memory only after its first write. The cache stores no lengths: masks hide the
    positions after a slot's end."""

    memory: Tensor

    @classmethod
    def allocate(
        cls, config: LMConfig | ConformerLMConfig, slots: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> SlotCache:
        shape = (config.num_layers, 2, slots, config.num_kv_heads, capacity, config.head_dim)
        return cls(_zeros(shape, device, dtype))

    def first(self, slots: int, reach: int) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, Tensor]]]:
        """Return two views of the first slots for each layer: for writes, all positions, [2, slots, kv_heads, capacity,
        head_dim]; for reads, keys and values of the first `reach` positions, each [slots, kv_heads, reach, head_dim].
        """
        stored = self.memory[:, :, :slots]
        readable = stored[:, :, :, :, :reach].flatten(0, 1).unbind(0)
        return stored.unbind(0), list(zip(readable[::2], readable[1::2], strict=True))

    def move(self, sources: Tensor, targets: Tensor, reach: int) -> None:
        """Copy the first `reach` positions of the slots `sources` to the slots `targets`; both: [n] int64, without a
        common slot."""
        for layer in self.memory:
            part = layer[:, :, :, :reach]
            part.index_copy_(1, targets, part.index_select(1, sources))


TEXT, SPEAKER = 1, 3
"""Values in `PackedRows.kinds` for rows of text, and for CosyVoice 1's speaker row."""


@dataclass(frozen=True)
class PackedRows:
    """Rows of n sequences, one sequence after another, and their positions; all int64 on the model's device.

    kinds, ids: [rows], embedding table (0 control, 1 text, 2 speech) and index in this table. slots, positions: [rows],
    slot and position of the row's key. sequences: [n], slot of each sequence; starts: [n], position of its first row.
    padded: [n, longest], packed row at each place of a padded rectangle; unpadded: [rows], place of each packed row in
    the rectangle. last: [n], last packed row of each sequence. Padding rows use a slot's last position, which is never
    read. For CosyVoice 1 only: text_end: all text of a sequence is in this number of its first rows; speakers: [n,
    speaker size] float32, for the second row of each sequence with a speaker row, or None if no sequence has one."""

    kinds: Tensor
    ids: Tensor
    slots: Tensor
    positions: Tensor
    unpadded: Tensor
    sequences: Tensor
    starts: Tensor
    padded: Tensor
    last: Tensor
    text_end: int = 0
    speakers: Tensor | None = None


def _zeros(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return zeros that take no memory on a CPU until they are used; `torch.zeros` would write the whole tensor."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page would cover most of a slot
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, query [rows, heads, head_dim], keys and values [rows, 2, kv_heads, head_dim]) → attention [rows, inner]."""


class SlotLM:
    def __init__(self, lm: SpeechLM, capacity: int) -> None:
        config = self.config = lm.config
        weight = lm.speech_head.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._group, self._head_dim = config.num_heads // config.num_kv_heads, config.head_dim
        embeddings = (lm.control_rows, lm.text_embedding, lm.speech_embedding)
        self._tables = [one.weight.detach() for one in embeddings]
        self._layers = JoinedLayer.all(lm, joined)
        self._norm, self._head = lm.norm.weight.detach(), joined([lm.speech_head])
        # Rotary tables by position, [capacity, 1, head_dim]: the rotated x is x · cos + (x with swapped halves) · sin;
        # the first half of `sin` has the opposite sign.
        positions = torch.arange(capacity, device=self._device)
        cos, sin = (one[0, 0] for one in rotary_tables(positions[None], config.head_dim, config.rope_theta))
        sin[:, : config.head_dim // 2] *= -1
        self._cos, self._sin = cos[:, None].to(self._dtype), sin[:, None].to(self._dtype)
        self._reached = positions
        layer, inner = self._layers[0], config.num_heads * config.head_dim
        products = (layer.qkv, layer.out, layer.gate_up, layer.down, self._head)
        sizes = (config.hidden_size, inner, config.hidden_size, config.intermediate_size, config.hidden_size)
        self.row_step = fewest_rows(products, sizes, self._device, self._dtype)

    def prefill(self, packed: PackedRows, cache: SlotCache, reach: int, adapted: AdaptedRows | None = None) -> Tensor:
        """Run packed rows → log-probabilities [n, ids] float32 after the last row of each sequence. reach: upper limit
        of the sequences' positions; adapted: the packed rows that have an adapter."""
        count, longest = packed.padded.shape
        asking = packed.starts[:, None] + self._reached[:longest]
        bias = self._bias(asking, reach).repeat(1, 1, self._group, 1)

        def attend(layer: int, query: Tensor, keys_values: Tensor) -> Tensor:
            cache.memory[layer][:, packed.slots, :, packed.positions] = keys_values
            keys, values = cache.memory[layer, :, :, :, :reach].index_select(1, packed.sequences).unbind(0)
            rows = query[packed.padded].view(count, longest, self.config.num_kv_heads, self._group, -1)
            rows = rows.permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = scaled_dot_product_attention(rows, keys, values, attn_mask=bias)
            out = out.view(count, -1, self._group, longest, self._head_dim).permute(0, 3, 1, 2, 4)
            return out.reshape(count * longest, -1)[packed.unpadded]

        rows, of_kind = [table[packed.ids.clamp(max=len(table) - 1)] for table in self._tables], packed.kinds[:, None]
        embedded = torch.where(of_kind == 0, rows[0], torch.where(of_kind == 1, rows[1], rows[2]))
        return self._scores(embedded, packed.positions, attend, count, packed.last, adapted)

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: SlotCache,
        reach: int,
        observed: Observed | None = None,
        adapted: AdaptedRows | None = None,
    ) -> Tensor:
        """Read one speech token in every slot → log-probabilities [slots, ids] float32. ids, positions: [slots] int64.
        reach: upper limit of the positions. observed: receives attention to text. adapted: slots with an adapter."""
        slots, heads = len(ids), self.config.num_kv_heads
        taken: list[Tensor] = []
        bias = self._bias(positions[:, None], reach)
        index = positions[None, :, None, None, None].expand(2, slots, heads, 1, self._head_dim)
        idle = -slots % self.row_step
        stored, readable = cache.first(slots, reach)

        def attend(layer: int, query: Tensor, keys_values: Tensor) -> Tensor:
            stored[layer].scatter_(3, index, keys_values[:slots].transpose(0, 1).unsqueeze(3))
            if observed is not None:
                observed.observer.take(taken, layer, query[:slots])
            rows = query[:slots].view(slots, heads, self._group, -1)
            out = scaled_dot_product_attention(rows, *readable[layer], attn_mask=bias).reshape(slots, -1)
            return pad(out, (0, 0, 0, idle)) if idle else out

        if idle:
            ids, positions = pad(ids, (0, idle)), pad(positions, (0, idle))
        scores = self._scores(self._tables[2][ids], positions, attend, slots, adapted=adapted)
        if observed is not None:
            observed.write(taken, cache.memory)
        return scores

    def _scores(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Attend,
        count: int,
        picked: Tensor | None = None,
        adapted: AdaptedRows | None = None,
    ) -> Tensor:
        """Return log-probabilities [count, ids] after the first `count` rows, or after the rows `picked`; x: embedded
        rows [rows, hidden]."""
        config, head_dim = self.config, self._head_dim
        rows, eps = len(x), config.rms_norm_eps
        size, turned = (config.hidden_size,), config.num_heads + config.num_kv_heads
        cos, sin = self._cos[positions], self._sin[positions]

        for index, layer in enumerate(self._layers if adapted is None else adapted.over(self._layers)):
            heads = layer.qkv(rms_norm(x, size, layer.attention_norm, eps)).view(rows, -1, head_dim)
            rotating = heads[:, :turned]
            # Rotate in place: so the keys stay next to the values, and one copy stores keys and values.
            rotating.copy_(torch.addcmul(rotating * cos, rotating.roll(head_dim // 2, -1), sin))
            keys_values = heads[:, config.num_heads :].view(rows, 2, config.num_kv_heads, head_dim)
            x = x + layer.out(attend(index, heads[:, : config.num_heads], keys_values))
            gate, up = layer.gate_up(rms_norm(x, size, layer.mlp_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate) * up)
        if picked is not None:
            x = pad(x[picked], (0, 0, 0, -len(picked) % SAFE_ROWS))
        return self._head(rms_norm(x, size, self._norm, eps))[:count].float().log_softmax(dim=-1)

    def _bias(self, positions: Tensor, reach: int) -> Tensor:
        """Return a mask [n, 1, rows, reach]: 0 for keys up to a row's position, −inf for later ones; positions: [n,
        rows]."""
        hidden = self._reached[:reach] > positions[:, None, :, None]
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, float("-inf"))
