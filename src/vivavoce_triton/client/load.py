"""Load-test a Triton server over gRPC: `await measure(LoadOptions, show=…, keep_samples=…) -> Report`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.frontend.audio.samples import Samples
from vivavoce_bench.load import Ending, Outcome
from vivavoce_bench.measure import Arrival, make_folder, write_wav
from vivavoce_triton.client.report import Report, difference
from vivavoce_triton.client.utterance import LoadMode, LoadOptions, Utterance
from vivavoce_triton.client.wire import Connection, ServedModel, Tensor, read_reference, request_tensors

_KEPT_REFERENCES = 64
"""Number of recordings to cache; 64 recordings of 30 s take 123 MB."""


async def measure(
    options: LoadOptions, *, show: Callable[[Outcome], None] = lambda _: None, keep_samples: bool = False
) -> Report:
    """Send all requests of a load test, and read the server's statistics before and after.

    A failed request is counted and does not stop the others. Cancellation ends all requests on the server. show: called
    after each measured request; keep_samples: keep the audio for `Report.scored` (96 kB per second at 24 kHz).
    `VivavoceError`: the server is unreachable, or lacks the model or an input.
    """
    if options.folder is not None:
        make_folder(options.folder, field="log_dir")
    async with Connection(options.server, options.timeout_s) as connection:
        model = await connection.model(options.model)
        if model.decoupled and options.mode is LoadMode.OFFLINE:
            raise InvalidRequest(
                f"mode: the model {options.model!r} answers in chunks; ask with --mode streaming, or serve a "
                "repository that is filled with decoupled_mode False"
            )
        sent = not options.use_spk2info_cache and any(one.reference is not None for one in options.utterances)
        request_tensors(options.utterances[0], options.manner, model, np.zeros(1, np.float32) if sent else None)
        load = _Load(options, connection, model, keep_samples)
        if options.warmup:
            before = replace(options, requests=options.warmup, folder=None)
            await replace(load, options=before, keep_samples=False).run()
        counted = await connection.statistics()
        outcomes = await load.run(show)
        added = difference(await connection.statistics(), counted)
    return Report(_settings(options, model), outcomes, added)


def _settings(options: LoadOptions, model: ServedModel) -> dict[str, Any]:
    return {
        "server": options.server,
        "model": options.model,
        "decoupled": model.decoupled,
        "sample_rate": model.sample_rate,
        "mode": options.mode.value,
        "num_tasks": options.num_tasks,
        "requests": options.total,
        "warmup": options.warmup,
        "utterances": len(options.utterances),
        "use_spk2info_cache": options.use_spk2info_cache,
        "chunk_overlap_duration": options.chunk_overlap_s,
        "timeout_s": options.timeout_s,
        **vars(options.manner),
    }


@dataclass(frozen=True)
class _Load:
    options: LoadOptions
    connection: Connection
    model: ServedModel
    keep_samples: bool

    async def run(self, show: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
        total = self.options.total
        indices = iter(range(total))
        outcomes: dict[int, Outcome] = {}
        read = lru_cache(maxsize=_KEPT_REFERENCES)(read_reference)
        time, zero_s = asyncio.get_running_loop().time, asyncio.get_running_loop().time()

        async def user() -> None:
            for index in indices:
                outcomes[index] = await self._ask(index, read, lambda: time() - zero_s)
                show(outcomes[index])

        await asyncio.gather(*(user() for _ in range(min(self.options.num_tasks, total))))
        return [outcomes[index] for index in range(total)]

    async def _ask(self, index: int, read: Callable[[Path | bytes], Samples], clock: Callable[[], float]) -> Outcome:
        utterance = self.options.utterance(index)
        start_s, problem, file = clock(), "", None
        arrived: list[tuple[float, Samples]] = []
        try:
            tensors = await asyncio.to_thread(self._tensors, utterance, read)
            start_s = clock()  # the time to read a recording does not count
            name, stream = f"{utterance.name}-{index}", self.options.mode is LoadMode.STREAMING
            async with aclosing(self.connection.speak(self.model, tensors, name, stream=stream)) as chunks:
                async for chunk in chunks:
                    arrived.append((clock(), chunk))
        except VivavoceError as error:
            problem = str(error)
        except Exception as error:  # an error ends only this request
            problem = f"{type(error).__name__}: {error}"
        end_s = clock()
        overlap = round(self.options.chunk_overlap_s * self.model.sample_rate)
        samples, added = join([chunk for _, chunk in arrived], overlap)
        if not problem and not len(samples):
            problem = "no audio came"
        if not problem and self.options.folder is not None:
            file = self.options.folder / f"{utterance.name}.wav"
            try:
                await asyncio.to_thread(write_wav, file, samples, self.model.sample_rate)
            except VivavoceError as error:
                problem, file = str(error), None
        pieces = np.split(samples, np.cumsum(added)[:-1]) if self.keep_samples and not problem else [None] * len(added)
        return Outcome(
            start_s,
            end_s,
            self.model.sample_rate,
            tuple(Arrival(at_s, count, piece) for (at_s, _), count, piece in zip(arrived, added, pieces, strict=True)),
            utterance=utterance,
            ending=Ending.FAILED if problem else Ending.OK,
            problem=problem,
            file=file,
        )

    def _tensors(self, utterance: Utterance, read: Callable[[Path | bytes], Samples]) -> Sequence[Tensor]:
        source = None if self.options.use_spk2info_cache else utterance.reference
        return request_tensors(utterance, self.options.manner, self.model, None if source is None else read(source))


def join(chunks: Sequence[Samples], overlap: int) -> tuple[Samples, tuple[int, ...]]:
    """Join chunks [n_i]. Each chunk is cross-faded linearly with the end of the audio before it.

    overlap: number of samples at the start of a chunk that repeat the previous chunk, or fewer if a chunk is shorter.
    Returns the audio [n] and the number of samples that each chunk adds.
    """
    pieces: list[Samples] = []
    added: list[int] = []
    for chunk in chunks:
        size, shared = len(chunk), min(overlap, len(pieces[-1]), len(chunk)) if pieces else 0
        if shared:
            rise = np.linspace(0, 1, shared, dtype=np.float32)
            faded = pieces[-1][-shared:] * (1 - rise) + chunk[:shared] * rise
            pieces[-1] = pieces[-1][:-shared]
            chunk = np.concatenate([faded, chunk[shared:]])
        pieces.append(chunk)
        added.append(size - shared)
    return (np.concatenate(pieces) if pieces else np.zeros(0, np.float32)), tuple(added)
