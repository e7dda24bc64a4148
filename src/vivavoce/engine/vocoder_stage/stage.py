"""The vocoder stage: computes samples from pieces of mel, in batches, and keeps streams' tails between pieces.

`PaddedVocoding` runs the plain network, on any device; `packed.py` runs our kernels, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad
from torch.nn.utils.rnn import pad_sequence

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.device import to_device
from vivavoce.models.build import Models
from vivavoce.models.layers import PairRunner, in_turn
from vivavoce.models.vocoder.hift import Reach

if TYPE_CHECKING:
    from vivavoce.engine.vocoder_stage.packed import PackedVocoding

OVERLAP_FRAMES = 8
"""Frames at a piece's end that are held back to be crossfaded with the next piece, for a vocoder without `Reach`."""
CONTEXT_FRAMES = 12
"""Frames before the overlap that a seamless piece computes again. The generator reads 13 frames to the left; the
farthest frame contributes less than 1e-4 of the whole. With only 11 frames, joins have measurable steps of 4e-3."""
FRAME_BUCKET = 8
"""Batches are padded to a multiple of this many frames, because convolution kernels are chosen, and on CPUs compiled,
for each new length, which takes about as long as computing a short piece."""


@dataclass(frozen=True, eq=False)
class Crossfade:
    """The rule by which a piece is joined to the next piece.

    overlap: frames at the end of a piece that are held back; mel_frames: frames that the next piece computes again, the
    overlap included; source_frames: number of first mel_frames that keep their source; fade_frames: frames of the
    overlap that are crossfaded, the rest comes from the next piece; window: fade-in weights, then fade-out weights, [2
    · fade_frames · hop] float32; continuous: whether the source's phase continues or restarts.
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
    """Return a vocoder's crossfade rule, cached: do not change it. hop: samples per frame; overlap: `HiFT.overlap`."""
    if reach is not None:
        # All frames within reach are computed again, so samples do not depend on the cut, and both modes are the same.
        before, after = reach
        return Crossfade(after, before + after, before, 0, torch.zeros(0, device=device), continuous=True)
    if joins is CrossfadeMode.OFFICIAL or overlap is not None:
        frames = OVERLAP_FRAMES if overlap is None else overlap
        window = torch.from_numpy(np.hamming(2 * frames * hop).astype(np.float32)).to(device)
        return Crossfade(frames, frames, frames, frames, window, continuous=False)
    # A crossfade of one frame is enough: the old piece knew most of this frame's later neighbours.
    size = 2 * hop
    window = torch.sin(torch.pi * (torch.arange(size) + 0.5) / size).square().to(device)
    seen_again = OVERLAP_FRAMES + CONTEXT_FRAMES
    return Crossfade(OVERLAP_FRAMES, seen_again, CONTEXT_FRAMES, 1, window, continuous=True)


def resized_frames(frames: int, speed: float) -> int:
    return frames if speed == 1.0 or frames == 0 else max(1, int(frames / speed))


def resize(mel: Tensor, speed: float) -> Tensor:
    """Resample a whole mel to this speed; mel: [frames, bins]  →  [`resized_frames`, bins]."""
    if speed == 1.0 or not len(mel):
        return mel
    return interpolate(mel.T[None], size=resized_frames(len(mel), speed), mode="linear")[0].T


@dataclass(frozen=True, eq=False)
class SpeedTail:
    """Does `resize` for a mel that arrives in pieces: an output frame is made once its two input frames exist.

    Output frame k lies at position (k + 1/2) · speed − 1/2 of the input, whose ends are repeated. kept: [frames, bins],
    input that later output frames need; first: input index of the first kept frame; made: number of output frames.
    """

    speed: float
    kept: Tensor | None = None
    first: int = 0
    made: int = 0

    def count(self, frames: int, final: bool) -> int:
        end = self.first + (0 if self.kept is None else len(self.kept)) + frames
        if final:
            return max(0, resized_frames(end, self.speed) - self.made)
        return max(0, int((end - 0.5) / self.speed + 0.5) - self.made)

    def push(self, mel: Tensor, final: bool) -> tuple[Tensor, SpeedTail]:
        """Return output frames, [n ≥ 0, bins], and the tail after this input; mel: [frames, bins], the new input."""
        made = self.made + self.count(len(mel), final)
        kept = mel if self.kept is None else torch.cat((self.kept, mel))
        end = self.first + len(kept)
        out = self._between(kept, made) if made > self.made else mel[:0]
        drop = max(0, min(int((made + 0.5) * self.speed - 0.5), end - 1) - self.first)
        return out, SpeedTail(self.speed, kept[drop:].clone(), self.first + drop, made)

    def _between(self, kept: Tensor, made: int) -> Tensor:
        end = self.first + len(kept)
        # On the CPU, because not every device has float64, and float32 would lose the phase's fraction within a minute.
        index = torch.arange(self.made, made, dtype=torch.float64)
        position = ((index + 0.5) * self.speed - 0.5).clamp(0, max(end - 1, 0))
        left = position.floor().clamp(max=max(end - 2, 0))
        weight = to_device((position - left).to(kept.dtype), kept.device)[:, None]
        low = to_device(left.long() - self.first, kept.device)
        high = (low + 1).clamp(max=len(kept) - 1)
        return kept[low] * (1 - weight) + kept[high] * weight


@dataclass(frozen=True)
class PooledTails:
    """The end of a stream's last piece, kept in one row of the packed path's pool.

    row: index in the pool; known: number of the row's first mel frames that have their source signal kept, too.
    """

    row: int
    known: int


@dataclass(frozen=True, eq=False)
class Tails:
    """The values that a stream keeps between pieces. Each piece makes a new object; objects are never changed.

    On the packed path mel, source, phase and held are None, and `pooled` tells where they are stored.
    """

    speed: SpeedTail | None = None
    """The state of resampling; None if the speed is 1, or the utterance is whole."""
    waiting: Tensor | None = None
    """[frames, bins] float32, at the stream's speed: too few frames to be vocoded by themselves."""
    mel: Tensor | None = None
    """[frames, bins] float32 for the next piece to compute again, the overlap last; None before the first piece."""
    source: Tensor | None = None
    """[samples] float32: the vocoder's source signal for the first frames of `mel`."""
    phase: Tensor | None = None
    """[harmonics] float32: the phases of the harmonics at the end of `source`, in cycles."""
    held: Tensor | None = None
    """[samples] float32: the first samples of the overlap, to be faded into the next piece."""
    frames: int = 0
    """Number of frames vocoded so far."""
    context: int = 0
    """Number of frames that the next row computes again."""
    pooled: PooledTails | None = None


@dataclass(eq=False)
class VocoderStream:
    """The state of one sequence: its settings, and its tails, which only `VocoderStage` replaces.

    seed: seed of the source's noise, None: no noise; speed: speed of whole utterances and of pieces.
    """

    seed: int | None
    speed: float
    rule: Crossfade
    tails: Tails
    closed: bool = False
    """The stream keeps no tails any more; pieces that were begun earlier may still arrive."""

    def frames_of(self, frames: int, final: bool, whole: bool) -> int:
        """Return how many frames the vocoder will compute for a piece of this many frames, context included.

        0: the piece waits for more frames, because it is too short to give a sample, or to be crossfaded at both ends.
        """
        if whole:
            return resized_frames(frames, self.speed)
        tails = self.tails
        fresh = frames if tails.speed is None else tails.speed.count(frames, final)
        fresh += 0 if tails.waiting is None else len(tails.waiting)
        least = self.rule.overlap + 1 if tails.frames == 0 else max(1, self.rule.fade_frames)
        return 0 if fresh < least and not final else tails.context + fresh


@dataclass(eq=False)
class VocoderRow:
    """One row of a batch: the next part of a stream's mel, or the mel of a whole utterance.

    mel: [frames, bins], only frames that were not in an earlier row, before the speed is applied; final: the stream's
    last row; whole: the row is a whole utterance, which is resampled at once and needs no crossfade.
    """

    stream: VocoderStream
    mel: Tensor
    final: bool
    whole: bool = False
    frames: int = field(init=False)
    """Frames that the vocoder computes, context included; 0 if the row waits for more."""
    before: Tails = field(init=False)
    """The stream's tails before this row, empty for a whole utterance."""
    speed: SpeedTail | None = field(init=False, default=None)
    """The stream's resampling state after this row."""
    fresh: tuple[Tensor, ...] = field(init=False)
    """[frames, bins] float32 each, at the stream's speed: the frames that waited, if any, then the row's new frames."""
    new_frames: int = field(init=False)
    seen_again: int = field(init=False)
    """Number of frames at the end that the next row computes again."""
    source_kept: int = field(init=False)
    """Number of `seen_again` frames, from the first on, that keep their source."""

    def __post_init__(self) -> None:
        self.frames = self.stream.frames_of(len(self.mel), self.final, self.whole)

    def load(self) -> None:
        """Resample the mel to the stream's speed, on the stage's CUDA stream. The row's stream is not changed."""
        stream, rule, mel = self.stream, self.stream.rule, self.mel.float()
        self.before = Tails() if self.whole else stream.tails
        if self.whole:
            mel = resize(mel, stream.speed)
        elif self.before.speed is not None:
            mel, self.speed = self.before.speed.push(mel, self.final)
        self.fresh = (mel,) if self.before.waiting is None else (self.before.waiting, mel)
        self.new_frames = sum(map(len, self.fresh))
        self.seen_again = min(rule.mel_frames, self.frames)
        self.source_kept = min(rule.source_frames, self.seen_again - (rule.overlap if rule.continuous else 0))


class PaddedVocoding:
    def __init__(self, models: Models, both: PairRunner = in_turn) -> None:
        self._vocoder, self._device, self._both = models.vocoder, models.device, both
        self._hop = models.vocoder.config.samples_per_frame
        self.one_by_one = models.device.type == "cpu"
        """Whether each row is a batch of its own. On a CPU one row keeps all cores busy, without padding; a compiled
        shape then serves all batches, and a row's bits do not depend on other rows."""

    def prepare(self, frames: int | None) -> None:
        """Do nothing: this path has no CUDA graphs."""

    def release(self, tails: Tails) -> None:
        """Do nothing: on this path tails have no memory but their own tensors."""

    def vocode(self, rows: Sequence[VocoderRow]) -> list[tuple[Tensor, Tails]]:
        """Return each row's samples, and its stream's tails after it; tails of a closed stream may have any values."""
        if self.one_by_one:
            return [self._batch([row])[0] for row in rows]
        # Rows that start a new source come first, because `_sources` computes them separately.
        batch = sorted(rows, key=lambda row: row.before.phase is not None)
        made = dict(zip(map(id, batch), self._batch(batch) if batch else (), strict=True))
        return [made[id(row)] for row in rows]

    def _batch(self, rows: Sequence[VocoderRow]) -> list[tuple[Tensor, Tails]]:
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

    def _sources(self, rows: Sequence[VocoderRow], f0: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Make the source signals of rows that all continue a phase, or all start a phase; f0: [batch, frames] Hz.

        Returns for each row [frames · hop] float32, and the phase, [harmonics] in cycles, where the next piece's new
        source begins; None if the phase restarts there.
        """
        vocoder, hop = self._vocoder, self._hop
        phases = [row.before.phase for row in rows if row.before.phase is not None]
        carried = torch.stack(phases) if phases else None
        kept = [None if carried is None else row.before.source for row in rows]
        known = [0 if one is None else len(one) // hop for one in kept]
        pitch = pad_sequence([one[first : row.frames] for row, one, first in zip(rows, f0, known, strict=True)], True)
        # For each row its seed, its first noise counter, and the frame at whose end the phase is kept, in one copy.
        numbers = [
            (
                row.stream.seed or 0,
                (row.before.frames - row.before.context + first) * hop,
                max(0, row.frames - row.stream.rule.overlap - first - 1),
            )
            for row, first in zip(rows, known, strict=True)
        ]
        seeds, counters, ends = to_device(torch.tensor(numbers), f0.device).unbind(1)
        noise = None
        if rows[0].stream.seed is not None:
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
            sources.append((samples, phase if row.stream.rule.continuous else None))
        return sources

    def _finished(
        self, row: VocoderRow, mel: Tensor, source: tuple[Tensor, Tensor | None], wave: Tensor
    ) -> tuple[Tensor, Tails]:
        """Return samples, crossfaded with held samples, and new tails, copied so that they keep no batch in memory."""
        hop, rule, before = self._hop, row.stream.rule, row.before
        wave, fade = wave[: row.frames * hop], rule.fade_frames * hop
        if before.held is not None:
            wave = wave[(before.context - rule.overlap) * hop :]
            wave[:fade].mul_(rule.window[:fade]).add_(before.held * rule.window[fade:])
        if row.final or row.whole:
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
            context=row.seen_again,
        )


class VocoderStage:
    """Runs the vocoder on pieces of streams and on whole utterances; each gives the same result as it would alone.

    The last frames of a piece lack their right neighbours: their samples are held back, and the next piece computes
    them again, with a crossfade if the samples would differ. The source of frames already spoken is kept, so that its
    noise and phase continue.

    source_noise: whether the source adds noise; without it the audio depends only on the mel. kernels: whether our own
    kernels and CUDA graphs are used (see `vivavoce_kernels.usable`); a vocoder with sizes that they do not support uses
    the plain path. most_frames: with kernels, frames of the largest batch with a CUDA graph; larger batches are split.
    None: chosen for speed. both: without kernels, runs two independent parts of a piece; None: in turn.
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
            # Triton may not be installed.
            from vivavoce.engine.vocoder_stage.packed import PackedVocoding
            from vivavoce.models.vocoder.packed import supports

            if supports(models.vocoder):
                self.vocoding = PackedVocoding(models, source_noise=source_noise, most_frames=most_frames)

    @torch.inference_mode()
    def prepare(self, frames: int | None = None) -> None:
        self.vocoding.prepare(frames)

    def open(self, seed: int, speed: float, joins: CrossfadeMode) -> VocoderStream:
        """Open a stream for one sequence; joins: how a stream's pieces are joined; whole utterances have no joins."""
        vocoder = self._vocoder
        hop, device = vocoder.config.samples_per_frame, self._no_samples.device
        rule = join_rule(joins, hop, vocoder.reach, device, vocoder.overlap)
        # The official code ignores or refuses another speed for a stream.
        speed = 1.0 if joins is CrossfadeMode.OFFICIAL and vocoder.overlap is None else speed
        tails = Tails(None if speed == 1.0 else SpeedTail(speed))
        return VocoderStream(seed if self._source_noise else None, speed, rule, tails)

    def close(self, stream: VocoderStream) -> None:
        """Free the memory of the stream's tails. Rows that arrive later are vocoded like the start of a new stream."""
        self.vocoding.release(stream.tails)
        stream.tails, stream.closed = Tails(), True

    @torch.inference_mode()
    def run(self, rows: Sequence[VocoderRow]) -> list[Tensor]:
        """Return each row's samples, [n] float32 on the device; update streams' tails, except for whole utterances.

        If it raises, nothing is changed. A row with too few frames gives no samples, and its frames wait for the next
        row. ValueError: two rows have the same stream.
        """
        if len({id(row.stream) for row in rows}) < len(rows):
            raise ValueError("the pieces of one call must be of different streams")
        for row in rows:
            row.load()
        ready = [row for row in rows if row.frames]
        made = dict(zip(map(id, ready), self.vocoding.vocode(ready), strict=True))
        given = []
        for row in rows:
            stream, samples = row.stream, self._no_samples
            if row.frames:
                samples, tails = made[id(row)]
            else:  # copies, so that no tail keeps a batch alive
                tails = replace(row.before, speed=row.speed, waiting=torch.cat(row.fresh))
            given.append(samples)
            if row.whole or stream.closed:
                continue
            if row.frames:
                self.vocoding.release(stream.tails)
            stream.tails = tails
        return given
