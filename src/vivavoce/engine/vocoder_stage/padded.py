"""Pieces of mel → samples in padded batches, by the network as it is: any device, the reference of packed batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from vivavoce.engine.device import to_device
from vivavoce.engine.vocoder_stage.stream import PieceRow, Tails
from vivavoce.models.build import Models
from vivavoce.models.layers import PairRunner, in_turn

FRAME_BUCKET = 8
"""Batches are padded to a multiple of this many frames: convolution kernels are chosen, and on CPUs compiled, anew for
every length that they meet, which takes about as long as a short piece."""


class PaddedVocoding:
    """Vocodes rows side by side."""

    def __init__(self, models: Models, both: PairRunner = in_turn) -> None:
        self._vocoder, self._device, self._both = models.vocoder, models.device, both
        self._hop = models.vocoder.config.samples_per_frame
        self.one_by_one = models.device.type == "cpu"
        """Each row is a batch: a CPU's cores are busy with one, nothing is lost on padding, each shape that kernels are
        compiled for serves all batches, and a row is the same to the bit beside any other."""

    def prepare(self, frames: int | None) -> None:
        """Record ahead what batches of up to this many frames need, None: of any size; here nothing is recorded."""

    def release(self, tails: Tails) -> None:
        """Give back what tails take beside their own tensors; here nothing."""

    def vocode(self, rows: Sequence[PieceRow]) -> list[tuple[Tensor, Tails]]:
        """Samples of each row, and its stream's tails after it; a closed stream's may be anything."""
        if self.one_by_one:
            return [self._batch([row])[0] for row in rows]
        # Rows whose source starts anew come first: the others' is computed otherwise.
        batch = sorted(rows, key=lambda row: row.before.phase is not None)
        made = dict(zip(map(id, batch), self._batch(batch) if batch else (), strict=True))
        return [made[id(row)] for row in rows]

    def _batch(self, rows: Sequence[PieceRow]) -> list[tuple[Tensor, Tails]]:
        sizes = [row.frames for row in rows]
        longest = -(-max(sizes) // FRAME_BUCKET) * FRAME_BUCKET
        lengths = None if min(sizes) == longest else to_device(torch.tensor(sizes), self._device)
        mels = [torch.cat(row.fresh if row.before.mel is None else (row.before.mel, *row.fresh)) for row in rows]
        mel = pad_sequence(mels, batch_first=True)
        mel = pad(mel, (0, 0, 0, longest - mel.shape[1])).transpose(1, 2)
        f0 = self._vocoder.f0(mel, lengths)
        new = sum(row.before.phase is None for row in rows)
        parts = ((rows[:new], f0[:new]), (rows[new:], f0[new:]))
        sources = [source for part, pitch in parts if part for source in self._sources(part, pitch)]
        source = pad_sequence([samples for samples, _ in sources], batch_first=True)
        source = pad(source, (0, longest * self._hop - source.shape[1]))
        waves = self._vocoder.decode(mel, source[:, None], lengths, self._both)
        return [self._finished(*one) for one in zip(rows, mels, sources, waves, strict=True)]

    def _sources(self, rows: Sequence[PieceRow], f0: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Excitation of rows that all run on from a phase, or all start anew; f0: [batch, frames] Hz.

        →  [frames · hop] float32, and [harmonics] cycles where the next piece's new source begins, None: it starts anew
        """
        vocoder, hop = self._vocoder, self._hop
        phases = [row.before.phase for row in rows if row.before.phase is not None]
        carried = torch.stack(phases) if phases else None
        kept = [None if carried is None else row.before.source for row in rows]
        known = [0 if one is None else len(one) // hop for one in kept]
        pitch = pad_sequence([one[first : row.frames] for row, one, first in zip(rows, f0, known, strict=True)], True)
        # One copy to the device: seed, first noise counter, frame at whose end the phase is kept.
        numbers = [
            (
                row.piece.stream.seed or 0,
                (row.before.frames - row.before.context + first) * hop,
                max(0, row.frames - row.piece.stream.rule.overlap - first - 1),
            )
            for row, first in zip(rows, known, strict=True)
        ]
        seeds, counters, ends = to_device(torch.tensor(numbers), f0.device).unbind(1)
        noise = None
        if rows[0].piece.stream.seed is not None:
            places = torch.arange(pitch.shape[1] * hop, device=f0.device) + counters[:, None]
            noise = vocoder.source.draw(seeds[:, None], places)
            carried = vocoder.source.initial(seeds) if carried is None else carried
        cycles = vocoder.source.cycles(pitch, carried)
        made = vocoder.source.excite(pitch, cycles, noise, carried)[:, 0]
        at_end = cycles.gather(1, ends[:, None, None].expand(-1, 1, cycles.shape[2]))[:, 0] % 1
        sources = []
        for row, samples, first, phase in zip(rows, made, known, at_end, strict=True):
            samples, old = samples[: (row.frames - first) * hop], row.before.source
            if old is not None:
                samples = torch.cat((old, samples[len(old) - first * hop :]))
            sources.append((samples, phase if row.piece.stream.rule.continuous else None))
        return sources

    def _finished(
        self, row: PieceRow, mel: Tensor, source: tuple[Tensor, Tensor | None], wave: Tensor
    ) -> tuple[Tensor, Tails]:
        """Samples, faded in place into what was held, and the tails after them: copies that keep no batch alive."""
        hop, rule, before = self._hop, row.piece.stream.rule, row.before
        wave, fade = wave[: row.frames * hop], rule.fade_frames * hop
        if before.held is not None:
            wave = wave[(before.context - rule.overlap) * hop :]
            wave[:fade].mul_(rule.window[:fade]).add_(before.held * rule.window[fade:])
        if row.ends:
            return wave, Tails()
        first, kept = row.frames - row.seen_again, row.source_kept
        overlap = len(wave) - rule.overlap * hop
        return wave[:overlap], Tails(
            speed=row.speed,
            mel=mel[first:].clone(),
            source=source[0][first * hop : (first + kept) * hop].clone(),
            phase=source[1],
            held=wave[overlap : overlap + fade].clone(),
            frames=before.frames + row.new_frames,
        )
