"""One sequence's place in the vocoder stage, and the pieces of mel that are put to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from vivavoce.engine.vocoder_stage.joins import OVERLAP_FRAMES, JoinRule
from vivavoce.engine.vocoder_stage.speed import SpeedStream, SpeedTail, resized_frames


@dataclass(frozen=True)
class Place:
    """Tails that lie in the pool of the packed path."""

    row: int
    context: int
    """Frames of mel."""
    known: int
    """How many of them have their source."""


@dataclass(frozen=True, eq=False)
class Tails:
    """What a stream remembers between pieces. A piece gives a new one; none is ever changed.

    On the packed path `place` says where mel, source, phase and held are, and they are None here.
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
    place: Place | None = None

    @property
    def context(self) -> int:
        """Frames seen again by the next piece."""
        if self.place is not None:
            return self.place.context
        return 0 if self.mel is None else len(self.mel)


class VocoderStream:
    """One sequence's place: what it was opened with, and its tails, which `VocoderStage.run` alone replaces."""

    def __init__(self, seed: int | None, speed: float, rule: JoinRule) -> None:
        """seed: of the source's noise, None: no noise; speed: of whole utterances and of seamless streams."""
        self.seed, self.speed, self.rule = seed, speed, rule
        # The official code ignores the speed of a stream.
        self.resampler = SpeedStream(speed if rule.continuous else 1.0)
        self.tails = Tails()
        self.closed = False
        """It keeps no tails any more; pieces that were on their way may still come."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a stream's mel, or a whole utterance's."""

    stream: VocoderStream
    mel: Tensor
    """[frames, bins], new frames only, before speed."""
    final: bool
    """Nothing follows."""
    whole: bool = False
    """The mel of a whole utterance: resampled as one, joined to nothing."""

    @property
    def frames(self) -> int:
        """Frames that the vocoder will work on, context included; 0 if the piece will wait for more."""
        if self.whole:
            return resized_frames(len(self.mel), self.stream.speed)
        tails = self.stream.tails
        fresh = self.stream.resampler.count(tails.speed, len(self.mel), self.final)
        fresh += 0 if tails.waiting is None else len(tails.waiting)
        return 0 if must_wait(self, fresh) else tails.context + fresh


def must_wait(piece: Piece, fresh: int) -> bool:
    """Whether that many frames are too few to give out a sample, or to hold the fade at either end."""
    if piece.final:
        return False
    return fresh <= OVERLAP_FRAMES if piece.stream.tails.frames == 0 else fresh < piece.stream.rule.fade_frames
