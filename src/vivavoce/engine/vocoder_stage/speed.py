"""Speaking faster or slower: the mel is resampled in time before the vocoder, pitch stays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vivavoce.engine.transfer import to_device


def resized_frames(frames: int, speed: float) -> int:
    """Frames that `resize` makes of that many."""
    return frames if speed == 1.0 or frames == 0 else max(1, int(frames / speed))


def resize(mel: Tensor, speed: float) -> Tensor:
    """The whole mel in `resized_frames`; mel: [frames, bins]  →  [frames', bins]."""
    if speed == 1.0 or not len(mel):
        return mel
    return interpolate(mel.T[None], size=resized_frames(len(mel), speed), mode="linear")[0].T


@dataclass(frozen=True, eq=False)
class SpeedTail:
    """What resampling a stream remembers: the input that output frames to come still need."""

    kept: Tensor | None = None
    """[frames, bins]."""
    first: int = 0
    """Place of `kept` in the whole input."""
    made: int = 0
    """Output frames given out."""


@dataclass(frozen=True)
class SpeedStream:
    """`resize` for a mel that arrives in pieces: each output frame is made once both its neighbours are there.

    Output frame k lies at (k + 1/2) · speed − 1/2 of the input, ends repeated.
    """

    speed: float

    def count(self, tail: SpeedTail, frames: int, final: bool) -> int:
        """Output frames that `push` makes of that many new input frames."""
        if self.speed == 1.0:
            return frames
        end = tail.first + (0 if tail.kept is None else len(tail.kept)) + frames
        if final:
            return max(0, resized_frames(end, self.speed) - tail.made)
        return max(0, int((end - 0.5) / self.speed + 0.5) - tail.made)

    def push(self, tail: SpeedTail, mel: Tensor, final: bool) -> tuple[Tensor, SpeedTail]:
        """mel: [frames, bins] new input  →  [n, bins], possibly of no frames, and the tail after it."""
        count = self.count(tail, len(mel), final)
        if self.speed == 1.0:
            return mel, tail
        kept = mel if tail.kept is None else torch.cat((tail.kept, mel))
        end = tail.first + len(kept)
        made = tail.made + count
        out = self._between(kept, tail.first, tail.made, count) if count else mel[:0]
        drop = max(0, min(int((made + 0.5) * self.speed - 0.5), end - 1) - tail.first)
        return out, SpeedTail(kept[drop:].clone(), tail.first + drop, made)

    def _between(self, kept: Tensor, first: int, made: int, count: int) -> Tensor:
        end = first + len(kept)
        # On the CPU: not every device has float64, and float32 would lose the fraction within a minute.
        index = torch.arange(made, made + count, dtype=torch.float64)
        position = ((index + 0.5) * self.speed - 0.5).clamp(0, max(end - 1, 0))
        left = position.floor().clamp(max=max(end - 2, 0))
        weight = to_device((position - left).to(kept.dtype), kept.device)[:, None]
        low = to_device(left.long() - first, kept.device)
        high = (low + 1).clamp(max=len(kept) - 1)
        return kept[low] * (1 - weight) + kept[high] * weight
