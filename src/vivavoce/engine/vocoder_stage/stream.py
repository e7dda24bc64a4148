"""One sequence's place in the vocoder stage: its pieces of mel, their speed, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.device import to_device
from vivavoce.models.vocoder.hift import Reach

OVERLAP_FRAMES = 8
"""Frames at the end of each piece that wait for the next one to be faded into, where a vocoder has no `Reach`."""
CONTEXT_FRAMES = 12
"""Frames before the overlap that a seamless piece sees again. The generator reaches 13 frames to the left, and the
farthest weighs less than 1e-4 of the whole; without the second farthest, seams of 4e-3 can be measured."""


@dataclass(frozen=True, eq=False)
class Crossfade:
    """What is carried from piece to piece.

    overlap: frames at the end of a piece that are not given out; mel_frames: seen again, the overlap included;
    source_frames: how many of them keep the source that was made for them; fade_frames: of the overlap that the fade
    takes, the rest are the new piece's; window: fade in, then fade out, [2 · fade_frames · hop] float32; continuous:
    the phase runs on from the last kept frame, else it starts anew.
    """

    overlap: int
    mel_frames: int
    source_frames: int
    fade_frames: int
    window: Tensor
    continuous: bool


@lru_cache(maxsize=8)
def join_rule(
    joins: CrossfadeMode, hop: int, reach: Reach | None, device: torch.device, overlap: int | None = None
) -> Crossfade:
    """The rule of a vocoder of `hop` samples per frame, this reach and this overlap (`HiFT.overlap`). The cache is
    shared: a rule is a constant.
    """
    if reach is not None:
        # All that was heard is heard again, and nothing that is given out changes: there is one way to join.
        before, after = reach
        return Crossfade(after, before + after, before, 0, torch.zeros(0, device=device), continuous=True)
    if joins is CrossfadeMode.OFFICIAL or overlap is not None:
        frames = OVERLAP_FRAMES if overlap is None else overlap
        window = torch.from_numpy(np.hamming(2 * frames * hop).astype(np.float32)).to(device)
        return Crossfade(frames, frames, frames, frames, window, continuous=False)
    # One frame is enough: there the old version has most of its right neighbours and the new one all it needs.
    # A raised cosine between sample centres adds up to one everywhere.
    size = 2 * hop
    window = torch.sin(torch.pi * (torch.arange(size) + 0.5) / size).square().to(device)
    seen_again = OVERLAP_FRAMES + CONTEXT_FRAMES
    return Crossfade(OVERLAP_FRAMES, seen_again, CONTEXT_FRAMES, 1, window, continuous=True)


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
    """`resize` for a mel that arrives in pieces: each output frame is made once both its neighbours are there.

    Output frame k lies at (k + 1/2) · speed − 1/2 of the input, ends repeated. kept: [frames, bins], the input that
    output frames to come still need; first: place of `kept` in the whole input; made: output frames given out.
    """

    speed: float = 1.0
    kept: Tensor | None = None
    first: int = 0
    made: int = 0

    def count(self, frames: int, final: bool) -> int:
        """Output frames that `push` makes of that many new input frames."""
        if self.speed == 1.0:
            return frames
        end = self.first + (0 if self.kept is None else len(self.kept)) + frames
        if final:
            return max(0, resized_frames(end, self.speed) - self.made)
        return max(0, int((end - 0.5) / self.speed + 0.5) - self.made)

    def push(self, mel: Tensor, final: bool) -> tuple[Tensor, SpeedTail]:
        """mel: [frames, bins] new input  →  [n, bins], possibly of no frames, and the tail after it."""
        if self.speed == 1.0:
            return mel, self
        made = self.made + self.count(len(mel), final)
        kept = mel if self.kept is None else torch.cat((self.kept, mel))
        end = self.first + len(kept)
        out = self._between(kept, made) if made > self.made else mel[:0]
        drop = max(0, min(int((made + 0.5) * self.speed - 0.5), end - 1) - self.first)
        return out, SpeedTail(self.speed, kept[drop:].clone(), self.first + drop, made)

    def _between(self, kept: Tensor, made: int) -> Tensor:
        end = self.first + len(kept)
        # On the CPU: not every device has float64, and float32 would lose the fraction within a minute.
        index = torch.arange(self.made, made, dtype=torch.float64)
        position = ((index + 0.5) * self.speed - 0.5).clamp(0, max(end - 1, 0))
        left = position.floor().clamp(max=max(end - 2, 0))
        weight = to_device((position - left).to(kept.dtype), kept.device)[:, None]
        low = to_device(left.long() - self.first, kept.device)
        high = (low + 1).clamp(max=len(kept) - 1)
        return kept[low] * (1 - weight) + kept[high] * weight


@dataclass(frozen=True)
class PooledTails:
    """Tails in a row of the packed path's pool: `context` frames of mel, of which `known` have their source."""

    row: int
    context: int
    known: int


@dataclass(frozen=True, eq=False)
class Tails:
    """What a stream remembers between pieces. A piece gives a new one; it is never changed.

    On the packed path `pooled` says where mel, source, phase and held are, and they are None here.
    """

    speed: SpeedTail = field(default_factory=SpeedTail)
    waiting: Tensor | None = None
    """[frames, bins] float32, at the speed asked for: too few to be vocoded by themselves."""
    mel: Tensor | None = None
    """[frames, bins] float32: seen again by the next piece, the overlap at its end; None before the first piece."""
    source: Tensor | None = None
    """[samples] float32 of `mel`'s first frames."""
    phase: Tensor | None = None
    """[harmonics] float32 cycles at the end of `source`."""
    held: Tensor | None = None
    """[samples] float32: the first samples of the overlap, to be faded into the next piece."""
    frames: int = 0
    """Frames vocoded so far."""
    pooled: PooledTails | None = None

    @property
    def context(self) -> int:
        """Frames seen again by the next piece."""
        if self.pooled is not None:
            return self.pooled.context
        return 0 if self.mel is None else len(self.mel)


class VocoderStream:
    """One sequence's place: what it was opened with, and its tails, which `VocoderStage.run` alone replaces.

    seed: of the source's noise, None: no noise; speed: of a whole utterance or of a stream's pieces.
    """

    def __init__(self, seed: int | None, speed: float, rule: Crossfade) -> None:
        self.seed, self.speed, self.rule = seed, speed, rule
        self.tails = Tails(SpeedTail(speed))
        self.closed = False
        """It keeps no tails any more; pieces that were on their way may still come."""

    def frames_of(self, frames: int, final: bool, whole: bool) -> int:
        """Frames that the vocoder will work on for a piece of this many, context included.

        0: the piece waits for more. It is too short to give out a sample, or to hold the fade at either end.
        """
        if whole:
            return resized_frames(frames, self.speed)
        tails = self.tails
        fresh = (0 if tails.waiting is None else len(tails.waiting)) + tails.speed.count(frames, final)
        least = self.rule.overlap + 1 if tails.frames == 0 else max(1, self.rule.fade_frames)
        return 0 if fresh < least and not final else tails.context + fresh


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a stream's mel, or a whole utterance's, which is resampled as one and joined to nothing.

    mel: [frames, bins], new frames only, before speed; final: nothing follows.
    """

    stream: VocoderStream
    mel: Tensor
    final: bool
    whole: bool = False

    @property
    def frames(self) -> int:
        """Frames that the vocoder will work on, context included; 0 if the piece will wait for more."""
        return self.stream.frames_of(len(self.mel), self.final, self.whole)


class PieceRow:
    """A piece at the speed asked for, and what its stream remembered: one row of a batch. Its stream is not changed.

    frames: to vocode, the context included, 0 if the piece waits for more or has none; ends: nothing is kept for a next
    piece; before: the stream's tails as they are, empty for a whole utterance; speed: the stream's resampling after
    this piece; fresh: [frames, bins] float32 each, frames that waited, and new ones; new_frames: theirs; seen_again:
    frames at the end that the next piece sees again; source_kept: how many of these, from the first on, keep their
    source.
    """

    def __init__(self, piece: Piece) -> None:
        stream, rule, mel = piece.stream, piece.stream.rule, piece.mel.float()
        self.piece, self.frames, self.ends = piece, piece.frames, piece.final or piece.whole
        self.before, self.speed = Tails() if piece.whole else stream.tails, SpeedTail()
        if piece.whole:
            mel = resize(mel, stream.speed)
        else:
            mel, self.speed = self.before.speed.push(mel, piece.final)
        self.fresh = (mel,) if self.before.waiting is None else (self.before.waiting, mel)
        self.new_frames = sum(map(len, self.fresh))
        self.seen_again = min(rule.mel_frames, self.frames)
        self.source_kept = min(rule.source_frames, self.seen_again - (rule.overlap if rule.continuous else 0))
