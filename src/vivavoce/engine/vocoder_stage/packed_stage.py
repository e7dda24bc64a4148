"""Pieces of mel of many requests → samples, in packed batches: the path of a CUDA device in 16 bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vivavoce.engine.graphs import Graphs, in_order_of_recording, sizes_within
from vivavoce.engine.vocoder_stage.joins import OVERLAP_FRAMES, join_rule
from vivavoce.engine.vocoder_stage.packed_buffers import BUCKETS, Buffers, bucket_of
from vivavoce.engine.vocoder_stage.packed_work import RULES, PackedWork, packed_batches, packed_work
from vivavoce.engine.vocoder_stage.stream import Piece, Place, VocoderStream
from vivavoce.engine.vocoder_stage.tail_pool import TailPool
from vivavoce.models.build import Models
from vivavoce.models.kernels.compile_ahead import compiled_ahead
from vivavoce.models.kernels.vocoder_tails import lay_in, lay_out
from vivavoce.models.vocoder.packed import PackedVocoder, gap_frames


class Recording:
    """The vocoder over one bucket's buffers; what it gives stays where it is until it is played again."""

    def __init__(self, vocoder: PackedVocoder, buffers: Buffers, *, noise: bool) -> None:
        self._vocoder, self._noise, self.buffers = vocoder, noise, buffers
        self.frames = buffers.frames
        self.play: Callable[[], None] = self.compute
        # Until it is played for the first time these are of the right sizes only.
        self.wave, self.phases = buffers.source, buffers.carried

    def compute(self) -> None:
        """Samples and kept phases of what lies in the buffers."""
        buffers = self.buffers
        self.phases = self._vocoder.excite(buffers.mel, self.frames, buffers.carried, buffers.source, noise=self._noise)
        self.wave = self._vocoder.decode(buffers.mel, self.frames, buffers.source)


class PackedStage:
    """What `VocoderStage` does, for all rows at once: a few launches per batch, whatever its rows are.

    Args:
        models: networks on one device; where they are in 16 bit, of either kind, the vocoder's products are in float16:
            on the mini model it is 1.4e-3 of the waveform from float32, bfloat16 1.2e-2, and no operand is above 24.
        source_noise: as of the stage.
        most_frames: of the largest batch that is recorded; None: of all common sizes.
    """

    def __init__(self, models: Models, *, source_noise: bool, most_frames: int | None = None) -> None:
        config, self._device = models.vocoder.config, models.device
        dtype = torch.float32 if models.dtype == torch.float32 else torch.float16
        self._vocoder, self._noise = PackedVocoder(models.vocoder, dtype), source_noise
        self._gap, self._bins, self._samples = gap_frames(config), config.num_mel_bins, config.samples_per_frame
        self._pool = TailPool(self._bins, self._samples, self._vocoder.lanes, models.device)
        self._graphs, self._recordings = Graphs(models.device), dict[int, Recording]()
        self._sizes = sizes_within(BUCKETS, most_frames)
        self._buffers = self._make_buffers(self._sizes[-1])
        self._windows = torch.zeros(len(RULES), 2, OVERLAP_FRAMES * self._samples, device=models.device)
        for number, joins in enumerate(RULES):
            window = join_rule(joins, self._samples, models.device).window
            self._windows[number, :, : len(window) // 2] = window.view(2, -1)
        self._no_samples = torch.zeros(0, device=models.device)
        self._no_mel = torch.zeros(1, self._bins, device=models.device)

    @property
    def open_rows(self) -> int:
        """Streams whose tails are kept."""
        return self._pool.taken

    def prepare(self, frames: int | None) -> None:
        """Compile and record all buckets that batches of up to so many frames come in."""
        sizes = in_order_of_recording(self._sizes, frames)
        with compiled_ahead() as compiling:
            for recording in map(self._make_recording, sizes if compiling else ()):
                self._lay_in_and_out(recording, self._no_mel, self._no_samples, recording.compute)
        for size in sizes:
            self._recording(size)

    def close(self, stream: VocoderStream) -> None:
        """Give back what the stream's tails take."""
        if stream.tails.place is not None:
            self._pool.give(stream.tails.place.row)

    def run(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """As `VocoderStage.run`; the samples of a closed stream's piece may be anything."""
        works = [packed_work(piece) for piece in pieces]
        ready = [work for work in works if work.frames]
        places: dict[int, Place] = {}
        samples: dict[int, Tensor] = {}
        try:
            for work in ready:
                if work.lasting:
                    places[id(work)] = work.place_after(self._pool.take())
            for batch in packed_batches(ready, self._gap, self._sizes[-1]):
                samples.update(zip(map(id, batch), self._vocode(batch, places), strict=True))
            waiting = {id(work): torch.cat(work.fresh) for work in works if not work.frames and not work.piece.whole}
        except BaseException:
            for place in places.values():
                self._pool.give(place.row)
            raise
        for work in works:
            self._leave_tails(work, places.get(id(work)), waiting.get(id(work)))
        return [samples.get(id(work), self._no_samples) for work in works]

    def _leave_tails(self, work: PackedWork, place: Place | None, waiting: Tensor | None) -> None:
        stream = work.piece.stream
        if work.piece.whole or stream.closed:
            return
        if waiting is not None:
            stream.tails = replace(stream.tails, speed=work.speed, waiting=waiting)
            return
        self.close(stream)
        stream.tails = work.tails_after(place)

    def _vocode(self, batch: Sequence[PackedWork], places: dict[int, Place]) -> list[Tensor]:
        rows, start, fresh, out = [], 0, 0, 0
        for work in batch:
            rows.append(work.row(start, fresh, out, places.get(id(work))))
            start += work.frames + self._gap
            fresh += work.new_frames
            out += work.given_frames
        recording = self._recording(bucket_of(start, self._sizes))
        recording.buffers.write_table(rows)
        mel = torch.cat([part for work in batch for part in work.fresh]) if fresh else self._no_mel
        given = self._no_samples.new_empty(out * self._samples)
        self._lay_in_and_out(recording, mel, given, recording.play)
        return list(given.split([work.given_frames * self._samples for work in batch]))

    def _lay_in_and_out(self, recording: Recording, mel: Tensor, given: Tensor, compute: Callable[[], None]) -> None:
        """mel: the fresh frames of all rows; given: where their samples go; compute: what makes them."""
        buffers, frames, memory = recording.buffers, recording.frames, self._pool.memory
        laid = (frames.tags, frames.row_of, frames.rows)
        lay_in(mel, *laid, memory, buffers.mel, buffers.source, buffers.carried)
        compute()
        lay_out(recording.wave, buffers.mel, buffers.source, recording.phases, *laid, self._windows, memory, given)

    def _recording(self, size: int) -> Recording:
        """The bucket's recording, made when it is first asked for; what is larger than all buckets has none."""
        recording = self._recordings.get(size)
        if recording is None:
            recording = self._make_recording(size)
            if size <= self._sizes[-1]:
                recording.play = self._graphs.capture(recording.compute)
                self._recordings[size] = recording
        return recording

    def _make_recording(self, size: int) -> Recording:
        fits = size <= self._sizes[-1]
        buffers = self._buffers.of_first(size, self._gap) if fits else self._make_buffers(size)
        return Recording(self._vocoder, buffers, noise=self._noise)

    def _make_buffers(self, frames: int) -> Buffers:
        lanes = self._vocoder.lanes
        return Buffers.of(frames, self._gap, self._bins, self._samples, lanes, self._device)
