"""What a piece comes to: frames to vocode now, or frames that wait."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vivavoce.engine.vocoder_stage.speed import SpeedTail, resize
from vivavoce.engine.vocoder_stage.stream import Piece, Tails, must_wait


@dataclass(frozen=True, eq=False)
class Work:
    """One row of a batch."""

    piece: Piece
    before: Tails
    """The stream's tails as they are; none for a whole utterance."""
    speed: SpeedTail
    """The stream's resampling after this piece."""
    mel: Tensor
    """[frames, bins] float32: the context and what is new, at the speed asked for."""

    @property
    def frames(self) -> int:
        """Frames of `mel`."""
        return len(self.mel)

    @property
    def start(self) -> int:
        """Place of the first frame in the whole stream."""
        return self.before.frames - self.before.context

    @property
    def phase(self) -> Tensor | None:
        """[harmonics], what the source runs on from; None: it starts anew."""
        return self.before.phase


@dataclass(frozen=True, eq=False)
class Plan:
    """A piece, and its work unless it must wait or has none."""

    piece: Piece
    work: Work | None
    speed: SpeedTail
    waiting: Tensor
    """[frames, bins] new frames, at the speed asked for."""

    def waiting_tails(self) -> Tails:
        """The stream's tails where nothing was vocoded."""
        return replace(self.piece.stream.tails, speed=self.speed, waiting=self.waiting.clone())


def plan(piece: Piece) -> Plan:
    """Resample the piece and put it to what its stream remembers; changes nothing."""
    stream = piece.stream
    before = Tails() if piece.whole else stream.tails
    if piece.whole:
        fresh, speed = resize(piece.mel.float(), stream.speed), before.speed
    else:
        fresh, speed = stream.resampler.push(before.speed, piece.mel.float(), piece.final)
        fresh = fresh if before.waiting is None else torch.cat((before.waiting, fresh))
    mel = fresh if before.mel is None else torch.cat((before.mel, fresh))
    idle = not len(mel) or (not piece.whole and must_wait(piece, len(fresh)))
    return Plan(piece, None if idle else Work(piece, before, speed, mel), speed, fresh)
