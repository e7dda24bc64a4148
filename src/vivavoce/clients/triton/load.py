"""Putting a load on a Triton server over gRPC: `await measure(LoadOptions, show=…, keep_samples=…) -> Report`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vivavoce.clients.triton.audio import Audio, Samples, join, read_reference, write_wav
from vivavoce.clients.triton.connection import Connection
from vivavoce.clients.triton.model import ServedModel
from vivavoce.clients.triton.options import LoadOptions, Mode
from vivavoce.clients.triton.outcome import Arrival, Outcome
from vivavoce.clients.triton.report import Report, make_folder
from vivavoce.clients.triton.statistics import difference
from vivavoce.clients.triton.tensors import Tensor, request_tensors
from vivavoce.clients.triton.utterance import Utterance
from vivavoce.errors import InvalidRequest, VivavoceError

_KEPT_REFERENCES = 64
"""Recordings that stay decoded; 64 of 30 s take 123 MB."""


async def measure(
    options: LoadOptions, *, show: Callable[[Outcome], None] = lambda _: None, keep_samples: bool = False
) -> Report:
    """Ask for every utterance, and count what the server adds to its statistics meanwhile.

    A request that fails is a figure and ends no other. Cancelling ends all requests on the server.

    Args:
        options: the load.
        show: called with each measured request when it has ended.
        keep_samples: keep the audio in the outcomes, for `Report.scored`: 96 kB per second of it at 24 kHz.

    Raises:
        MissingDependency: tritonclient is not installed.
        ModelNotFound: the server does not serve the model.
        InvalidRequest: the model streams and the mode is offline, it lacks an input, or the folder cannot be made.
        ServerUnreachable, ServerRefused: the server cannot be asked at all.
    """
    if options.folder is not None:
        make_folder(options.folder)
    async with Connection(options.server, options.timeout_s) as connection:
        model = await connection.model(options.model)
        if model.decoupled and options.mode is Mode.OFFLINE:
            raise InvalidRequest(
                f"mode: the model {options.model!r} answers in chunks; ask with --mode streaming, or serve a "
                "repository that is filled with decoupled_mode False"
            )
        _refuse_unknown_inputs(options, model)
        load = _Load(options, connection, model, keep_samples)
        if options.warmup:
            await replace(
                load, options=replace(options, requests=options.warmup, folder=None), keep_samples=False
            ).run()
        before = await connection.statistics()
        outcomes = await load.run(show)
        after = await connection.statistics()
    return Report(_settings(options, model), outcomes, difference(after, before))


def _refuse_unknown_inputs(options: LoadOptions, model: ServedModel) -> None:
    sent = not options.use_spk2info_cache and any(one.reference is not None for one in options.utterances)
    request_tensors(options.utterances[0], options.manner, model, np.zeros(1, np.float32) if sent else None)


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
        "voice": options.manner.voice,
        "instruct_text": options.manner.instruct_text,
        "seed": options.manner.seed,
        "speed": options.manner.speed,
    }


@dataclass(frozen=True)
class _Load:
    options: LoadOptions
    connection: Connection
    model: ServedModel
    keep_samples: bool

    async def run(self, show: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
        """What became of each request, in their order."""
        total = self.options.total
        places = iter(range(total))
        outcomes: dict[int, Outcome] = {}
        read = lru_cache(maxsize=_KEPT_REFERENCES)(read_reference)
        time, zero_s = asyncio.get_running_loop().time, asyncio.get_running_loop().time()

        async def user() -> None:
            for place in places:
                outcomes[place] = await self._ask(place, read, lambda: time() - zero_s)
                show(outcomes[place])

        await asyncio.gather(*(user() for _ in range(min(self.options.num_tasks, total))))
        return [outcomes[place] for place in range(total)]

    async def _ask(self, place: int, read: Callable[[Path | bytes], Samples], clock: Callable[[], float]) -> Outcome:
        utterance = self.options.utterance(place)
        start_s, problem = clock(), ""
        arrived: list[tuple[float, Samples]] = []
        try:
            tensors = await asyncio.to_thread(self._tensors, utterance, read)
            start_s = clock()  # a recording is read at the client's expense
            async with aclosing(self._speak(tensors, f"{utterance.name}-{place}")) as chunks:
                async for chunk in chunks:
                    arrived.append((clock(), chunk))
        except VivavoceError as error:
            problem = str(error)
        except Exception as error:  # whatever a request breaks with is a figure of it, and ends no other
            problem = f"{type(error).__name__}: {error}"
        end_s = clock()
        overlap = round(self.options.chunk_overlap_s * self.model.sample_rate)
        samples, added = join([chunk for _, chunk in arrived], overlap)
        if not problem and not len(samples):
            problem = "no audio came"
        file = None
        if not problem:
            file, problem = await self._save(utterance.name, samples)
        return Outcome(
            name=utterance.name,
            text=utterance.text,
            start_s=start_s,
            end_s=end_s,
            sample_rate=self.model.sample_rate,
            arrivals=tuple(Arrival(at_s, count) for (at_s, _), count in zip(arrived, added, strict=True)),
            problem=problem,
            file=file,
            samples=samples if self.keep_samples and not problem else None,
        )

    async def _save(self, name: str, samples: Samples) -> tuple[Path | None, str]:
        """(the file, if any is written; what went wrong)."""
        if self.options.folder is None:
            return None, ""
        file = self.options.folder / f"{name}.wav"
        try:
            await asyncio.to_thread(write_wav, file, Audio(samples, self.model.sample_rate))
        except VivavoceError as error:
            return None, str(error)
        return file, ""

    def _tensors(self, utterance: Utterance, read: Callable[[Path | bytes], Samples]) -> Sequence[Tensor]:
        source = None if self.options.use_spk2info_cache else utterance.reference
        reference = None if source is None else read(source)
        return request_tensors(utterance, self.options.manner, self.model, reference)

    async def _speak(self, tensors: Sequence[Tensor], request_id: str) -> AsyncGenerator[Samples, None]:
        if self.options.mode is Mode.OFFLINE:
            yield await self.connection.whole(self.model, tensors, request_id)
            return
        async with aclosing(self.connection.stream(self.model, tensors, request_id)) as chunks:
            async for chunk in chunks:
                yield chunk
