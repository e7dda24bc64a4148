"""Computes how much speech attends to text: for all heads in a whole sequence, or for chosen heads in decode steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig
from vivavoce.models.layers import rotary_tables
from vivavoce.models.lm.qwen2 import Layer, SpeechLM


def text_attention(lm: SpeechLM, rows: Tensor, text: slice, queries: slice) -> Tensor:
    """Return how much some rows of a sequence attend to its text: [layers, heads, queries, text] float32.

    rows: [1, time, hidden], the sequence. text, queries: ranges of its rows. The weights of each query add up to 1 over
    the text.
    """
    positions = torch.arange(rows.shape[1], device=rows.device)[None]
    mask = positions <= positions[:, None, :].transpose(1, 2)
    cos, sin = (one.to(rows.dtype) for one in rotary_tables(positions, lm.config.head_dim, lm.config.rope_theta))
    found, x = [], rows
    for layer in cast(Iterable[Layer], lm.layers):
        query, key, _ = layer.attention.project(layer.attention_norm(x), cos, sin)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = query[0, :, queries].float() @ key[0, :, text].float().transpose(1, 2)
        found.append((scores * lm.config.head_dim**-0.5).softmax(dim=-1))
        x = layer(x, cos, sin, mask[:, None], lambda keys, values: (keys, values))
    return torch.stack(found)


@dataclass(frozen=True)
class TextHeads:
    """Attention heads of a checkpoint; their attention weights show which text is being spoken.

    heads: layer and number of each head. lag: number of speech tokens by which the attention is ahead of the audio.
    pace: usual number of speech tokens per text token.
    """

    heads: tuple[tuple[int, int], ...]
    lag: float
    pace: float = 4.0


class TextObserver:
    """Computes in a decode step how much the chosen heads attend to each text token of a slot's sequence.

    places: [slots, tokens] int64, positions of the text tokens among the slot's keys. counts: [slots] int64, number of
    the slot's text tokens. Shapes are fixed and nothing synchronises with the device, so a CUDA graph can record this.
    """

    def __init__(self, config: LMConfig, heads: TextHeads, slots: int, tokens: int, device: torch.device) -> None:
        ordered = sorted(heads.heads)
        self.tokens, self._head_dim = tokens, config.head_dim
        self._of_layer: dict[int, list[int]] = {}
        for layer, head in ordered:
            self._of_layer.setdefault(layer, []).append(head)
        group = config.num_heads // config.num_kv_heads
        self._layer = torch.tensor([layer for layer, _ in ordered], device=device)[None, :, None]
        self._kv_head = torch.tensor([head // group for _, head in ordered], device=device)[None, :, None]
        self._slots = torch.arange(slots, device=device)[:, None, None]
        self._index = torch.arange(tokens, device=device)
        self.places = torch.zeros(slots, tokens, dtype=torch.int64, device=device)
        self.counts = torch.zeros(slots, dtype=torch.int64, device=device)

    def take(self, taken: list[Tensor], layer: int, query: Tensor) -> None:
        """Append the queries of this layer's chosen heads to `taken`. query: [slots, heads, head_dim]."""
        for head in self._of_layer.get(layer, ()):
            taken.append(query[:, head])

    def weights(self, taken: Sequence[Tensor], memory: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the chosen heads' mean attention to the text, [n, tokens] float32. Each row adds up to 1; rows of
        slots without text have no meaning. taken: queries [n, head_dim] of each head. memory: see `SlotCache`. turn:
        rotary tables [n, 1, head_dim] as in `SlotLM` (cos, sin), for queries that are not rotated yet."""
        query = torch.stack(list(taken), dim=1)
        count = len(query)
        if turn is not None:
            query = torch.addcmul(query * turn[0], query.roll(self._head_dim // 2, -1), turn[1])
        keys = memory[:, 0][self._layer, self._slots[:count], self._kv_head, self.places[:count, None]]
        scores = (keys @ query.to(keys.dtype)[..., None])[..., 0].float() * self._head_dim**-0.5
        hidden = self._index >= self.counts[:count, None]
        return scores.masked_fill(hidden[:, None], -1e4).softmax(dim=-1).mean(dim=1)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the slots `sources` to the slots `targets`, as `SlotCache.move` does."""
        for part in (self.places, self.counts):
            part.index_copy_(0, targets, part.index_select(0, sources))


class Observed(NamedTuple):
    """The observer of a decode step. out: [n, tokens] float32, the tensor to which it writes attention weights."""

    observer: TextObserver
    out: Tensor

    def write(self, taken: Sequence[Tensor], memory: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> None:
        """Write the attention weights of the step to `out`; for the arguments see `TextObserver.weights`."""
        self.out.copy_(self.observer.weights(taken, memory, turn))
