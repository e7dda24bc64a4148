"""Speaking faster or slower: the mel is resampled in time before the vocoder, pitch stays."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def resize(mel: Tensor, speed: float) -> Tensor:
    """The whole mel in int(frames / speed) frames; mel: [frames, bins]  →  [frames', bins]."""
    if speed == 1.0:
        return mel
    frames = max(1, int(len(mel) / speed))
    return interpolate(mel.T[None], size=frames, mode="linear")[0].T


class SpeedStream:
    """`resize` for a mel that arrives in pieces: each output frame is made once both its neighbours are there.

    Output frame k lies at (k + 1/2) · speed − 1/2 of the input, ends repeated.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._kept: Tensor | None = None
        self._first = 0
        self._next = 0

    def push(self, mel: Tensor, final: bool) -> Tensor:
        """mel: [frames, bins] new input  →  [n, bins], possibly of no frames."""
        if self._speed == 1.0:
            return mel
        self._kept = mel if self._kept is None else torch.cat((self._kept, mel))
        end = self._first + len(self._kept)
        total = max(1, int(end / self._speed))
        last = total if final else int((end - 0.5) / self._speed + 0.5)
        # On the CPU: not every device has float64, and float32 would lose the fraction within a minute.
        index = torch.arange(self._next, max(last, self._next), dtype=torch.float64)
        position = ((index + 0.5) * self._speed - 0.5).clamp(0, max(end - 1, 0))
        left = position.floor().clamp(max=max(end - 2, 0))
        weight = (position - left).to(mel.device, mel.dtype)[:, None]
        low = left.long().to(mel.device) - self._first
        high = (low + 1).clamp(max=len(self._kept) - 1)
        out = self._kept[low] * (1 - weight) + self._kept[high] * weight
        self._next += len(index)
        drop = max(0, min(int((self._next + 0.5) * self._speed - 0.5), end - 1) - self._first)
        self._kept, self._first = self._kept[drop:], self._first + drop
        return out
