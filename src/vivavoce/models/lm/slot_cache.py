"""Keys and values of many running sequences, one slot each, in memory that is never moved or grown."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig


@dataclass(frozen=True)
class SlotCache:
    """Fixed memory for `slots` sequences of at most `capacity` positions.

    memory: [layers, 2 (keys, values), slots, kv_heads, capacity, head_dim], zeroed: on a CPU the system gives a page
    when it is first written. The cache knows no lengths: what stands past a slot's own position is never read.
    """

    memory: Tensor

    @classmethod
    def allocate(
        cls, config: LMConfig, slots: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> SlotCache:
        """Reserve it."""
        shape = (config.num_layers, 2, slots, config.num_kv_heads, capacity, config.head_dim)
        return cls(torch.zeros(shape, device=device, dtype=dtype))

    @property
    def capacity(self) -> int:
        """Positions that a slot can hold."""
        return self.memory.shape[4]

    def first(self, slots: int, reach: int) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, Tensor]]]:
        """Views of the first slots, layer by layer.

        Returns where new rows are stored, each [2, slots, kv_heads, capacity, head_dim]; and keys and values of the
        first `reach` positions, each pair of [slots, kv_heads, reach, head_dim].
        """
        stored = self.memory[:, :, :slots]
        readable = stored[:, :, :, :, :reach].flatten(0, 1).unbind(0)
        return stored.unbind(0), list(zip(readable[::2], readable[1::2], strict=True))

    def write(self, layer: int, keys_values: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Rows of any slots at any positions.

        keys_values: [rows, 2, kv_heads, head_dim]; slots, positions: [rows] int64
        """
        self.memory[layer][:, slots, :, positions] = keys_values

    def gathered(self, layer: int, slots: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Keys and values of any slots, copied; slots: [n] int64  →  two of [n, kv_heads, reach, head_dim]."""
        keys, values = self.memory[layer, :, :, :, :reach].index_select(1, slots).unbind(0)
        return keys, values

    def move(self, sources: Tensor, targets: Tensor, reach: int) -> None:
        """Copy slots onto others, layer by layer; sources, targets: [n] int64 without common members."""
        for layer in self.memory:
            part = layer[:, :, :, :reach]
            part.index_copy_(1, targets, part.index_select(1, sources))
