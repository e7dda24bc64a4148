"""Keys and values of past positions, in static slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig


@dataclass(frozen=True)
class KVCache:
    """Fixed memory for `slots` sequences of at most `capacity` positions.

    keys, values: [layers, slots, kv_heads, capacity, head_dim]. The cache knows no lengths: whoever owns a slot
    says with each call at which position it writes, and positions past that one are never read. The last position
    of every slot belongs to padding.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(cls, config: LMConfig, slots: int, capacity: int, device: torch.device, dtype: torch.dtype) -> KVCache:
        """Reserve a zeroed cache."""
        shape = (config.num_layers, slots, config.num_kv_heads, capacity, config.head_dim)
        return cls(torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))

    @property
    def capacity(self) -> int:
        """Positions that a slot can hold."""
        return self.keys.shape[3]

    def write(self, layer: int, positions: Tensor, keys: Tensor, values: Tensor, upto: int) -> tuple[Tensor, Tensor]:
        """Store new rows of every slot and return what each may read.

        positions: [slots, time] int64; keys, values: [slots, kv_heads, time, head_dim]; `upto` bounds the positions
        that any slot has reached  →  two of [slots, kv_heads, upto, head_dim]
        """
        index = positions[:, None, :, None].expand_as(keys)
        self.keys[layer].scatter_(2, index, keys)
        self.values[layer].scatter_(2, index, values)
        return self.keys[layer, :, :, :upto], self.values[layer, :, :, :upto]
