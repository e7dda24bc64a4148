"""Runs flow batches on the plain network with padded rows: on any device, and as the reference for packed batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.cost_model import ShortBatches
from vivavoce.engine.device import to_device, upload
from vivavoce.engine.flow_stage.planning import SINK, BufferPool, FlowRow, FlowStream, PagePool, VoiceFeatures
from vivavoce.engine.request import FlowSteps
from vivavoce.models.build import Models
from vivavoce.models.flow.model import MAX_FRAMES, FlowSchedule, Path
from vivavoce.models.layers import PairRunner, keys_before

if TYPE_CHECKING:
    from vivavoce.models.flow.model import Encoder, Estimator

Indices = NDArray[np.int64]
NONE = np.zeros(0, dtype=np.int64)
LEAST_SPLIT = 80
"""If a step has at least this many frames, two threads compute its halves (with and without the conditions) at the same
time. A smaller step is many short operations, and two Python threads would only wait for each other."""


@dataclass(frozen=True, eq=False)
class PaddedPath:
    """Begins batches whose rows are padded to one length, and holds the objects that all batches share.

    schedules: the solver's schedule for each kind of steps; noise: [MAX_FRAMES, bins] float32, from which the solver
    starts; both: a function that computes the two halves of a step, with and without the conditions, on a CPU.
    """

    models: Models
    pool: PagePool
    schedules: Mapping[FlowSteps, FlowSchedule]
    noise: Tensor
    estimator: Estimator
    encoder: Encoder
    """Estimator and encoder of the model, or of another runtime that replaces them."""
    both: PairRunner | None = None
    short: ClassVar[ShortBatches] = ShortBatches()

    @cached_property
    def numbers(self) -> Mapping[FlowSteps, Tensor]:
        """For each schedule, [evaluations, 2] int32: each evaluation's index in all schedules, and in this schedule."""
        found, first = {}, 0
        for steps, schedule in self.schedules.items():
            own = torch.arange(len(schedule), dtype=torch.int32)
            found[steps] = to_device(torch.stack((first + own, own), dim=1), self.models.device)
            first += len(schedule)
        return found

    def prepare(self, frames: int | None) -> None:
        """Do nothing: padded batches have no CUDA graphs."""

    def parts(self, rows: Sequence[FlowRow]) -> Sequence[Sequence[FlowRow]]:
        """Split the rows into parts that the networks can take at once; another runtime may take only a few rows."""
        most = None if isinstance(self.estimator, torch.nn.Module) else self.estimator.most_rows
        if self.encoder is not self.models.flow.encoder:
            most = 1
        return [rows] if most is None else [rows[first : first + most] for first in range(0, len(rows), most)]

    def begin(self, rows: Sequence[FlowRow]) -> PaddedSolver:
        """Begin a batch; either all of its rows keep state or none does."""
        return PaddedSolver(self, rows)


class PaddedSolver:
    """Computes the mel of one batch in steps. Either all rows keep state for their next chunk, or none does.

    All work is enqueued on the device; the host waits for none of it.
    """

    def __init__(self, context: PaddedPath, rows: Sequence[FlowRow]) -> None:
        models, pool = context.models, context.pool
        encoder, flow, device = models.config.flow.encoder, models.flow, models.device
        up, size, keys = encoder.upsampling, max(row.end - row.past for row in rows), max(row.end for row in rows)
        self.rows, self._up = rows, up
        # All integers go to the device in one copy: the rows' integers, and the places of the rows' state in the pages.
        own, has_state = _batch_numbers(rows, encoder.lookahead, up, keys), any(row.after for row in rows)
        buffers = pool.buffers if has_state else ()
        indices = [array for buffer in buffers for array in page_indices(buffer, rows)]
        sent = upload((*own, *indices), device)
        ids, lengths, pasts, places, lookahead_ends, *seen, self._slots = sent[: len(own)]
        self._memories = [
            BatchMemory(buffer, sent[first : first + 3], keys * buffer.per_token, self._slots[0])
            for buffer, first in zip(buffers, range(len(own), len(sent), 3), strict=True)
        ]
        widths = (keys, keys * up, keys * up)
        both = context.both if size * up >= LEAST_SPLIT else None
        self._steps = self._memories[2].halves() if has_state and both else self._memories[2:]
        masks = [keys_before(end, width) if end.numel() else None for end, width in zip(seen, widths, strict=True)]
        mu = context.encoder.encode(
            flow.token_embedding(ids),
            lengths,
            size,
            (masks[0], masks[1]),
            keys,
            pasts if len({row.past for row in rows}) > 1 else None,
            (self._memories[0], self._memories[1]) if has_state else None,
            lookahead_ends if lookahead_ends.numel() else None,
        )
        voices = [voice_features(row.stream, models) for row in rows]
        # The prompt's mel at the frames of the prompt, zeros elsewhere.
        condition = torch.zeros_like(mu, dtype=torch.float32)
        for row, voice, given in zip(rows, voices, condition, strict=True):
            if len(mel := voice.mel[row.past * up : row.end * up]):
                given[: len(mel)] = mel
        noise = context.noise.index_select(0, places).view(mu.shape)
        speakers, guidance = torch.stack([voice.speaker for voice in voices]), models.config.flow.guidance
        self._path = Path(
            context.estimator,
            context.schedules[rows[0].stream.steps],
            guidance,
            noise,
            mu,
            speakers,
            condition,
            masks[2],
            places.view(mu.shape[:2]),
            both,
        )

    def step(self, number: int) -> None:
        for memory in self._steps:
            memory.number = number
        self._path.step(number, *self._steps)

    def finish(self) -> list[Tensor | None]:
        for memory in self._memories:
            memory.commit(self._slots[1])
        firsts = [row.first_frame(self._up) for row in self.rows]
        return [
            None if first is None else mel[first : (row.end - row.past) * self._up]
            for row, first, mel in zip(self.rows, firsts, self._path.x, strict=True)
        ]


def voice_features(stream: FlowStream, models: Models) -> VoiceFeatures:
    if stream.features is None:
        given, device = stream.conditioning, models.device
        speaker = models.flow.speaker(given.embedding[None].to(device, non_blocking=True))[0]
        stream.features = VoiceFeatures(speaker, given.flow_mel.to(device, non_blocking=True).float())
    return stream.features


class BatchMemory:
    """The past of a batch's rows in one network's pages; implements `vivavoce.models.layers.Memory`.

    number: index of the current pass of the network, such as an Euler step. Keys and values are written to their pages
    as they are computed. Tails, the inputs that the next chunk's convolutions need, are written only by `commit`. So an
    abandoned batch changes nothing: its keys lie at positions after the rows' state, where no row reads. indices: the
    results of `page_indices`, on the device; keys: number of positions of the longest row; slots: [rows], the page that
    stores each row's tails now, or `SINK` for a row without a past.
    """

    def __init__(self, buffer: BufferPool, indices: Sequence[Tensor], keys: int, slots: Tensor) -> None:
        self.number = 0
        self._buffer, self._keys = buffer, keys
        self._write, self._read, self._tails = (one.flatten() for one in indices)
        # `view` would fail on the empty tensor of a network without attention.
        self._positions = buffer.keys.flatten(0, -2)
        self._slabs = buffer.keys.flatten(-2).flatten(0, -2)
        before = buffer.tails.index_select(0, slots)
        self._before = before.permute(1, 2, 0, 3, 4).flatten(1, 2).contiguous()
        self._after = torch.empty_like(self._before)

    def extend(self, first: int, x: Tensor) -> Tensor:
        channels = slice(first, first + x.shape[2])
        extended = torch.cat((self._before[self.number, ..., channels], x), dim=1)
        if len(self._tails):
            tails = extended.flatten(0, 1).index_select(0, self._tails).view(len(x), -1, x.shape[2])
        else:
            tails = extended[:, x.shape[1] :]
        self._after[self.number, ..., channels] = tails
        return extended

    def recall(self, site: int, keys: Tensor) -> Tensor:
        slab = (self.number * self._buffer.sites + site) * self._buffer.copies
        self._positions[slab * self._buffer.positions :].index_copy_(0, self._write, keys.flatten(0, 1))
        if not len(self._read):
            return keys
        recalled = self._slabs[slab:].index_select(0, self._read)
        return recalled.view(len(keys), -1, keys.shape[2])[:, : self._keys]

    def halves(self) -> list[BatchMemory]:
        """Return a memory for each half of the rows; `commit` of this memory also stores the tails of both halves."""
        parts = [copy(self), copy(self)]
        rows = self._after.shape[1] // 2
        extended = rows * (len(self._write) // (2 * rows) + self._buffer.tail)
        for place, part in enumerate(parts):
            part._write, part._read = (one.chunk(2)[place] if len(one) else one for one in (self._write, self._read))
            part._tails = self._tails.chunk(2)[place] - place * extended if len(self._tails) else self._tails
            part._before, part._after = (one.chunk(2, 1)[place] for one in (self._before, self._after))
        return parts

    def commit(self, slots: Tensor) -> None:
        """Store the tails of the convolutions; slots: [rows], the page that stores each row's tails."""
        after = self._after.unflatten(1, (-1, len(slots)))
        self._buffer.tails.index_copy_(0, slots, after.permute(2, 0, 1, 3, 4))


def page_indices(buffer: BufferPool, rows: Sequence[FlowRow]) -> tuple[Indices, Indices, Indices]:
    """Return the places in one network's pages at which a batch's rows read and write. Each row occurs `copies` times,
    because guidance computes it with and without its conditions.

    The result is: write: [copies · rows, time] positions; read: [copies · rows, pages] slabs of one page each, empty if
    no row has a past; tails: [copies · rows, tail] indices into [tail + time] of the inputs that the next chunk needs,
    empty if every row needs its last inputs.
    """
    spans = [(row.past * buffer.per_token, row.end * buffer.per_token) for row in rows]
    time, keys = max(end - past for past, end in spans), max(end for _, end in spans)
    pages = np.empty((len(spans), -(-keys // buffer.positions)), dtype=np.int64)
    write = np.full((len(spans), time), SINK, dtype=np.int64)
    tables = [np.asarray(row.after.pages) for row in rows if row.after]
    for place, ((past, end), table) in enumerate(zip(spans, tables, strict=True)):
        # Masked positions point at the row's own page, so another row's NaN cannot leak in.
        pages[place] = table[np.minimum(np.arange(pages.shape[1]), len(table) - 1)]
        position = np.arange(past, end)
        slabs = table[position // buffer.positions] * buffer.slabs
        write[place, : len(position)] = slabs * buffer.positions + position % buffer.positions
    copies = np.arange(buffer.copies)[:, None, None]
    lengths = np.array([end - past for past, end in spans])
    lines = np.arange(buffer.copies * len(spans)).reshape(buffer.copies, -1)
    read = (pages * buffer.slabs + copies).reshape(-1, pages.shape[1])
    tails = (lines * (time + buffer.tail) + lengths).reshape(-1, 1) + np.arange(buffer.tail)
    return (
        (write + copies * buffer.positions).reshape(-1, time),
        read if any(past for past, _ in spans) else read[:0],
        tails if (lengths < time).any() else tails[:0],
    )


def _batch_numbers(rows: Sequence[FlowRow], lookahead: int, up: int, keys: int) -> tuple[Indices, ...]:
    """Return the integers of a batch that the networks need; keys: the largest end of a row, in tokens.

    The result is: ids: [rows, new tokens + lookahead]; lengths: [rows]; pasts: [rows], earlier tokens; places: [rows ·
    frames], indices into the noise; `_lookahead_ends`; `_ends` for tokens, the encoder's upsampled frames and the
    estimator's frames; slots: [2, rows with state], page of a row's tails before and after this chunk.
    """
    size = max(row.end - row.past for row in rows)
    tokens = np.zeros((len(rows), size + lookahead), dtype=np.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row.tokens)] = row.tokens
    past = np.array([row.past for row in rows])
    slots = [(row.before.slot if row.before else SINK, row.after.slot) for row in rows if row.after]
    return (
        tokens,
        np.array([len(row.tokens) for row in rows]),
        past,
        np.minimum(past[:, None] * up + np.arange(size * up), MAX_FRAMES - 1).ravel(),
        _lookahead_ends(rows, size, lookahead),
        _ends([row.span.tokens for row in rows], size, keys),
        _ends([row.span.up_frames for row in rows], size * up, keys * up),
        _ends([row.span.frames for row in rows], size * up, keys * up),
        np.array(slots, dtype=np.int64).reshape(-1, 2).T,
    )


def _lookahead_ends(rows: Sequence[FlowRow], size: int, lookahead: int) -> Indices:
    """Return the end of each new token's lookahead, as an index into the row's tokens: [rows, new tokens].

    Empty if each token sees all tokens of its lookahead that the row has; the encoder then takes a faster path, with
    results that may differ in their last bits.
    """
    for row in rows:
        heard = np.minimum(np.arange(row.past, row.end) + 1 + lookahead, row.past + len(row.tokens))
        if (row.span.lookahead_ends < heard).any():
            return np.stack([np.pad(one.span.lookahead_ends - one.past, (0, size - one.new), "edge") for one in rows])
    return NONE


def _ends(rows: Sequence[Indices], size: int, keys: int) -> Indices:
    """Return the end of the keys that each position attends to: [rows, positions or 1]; empty if all are `keys`."""
    if all(len(ends) == size and (ends == keys).all() for ends in rows):
        return NONE
    if all((ends == ends[-1]).all() for ends in rows):
        return np.array([[ends[-1]] for ends in rows])
    # Padding attends to the keys of the row's last position, because attention without any key gives NaN.
    return np.stack([np.pad(ends, (0, size - len(ends)), mode="edge") for ends in rows])
