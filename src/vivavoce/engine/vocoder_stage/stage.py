"""Pieces of mel of many requests → samples, in padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.transfer import to_device
from vivavoce.engine.vocoder_stage.joins import OVERLAP_FRAMES, join_rule
from vivavoce.engine.vocoder_stage.source import make_sources
from vivavoce.engine.vocoder_stage.stream import Piece, Tails, VocoderStream
from vivavoce.engine.vocoder_stage.work import Work, plan
from vivavoce.models.build import Models

if TYPE_CHECKING:
    from vivavoce.engine.vocoder_stage.packed_stage import PackedStage

FRAME_BUCKET = 8
"""Batches are padded to a multiple of this many frames: convolution kernels are chosen, and on CPUs compiled, anew for
every length that they meet, which takes about as long as a short piece."""


class VocoderStage:
    """The vocoder over pieces of any streams and whole utterances, each as it would be alone.

    The last `OVERLAP_FRAMES` of a piece lack their right neighbours: they are held back and faded into the next
    piece's version of them. The source of frames already spoken is kept, so that its noise and phase run on.

    Args:
        models: networks on one device.
        source_noise: whether the source has its noise; without it the audio is a function of the mel.
        kernels: whether our own kernels and recorded launches are used (see `models.kernels.usable`); a vocoder of
            sizes that they do not know stays on the plain path.
        most_frames: with kernels; of the largest batch that is recorded: larger ones are cut. None: as many as pay.
    """

    def __init__(
        self, models: Models, *, source_noise: bool = True, kernels: bool = False, most_frames: int | None = None
    ) -> None:
        self._vocoder, self._source_noise = models.vocoder, source_noise
        self._device = models.device
        self._hop = models.vocoder.config.samples_per_frame
        self._nothing = torch.zeros(0, device=models.device)
        self._packed = _packed_stage(models, source_noise, most_frames) if kernels else None

    @torch.inference_mode()
    def prepare(self, frames: int | None = None) -> None:
        """Compile and record ahead what batches of up to so many frames need; None: of any size."""
        if self._packed is not None:
            self._packed.prepare(frames)

    def open(self, seed: int, speed: float, joins: Joins) -> VocoderStream:
        """A place for one sequence; joins: of a stream's pieces, a whole utterance has none."""
        return VocoderStream(seed if self._source_noise else None, speed, join_rule(joins, self._hop, self._device))

    def close(self, stream: VocoderStream) -> None:
        """Free what the stream's tails take. Pieces of it that still come are vocoded as of a new stream."""
        if self._packed is not None and not stream.closed:
            self._packed.close(stream)
        stream.tails, stream.closed = Tails(), True

    @torch.inference_mode()
    def run(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Samples of each piece, and new tails for the streams of those that are not whole.

        Nothing is changed if anything fails. A piece that has too little to be vocoded gives no samples and waits
        for the next one.

        Args:
            pieces: of different streams.

        Returns:
            [samples] float32 each on the device, possibly of none.

        Raises:
            ValueError: two pieces are of the same stream.
        """
        if len({id(piece.stream) for piece in pieces}) < len(pieces):
            raise ValueError("the pieces of one call must be of different streams")
        if self._packed is not None:
            return self._packed.run(pieces)
        plans = [plan(piece) for piece in pieces]
        done: dict[int, tuple[Tensor, Tails]] = {}
        for batch in self._batches([one.work for one in plans if one.work is not None]):
            for work, outcome in zip(batch, self._vocode(batch), strict=True):
                done[id(work.piece)] = outcome
        outcomes = [done.get(id(one.piece)) or (self._nothing, one.waiting_tails()) for one in plans]
        for piece, (_, tails) in zip(pieces, outcomes, strict=True):
            if not (piece.whole or piece.stream.closed):
                piece.stream.tails = tails
        return [samples for samples, _ in outcomes]

    def _batches(self, works: list[Work]) -> list[list[Work]]:
        """All in one; on a CPU each by itself: the cores are busy with a single row, nothing is lost on padding, each
        shape that kernels are compiled for serves all companies, and a row is the same to the bit in any of them.
        """
        if self._device.type == "cpu":
            return [[work] for work in works]
        # Those whose source starts anew come first: the others' is computed otherwise.
        return [sorted(works, key=lambda work: work.phase is not None)] if works else []

    def _vocode(self, works: Sequence[Work]) -> list[tuple[Tensor, Tails]]:
        sizes = [work.frames for work in works]
        longest = -(-max(sizes) // FRAME_BUCKET) * FRAME_BUCKET
        lengths = None if min(sizes) == longest else to_device(torch.tensor(sizes), self._device)
        mel = pad_sequence([work.mel for work in works], batch_first=True)
        mel = pad(mel, (0, 0, 0, longest - mel.shape[1])).transpose(1, 2)
        sources = make_sources(self._vocoder, works, self._vocoder.f0(mel, lengths))
        source = pad_sequence([one.samples for one in sources], batch_first=True)
        source = pad(source, (0, longest * self._hop - source.shape[1]))
        batch = self._vocoder.decode(mel, source[:, None], lengths)
        outcomes = []
        for work, made, row in zip(works, sources, batch, strict=True):
            wave = self._fade(work, row[: work.frames * self._hop])
            tails = self._tails(work, wave, made.samples, made.phase)
            whole = work.piece.final or work.piece.whole
            outcomes.append((wave if whole else wave[: -OVERLAP_FRAMES * self._hop], tails))
        return outcomes

    def _fade(self, work: Work, wave: Tensor) -> Tensor:
        """From the overlap with the piece before on, faded; works in place."""
        if work.before.held is None:
            return wave
        rule = work.piece.stream.rule
        wave = wave[(work.before.context - OVERLAP_FRAMES) * self._hop :]
        fade = rule.fade_frames * self._hop
        wave[:fade].mul_(rule.window[:fade]).add_(work.before.held * rule.window[fade:])
        return wave

    def _tails(self, work: Work, wave: Tensor, source: Tensor, phase: Tensor | None) -> Tails:
        """After this piece; wave: faded, the overlap included. Copies, so that no tail keeps a batch alive."""
        if work.piece.final or work.piece.whole:
            return Tails()
        rule = work.piece.stream.rule
        again = min(rule.mel_frames, work.frames)
        first = work.frames - again
        kept = min(rule.source_frames, again - (OVERLAP_FRAMES if rule.continuous else 0))
        overlap = len(wave) - OVERLAP_FRAMES * self._hop
        return Tails(
            speed=work.speed,
            mel=work.mel[first:].clone(),
            source=source[first * self._hop : (first + kept) * self._hop].clone(),
            phase=phase,
            held=wave[overlap : overlap + rule.fade_frames * self._hop].clone(),
            frames=work.start + work.frames,
        )


def _packed_stage(models: Models, source_noise: bool, most_frames: int | None) -> PackedStage | None:
    # Triton is not installed everywhere.
    from vivavoce.engine.vocoder_stage.packed_stage import PackedStage
    from vivavoce.models.vocoder.packed import supports

    if not supports(models.vocoder.config):
        return None
    return PackedStage(models, source_noise=source_noise, most_frames=most_frames)
