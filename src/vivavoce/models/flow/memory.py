"""What a network of the flow keeps of a row's past, as the network sees it.

All of the flow is causal but for attention, and attention never looks past the end of its block. So blocks that were
computed stay as they are, and the next ones need two things of them: the keys and values of every attention, and the
last inputs of every convolution. Where these lie is not the network's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

KEY_TILE = 64
"""Keys that attention kernels take at a time, counted from the row's start; where memory lies in pages that such
kernels read, a page holds so many positions."""


@dataclass(frozen=True)
class MemoryShape:
    """What one pass of a network leaves behind.

    sites: attentions; key_channels: of one position's key and value together; tail: positions that precede a
    convolution's first one; tail_channels: inputs of all convolutions, side by side.
    """

    sites: int
    key_channels: int
    tail: int
    tail_channels: int


class Memory(Protocol):
    """The past of a batch's rows, for one pass of a network; the pass leaves there what its own future needs.

    A pass asks each site once. Rows may have pasts and lengths of their own.
    """

    def extend(self, first: int, x: Tensor) -> Tensor:
        """Put before a convolution's input what preceded it.

        first: the convolution's first channel among all tails; x: [batch, time, channels]
        →  [batch, tail + time, channels]
        """
        ...

    def recall(self, site: int, keys: Tensor) -> Tensor:
        """Keys and values of an attention's whole row, the new ones included.

        keys: [batch, time, key channels]  →  [batch, keys, key channels]; what lies past a row's end is finite
        """
        ...
