"""The vocoder stage: pieces of mel of many requests in one batch, samples out, what streams remember between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.vocoder_stage.padded import PaddedVocoding
from vivavoce.engine.vocoder_stage.stream import Piece, PieceRow, Tails, VocoderStream, join_rule
from vivavoce.models.build import Models
from vivavoce.models.layers import PairRunner, in_turn

if TYPE_CHECKING:
    from vivavoce.engine.vocoder_stage.packed import PackedVocoding


class VocoderStage:
    """The vocoder over pieces of any streams and whole utterances, each as it would be alone.

    The last frames of a piece lack their right neighbours: they are held back, and the next piece's version of them is
    given, faded where what was given would change. The source of frames already spoken is kept, so that its noise and
    phase run on.

    source_noise: whether the source has its noise; without it the audio is a function of the mel.
    kernels: whether our own kernels and recorded launches are used (see `models.kernels.usable`); a vocoder of sizes
    that they do not know stays on the plain path.
    most_frames: with kernels; of the largest batch that is recorded: larger ones are cut. None: as many as pay.
    both: without kernels, does what is independent within a piece; None: in turn.
    """

    def __init__(
        self,
        models: Models,
        *,
        source_noise: bool = True,
        kernels: bool = False,
        most_frames: int | None = None,
        both: PairRunner | None = None,
    ) -> None:
        self._source_noise, self._vocoder = source_noise, models.vocoder
        self._no_samples = torch.zeros(0, device=models.device)
        self.vocoding: PaddedVocoding | PackedVocoding = PaddedVocoding(models, both or in_turn)
        if kernels:
            # Triton is not installed everywhere.
            from vivavoce.engine.vocoder_stage.packed import PackedVocoding
            from vivavoce.models.vocoder.packed import supports

            if supports(models.vocoder):
                self.vocoding = PackedVocoding(models, source_noise=source_noise, most_frames=most_frames)

    @torch.inference_mode()
    def prepare(self, frames: int | None = None) -> None:
        """Compile and record ahead what batches of up to this many frames need; None: of any size."""
        self.vocoding.prepare(frames)

    def open(self, seed: int, speed: float, joins: CrossfadeMode) -> VocoderStream:
        """A place for one sequence; joins: of a stream's pieces, a whole utterance has none."""
        vocoder = self._vocoder
        hop, device = vocoder.config.samples_per_frame, self._no_samples.device
        rule = join_rule(joins, hop, vocoder.reach, device, vocoder.overlap)
        # The official code ignores the speed of a stream, or refuses it where there are no others.
        speed = 1.0 if joins is CrossfadeMode.OFFICIAL and vocoder.overlap is None else speed
        return VocoderStream(seed if self._source_noise else None, speed, rule)

    def close(self, stream: VocoderStream) -> None:
        """Free what the stream's tails take. Pieces of it that still come are vocoded as of a new stream."""
        self.vocoding.release(stream.tails)
        stream.tails, stream.closed = Tails(), True

    @torch.inference_mode()
    def run(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Samples of each piece, [n] float32 on the device, and new tails for the streams of those that are not whole.

        Nothing is changed if anything fails. A piece that has too little to be vocoded gives no samples and waits
        for the next one. ValueError: two pieces are of the same stream.
        """
        if len({id(piece.stream) for piece in pieces}) < len(pieces):
            raise ValueError("the pieces of one call must be of different streams")
        rows = [PieceRow(piece) for piece in pieces]
        ready = [row for row in rows if row.frames]
        made = dict(zip(map(id, ready), self.vocoding.vocode(ready), strict=True))
        given = []
        for row in rows:
            stream, samples = row.piece.stream, self._no_samples
            if row.frames:
                samples, tails = made[id(row)]
            else:  # copies, so that no tail keeps a batch alive
                tails = replace(row.before, speed=row.speed, waiting=torch.cat(row.fresh))
            given.append(samples)
            if row.piece.whole or stream.closed:
                continue
            if row.frames:
                self.vocoding.release(stream.tails)
            stream.tails = tails
        return given
