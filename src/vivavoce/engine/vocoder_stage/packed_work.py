"""What a piece comes to in a packed batch: counts, by which the host tells kernels what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.vocoder_stage.joins import OVERLAP_FRAMES
from vivavoce.engine.vocoder_stage.speed import SpeedTail, resize
from vivavoce.engine.vocoder_stage.stream import Piece, Place, Tails, must_wait
from vivavoce.models.kernels.row_table import PackedRow

RULES = (Joins.OFFICIAL, Joins.SEAMLESS)
"""Join rules by their number in the table."""


@dataclass(frozen=True, eq=False)
class PackedWork:
    """A piece, what its stream remembered, and what is new of it."""

    piece: Piece
    before: Tails
    speed: SpeedTail
    """The stream's resampling after this piece."""
    fresh: tuple[Tensor, ...]
    """[frames, bins] each: frames that waited, and new ones, at the speed asked for."""
    new_frames: int
    """Frames of `fresh`."""
    frames: int
    """Frames to vocode, the context included; 0 if the piece waits for more or has none."""

    @property
    def lasting(self) -> bool:
        """Whether the stream goes on after the piece."""
        return not (self.piece.final or self.piece.whole or self.piece.stream.closed)

    @property
    def given_frames(self) -> int:
        """Frames given out."""
        held = 0 if self.piece.final or self.piece.whole else OVERLAP_FRAMES
        return self.frames - self._first - held

    @property
    def _first(self) -> int:
        return 0 if self.before.place is None else self.before.context - OVERLAP_FRAMES

    def place_after(self, row: int) -> Place:
        """What the pool's row will hold."""
        rule = self.piece.stream.rule
        context = min(rule.mel_frames, self.frames)
        known = min(rule.source_frames, context - (OVERLAP_FRAMES if rule.continuous else 0))
        return Place(row, context, known)

    def tails_after(self, place: Place | None) -> Tails:
        """The stream's tails once this is vocoded; place: None if it ends."""
        if place is None:
            return Tails()
        return Tails(speed=self.speed, place=place, frames=self.before.frames + self.new_frames)

    def row(self, start: int, fresh: int, out: int, after: Place | None) -> PackedRow:
        """Its row of the table; start, fresh, out: see `PackedRow`; after: where its tails go."""
        stream, before, frames = self.piece.stream, self.before.place, self.frames
        runs_on = before is not None and stream.rule.continuous
        known = 0 if before is None else before.known
        origin = known if runs_on else 0
        return PackedRow(
            start=start,
            frames=frames,
            known=known,
            origin=origin,
            carried=int(runs_on),
            seed=stream.seed or 0,
            counter=self.before.frames - self.before.context,
            kept_phase=max(origin, frames - OVERLAP_FRAMES - 1),
            context=self.before.context,
            fresh=fresh,
            before=0 if before is None else before.row,
            after=-1 if after is None else after.row,
            tail=0 if after is None else frames - after.context,
            tail_known=0 if after is None else after.known,
            held=frames - OVERLAP_FRAMES,
            fade=stream.rule.fade_frames,
            rule=int(stream.rule.continuous),
            faded=int(before is not None),
            first=self._first,
            end=self._first + self.given_frames,
            out=out,
        )


def packed_work(piece: Piece) -> PackedWork:
    """Resample the piece; changes nothing."""
    stream = piece.stream
    if piece.whole:
        mel = resize(piece.mel.float(), stream.speed)
        return PackedWork(piece, Tails(), SpeedTail(), (mel,), len(mel), len(mel))
    before = stream.tails
    fresh, speed = stream.resampler.push(before.speed, piece.mel.float(), piece.final)
    parts = (fresh,) if before.waiting is None else (before.waiting, fresh)
    new = sum(map(len, parts))
    return PackedWork(piece, before, speed, parts, new, 0 if must_wait(piece, new) else before.context + new)


def packed_batches(works: Sequence[PackedWork], gap: int, most: int) -> list[list[PackedWork]]:
    """Works in order, in batches of at most that many frames, `gap` after each row; a longer row is alone."""
    batches: list[list[PackedWork]] = []
    room = 0
    for work in works:
        size = work.frames + gap
        if size > room:
            batches.append([])
            room = most
        batches[-1].append(work)
        room -= size
    return batches
