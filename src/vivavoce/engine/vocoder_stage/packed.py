"""Computes samples from pieces of mel in packed batches on our kernels; used on CUDA devices in 16 bit.

Every batch is copied into fixed tensors, which the CUDA graph of its size reads. For each kind of tail there is one
tensor with a row for each stream; one launch gathers or scatters the rows. The host sends only counts for each piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.device import Graphs, copy_into, fitting, in_order_of_recording, rounded, sizes_within
from vivavoce.engine.vocoder_stage.stage import Crossfade, PooledTails, Tails, VocoderRow, join_rule
from vivavoce.models.build import Models
from vivavoce.models.vocoder.packed import AFTER, FIRST, INSIDE, PackedFrames, PackedVocoder, gap_frames
from vivavoce_kernels.common import compiled_ahead
from vivavoce_kernels.layouts import WIDTH, PackedRow
from vivavoce_kernels.vocoder_tails import Pool, lay_in, lay_out

RULES = (CrossfadeMode.OFFICIAL, CrossfadeMode.SEAMLESS)
"""The join rules; the table of a batch names a rule by its index here."""

FIRST_ROWS = 64


class TailPool:
    """The memory of streams' tails, one row for each stream. Each time a row is taken, it is written once.

    Enqueued work may still read a row that was given back, because later work on this row runs later on the same
    stream. rules: the rules of all streams; bins: mel bins; samples: samples per frame; lanes: lanes of a phase.
    """

    def __init__(self, rules: Sequence[Crossfade], bins: int, samples: int, lanes: int, device: torch.device) -> None:
        sizes = [(rule.mel_frames, rule.source_frames, rule.fade_frames) for rule in rules]
        mel, source, held = map(max, zip(*sizes, strict=True))
        shapes = ((mel, bins), (source, samples), (held, samples), (lanes,))
        self.memory = Pool(*(torch.zeros(FIRST_ROWS, *shape, device=device) for shape in shapes))
        self._free = list(range(FIRST_ROWS))

    @property
    def taken(self) -> int:
        return len(self.memory.mel) - len(self._free)

    def take(self) -> int:
        if not self._free:
            rows = len(self.memory.mel)
            self.memory = Pool(*(torch.cat((part, torch.zeros_like(part))) for part in self.memory))
            self._free = list(range(rows, 2 * rows))
        return self._free.pop()

    def give(self, row: int) -> None:
        self._free.append(row)


BUCKETS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Sizes of batches with CUDA graphs, in mel frames, padding included."""


class VocoderRun:
    """The vocoder's work for batches of one bucket; its results stay in place until it runs again.

    memory: mel [frames, bins], source [frames · samples per frame] and carried [rows, lanes], float32, of this size or
    larger. Each run has its own table. Until the table is written it describes padding, so that work can be recorded.
    """

    def __init__(
        self, vocoder: PackedVocoder, memory: tuple[Tensor, Tensor, Tensor], frames: int, rows: int, *, noise: bool
    ) -> None:
        self._vocoder, self._noise = vocoder, noise
        self.mel, self.source, self.carried = (
            part[:size]
            for part, size in zip(memory, (frames, frames * vocoder.config.samples_per_frame, rows), strict=True)
        )
        self._head = (2 + len(vocoder.heard)) * frames // 2
        self._table = torch.zeros(self._head + rows * WIDTH, dtype=torch.int64, device=self.mel.device)
        tags, row_of, *stages = self._table[: self._head].view(torch.int32).split(frames)
        self.frames = PackedFrames(tags, row_of, self._table[self._head :].view(-1, WIDTH), tuple(stages))
        self.play: Callable[[], None] = self.compute
        # Placeholders of the right sizes until `compute` runs.
        self.wave, self.phases = self.source, self.carried

    def compute(self) -> None:
        self.phases = self._vocoder.excite(self.mel, self.frames, self.carried, self.source, noise=self._noise)
        self.wave = self._vocoder.decode(self.mel, self.frames, self.source)

    def write_table(self, rows: Sequence[PackedRow]) -> None:
        host = np.zeros(len(self._table), np.int64)
        tags, row_of, *stages = host[: self._head].view(np.int32).reshape(-1, len(self.mel))
        for number, row in enumerate(rows):
            row_of[row.start : row.start + row.frames + 1] = number
            # The samples of a frame depend on the first spectra of the frame after it.
            last = min(row.end + 1, row.frames)
            parts = [(max(row.first - heard, 0), last) for heard in self._vocoder.heard]
            for tagged, (begin, end) in zip((tags, *stages), ((0, row.frames), *parts), strict=True):
                tagged[row.start + begin : row.start + end] = INSIDE
                tagged[row.start + end] = AFTER
                if begin == 0:
                    tagged[row.start] = FIRST
        host[self._head :].reshape(-1, WIDTH)[: len(rows)] = rows
        copy_into(self._table, torch.from_numpy(host))


@dataclass(frozen=True, eq=False)
class PooledRow:
    """A row of a batch; after: the pool's row for the stream's new tails; None if the tails are not kept."""

    row: VocoderRow
    after: PooledTails | None

    @property
    def first_given(self) -> int:
        return 0 if self.row.before.pooled is None else self.row.before.context - self.row.stream.rule.overlap

    @property
    def given(self) -> int:
        held = 0 if self.row.final or self.row.whole else self.row.stream.rule.overlap
        return self.row.frames - self.first_given - held

    @property
    def tails(self) -> Tails:
        row = self.row
        if self.after is None:
            return Tails()
        return Tails(row.speed, frames=row.before.frames + row.new_frames, context=row.seen_again, pooled=self.after)

    def packed(self, start: int, fresh: int, out: int) -> PackedRow:
        """Return the row's entry in the table; start, fresh, out: see `PackedRow`."""
        row, after, stream, before = self.row, self.after, self.row.stream, self.row.before
        runs_on = before.pooled is not None and stream.rule.continuous
        known = before.pooled.known if before.pooled else 0
        origin = known if runs_on else 0
        return PackedRow(
            start=start,
            frames=row.frames,
            known=known,
            origin=origin,
            carried=int(runs_on),
            seed=stream.seed or 0,
            counter=before.frames - before.context,
            kept_phase=max(origin, row.frames - stream.rule.overlap - 1),
            context=before.context,
            fresh=fresh,
            before=before.pooled.row if before.pooled else 0,
            after=after.row if after else -1,
            tail=row.frames - row.seen_again if after else 0,
            tail_known=after.known if after else 0,
            held=row.frames - stream.rule.overlap,
            fade=stream.rule.fade_frames,
            rule=int(stream.rule.continuous),
            faded=int(before.pooled is not None),
            first=self.first_given,
            end=self.first_given + self.given,
            out=out,
        )


class PackedVocoding:
    """Like `PaddedVocoding`, but the rows of a batch are packed one after the other, and need a few kernel launches.

    If the networks are float16 or bfloat16, the vocoder's products are float16. On the mini model the waveform's error
    against float32 is then 1.4e-3 (bfloat16: 1.2e-2), and no operand exceeds 24. most_frames: frames of the largest
    batch for which a CUDA graph is recorded; None: graphs for all common sizes.
    """

    def __init__(self, models: Models, *, source_noise: bool, most_frames: int | None = None) -> None:
        config, self._device = models.vocoder.config, models.device
        dtype = torch.float32 if models.dtype == torch.float32 else torch.float16
        self._vocoder, self._noise = PackedVocoder(models.vocoder, dtype), source_noise
        self._gap, self._bins, self._samples = gap_frames(config), config.num_mel_bins, config.samples_per_frame
        rules = [join_rule(joins, self._samples, models.vocoder.reach, models.device) for joins in RULES]
        self.pool = TailPool(rules, self._bins, self._samples, self._vocoder.lanes, models.device)
        self._graphs, self._runs = Graphs(models.device), dict[int, VocoderRun]()
        self._sizes = sizes_within(BUCKETS, most_frames)
        self._memory = self._allocate(self._sizes[-1])
        self._windows = torch.zeros(len(RULES), 2, self.pool.memory.held[0].numel(), device=models.device)
        for number, rule in enumerate(rules):
            self._windows[number, :, : len(rule.window) // 2] = rule.window.view(2, -1)
        self._no_mel = torch.zeros(1, self._bins, device=models.device)

    def prepare(self, frames: int | None) -> None:
        sizes = in_order_of_recording(self._sizes, frames)
        with compiled_ahead() as compiling:
            for run in map(self._make_run, sizes if compiling else ()):
                self._lay_in_and_out(run, self._no_mel, self._no_mel.new_zeros(0), run.compute)
        for size in sizes:
            self._run(size)

    def release(self, tails: Tails) -> None:
        if tails.pooled is not None:
            self.pool.give(tails.pooled.row)

    def vocode(self, rows: Sequence[VocoderRow]) -> list[tuple[Tensor, Tails]]:
        pooled: list[PooledRow] = []
        try:
            for row in rows:
                keeps = not (row.final or row.whole or row.stream.closed)
                after = PooledTails(self.pool.take(), row.source_kept) if keeps else None
                pooled.append(PooledRow(row, after))
            samples = [part for batch in self._batches(pooled) for part in self._vocode(batch)]
        except BaseException:
            for one in pooled:
                if one.after is not None:
                    self.pool.give(one.after.row)
            raise
        return [(part, one.tails) for part, one in zip(samples, pooled, strict=True)]

    def _batches(self, rows: Sequence[PooledRow]) -> list[list[PooledRow]]:
        """Split the rows, in order, into batches that fit the largest size with a gap after each row. A row that is too
        long for this size gets its own batch.
        """
        batches: list[list[PooledRow]] = []
        room = 0
        for one in rows:
            size = one.row.frames + self._gap
            if size > room:
                batches.append([])
                room = self._sizes[-1]
            batches[-1].append(one)
            room -= size
        return batches

    def _vocode(self, batch: Sequence[PooledRow]) -> Sequence[Tensor]:
        table, start, fresh, out = [], 0, 0, 0
        for one in batch:
            table.append(one.packed(start, fresh, out))
            start += one.row.frames + self._gap
            fresh += one.row.new_frames
            out += one.given
        # Larger batches are padded to a multiple of the largest size.
        run = self._run(fitting(self._sizes, start) or rounded(start, self._sizes[-1]))
        run.write_table(table)
        mel = torch.cat([part for one in batch for part in one.row.fresh]) if fresh else self._no_mel
        given = self._no_mel.new_empty(out * self._samples)
        self._lay_in_and_out(run, mel, given, run.play)
        return given.split([one.given * self._samples for one in batch])

    def _lay_in_and_out(self, run: VocoderRun, mel: Tensor, given: Tensor, compute: Callable[[], None]) -> None:
        """Run the vocoder by `compute`; mel: new frames of all rows; given: receives the samples of these rows."""
        memory = self.pool.memory
        lay_in(mel, *run.frames[:3], memory, run.mel, run.source, run.carried)
        compute()
        lay_out(run.wave, run.mel, run.source, run.phases, *run.frames[:3], self._windows, memory, given)

    def _run(self, size: int) -> VocoderRun:
        """Return the run of a size, with a graph that is recorded at first use. A size above the largest has no
        graph."""
        run = self._runs.get(size)
        if run is None:
            run = self._make_run(size)
            if size <= self._sizes[-1]:
                run.play = self._graphs.capture(run.compute)
                self._runs[size] = run
        return run

    def _make_run(self, size: int) -> VocoderRun:
        memory = self._memory if size <= self._sizes[-1] else self._allocate(size)
        return VocoderRun(self._vocoder, memory, size, self._rows(size), noise=self._noise)

    def _rows(self, frames: int) -> int:
        return frames // (self._gap + 1) + 1

    def _allocate(self, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return zeros for mel, source and carried, because padding that was never written must be finite, too."""
        shapes = ((frames, self._bins), (frames * self._samples,), (self._rows(frames), self._vocoder.lanes))
        mel, source, carried = (torch.zeros(shape, device=self._device) for shape in shapes)
        return mel, source, carried
