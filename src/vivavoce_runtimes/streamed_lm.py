"""Runs the language model in a runtime that takes a prompt and streams ids, such as vLLM.

Each run of a slot is one request to the runtime. A later run submits all rows so far again, which are in the
runtime's prefix cache. The runtime has its own thread with an event loop, so that the engine's thread never waits.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from vivavoce.checkpoint.config import SamplingDefaults, Vocabulary
from vivavoce.engine.lm_stage import DecodeRun, Sampled
from vivavoce.engine.lm_stage.slots import LARGEST_WINDOW, Slot, check_positions
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.errors import EngineStopped, InvalidRequest, MissingDependency, StageFailed
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_runtimes.sampling_rng import Draws, speech_bias

log = logging.getLogger(__name__)

_LOOK_S = 0.01
"""Maximum time, in seconds, that the engine's thread waits for ids: it has other work, and a runtime may hang."""

_STOP_S = 30.0
"""Time limit, in seconds, for the end of the runtime; after that, its thread is abandoned."""


@dataclass(frozen=True)
class Ask:
    """A request to a runtime: generate ids after a prompt. All ids are of the merged vocabulary.

    most: the largest number of ids to generate, at least 1; ends: generation stops after any of these ids.
    """

    prompt: Sequence[int]
    most: int
    ends: Sequence[int]
    draws: Draws


class TokenRuntime(Protocol):
    """A runtime of a language model; its methods are called in the event loop in which it was made."""

    name: str

    @property
    def healthy(self) -> bool:
        """Whether no failure of the runtime is known; may be read in any thread."""

    def generate(self, ask: Ask) -> AsyncGenerator[Sequence[int], None]:
        """Yield ids as they arrive, with the end id. Closing the generator or cancelling its task aborts the request.

        EngineStopped: the whole runtime has stopped; other errors concern this request alone.
        """

    def close(self) -> None: ...


def merged_ids(vocabulary: MergedVocabulary, rows: Iterable[Row]) -> list[int]:
    """Convert text, speech and control ids to merged ids; InvalidRequest: a text id is not in the tokenizer."""

    def merged(row: Row) -> int:
        if row.kind is RowKind.CONTROL:
            return vocabulary.sos if row.id == vocabulary.own.sos else vocabulary.task
        if row.kind is RowKind.TEXT and row.id >= vocabulary.text_size:
            raise InvalidRequest(f"text: id {row.id} is outside of 0 … {vocabulary.text_size - 1}; use the tokenizer")
        return vocabulary.speech(row.id) if row.kind is RowKind.SPEECH else row.id

    return list(map(merged, rows))


@dataclass(eq=False)
class _Place:
    """A slot in use. fed: merged ids that the model has read; said: ids of the speech vocabulary that the run in
    progress has produced; history: ids of earlier runs; reader: the run's task in the event loop.
    """

    slot: Slot
    fed: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    history: deque[int] = field(default_factory=lambda: deque(maxlen=LARGEST_WINDOW))
    reader: Future[None] | None = None


class StreamedLM:
    """Implements `LMInterface` with a runtime that `start` makes in a thread of its own; raises the errors of `start`.

    vocabulary: ids of the merged model; defaults: sampling settings for requests that do not give them; slots: maximum
    number of requests at the same time; capacity: maximum number of positions of a request.
    """

    self_paced = True
    decoding = steps_in_flight = 0

    def __init__(
        self,
        start: Callable[[], TokenRuntime],
        vocabulary: MergedVocabulary,
        defaults: SamplingDefaults,
        *,
        slots: int,
        capacity: int,
    ) -> None:
        self.slots, self.capacity = slots, capacity
        self._merged, self._defaults = vocabulary, asdict(defaults)
        self._open: dict[int, _Place] = {}
        self._numbers = list(range(slots))
        self._running = 0
        self._arrived: deque[tuple[_Place, Sampled]] = deque()
        self._news = threading.Condition()
        self._death: EngineStopped | None = None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="vivavoce-lm-runtime", daemon=True)
        thread.start()
        try:
            self._runtime = self._call(_made(start)).result()
        except BaseException:
            _stop(self._loop, thread, None)
            raise
        # The thread refers to the loop alone, so an unused stage is garbage-collected, which ends the runtime.
        self._finish = weakref.finalize(self, _stop, self._loop, thread, self._runtime)

    @property
    def healthy(self) -> bool:
        return self._death is None and self._runtime.healthy

    @property
    def free_slots(self) -> int:
        return len(self._numbers)

    @property
    def in_flight(self) -> int:
        return self._running

    def shutdown(self) -> None:
        self._finish()

    def prepare(self, slots: int | None = None) -> None:
        """Do nothing: the runtime is ready once it is made."""

    def check(self, run: DecodeRun, slot: int | None = None) -> None:
        check_positions(run, 0 if slot is None else len(self._open[slot].fed), self.capacity)

    def open(self, params: SamplingParams, seed: int) -> int:
        if not self._numbers:
            raise RuntimeError("no slot is free; ask free_slots before opening one")
        number = heapq.heappop(self._numbers)
        self._open[number] = _Place(Slot.of(number, number, seed, params, self._defaults))
        return number

    def close(self, slot: int) -> None:
        """Free a slot at once: abort its request, and drop ids that `collect` has not returned."""
        place = self._open.pop(slot)
        place.slot.closed = True
        self._running -= place.slot.run is not None
        if place.reader is not None:
            place.reader.cancel()
        heapq.heappush(self._numbers, slot)

    def prefill(self, runs: Mapping[int, DecodeRun]) -> None:
        begun = []
        for number, run in runs.items():
            place = self._open[number]
            if place.slot.run is not None:
                raise RuntimeError(f"slot {number} has a run already; collect its end before another one begins")
            self.check(run, number)
            begun.append((place, run, merged_ids(self._merged, run.rows)))
        for place, run, ids in begun:
            place.fed += ids
            place.slot.run, place.said = run, []
            self._running += 1
            if run.forced_at:
                place.reader = self._call(self._read(place, run, self._ask(place, run)))
            else:
                self._give(place, Sampled(place.slot.number, (run.forced,), True))

    def decode(self, steps: int = 1) -> None:
        """Do nothing: the runtime decodes by itself."""

    def collect(self, wait: bool) -> list[Sampled]:
        if wait:
            self.wait()
        if self._death is not None:
            raise self._death
        collected = []
        while self._arrived:
            place, came = self._arrived.popleft()
            slot = place.slot
            if slot.closed:
                continue
            place.said += came.ids
            if came.ended or came.error is not None:
                num_speech = self._merged.num_speech_tokens
                place.fed += [self._merged.speech(one) for one in place.said if one < num_speech]
                place.history.extend(place.said)
                slot.count += len(place.said)
                slot.run, self._running = None, self._running - 1
            collected.append(came)
        return collected

    def wait(self) -> None:
        with self._news:
            if not self._arrived:
                self._news.wait(_LOOK_S)

    def _ask(self, place: _Place, run: DecodeRun) -> Ask:
        vocabulary, slot = self._merged, place.slot
        forbidden = tuple(one for one in vocabulary.own.stop_ids if one not in run.allowed)
        draws = Draws(
            *(slot.seed, slot.top_p, slot.top_k, slot.window, slot.max_repeats, slot.count),
            *(tuple(place.history)[-slot.window :], forbidden, tuple(run.early_forbidden), run.min_tokens),
        )
        return Ask(tuple(place.fed), run.forced_at, vocabulary.eos_ids, draws)

    async def _read(self, place: _Place, run: DecodeRun, ask: Ask) -> None:
        """Pass on ids up to and including a control id: the model samples it, or the run forces it at its limit."""
        number, said, ended, since = place.slot.number, 0, False, time.perf_counter()
        try:
            async with aclosing(self._runtime.generate(ask)) as pieces:
                async for piece in pieces:
                    own = _up_to_control([one - self._merged.text_size for one in piece], self._merged.own)
                    if ended or not own:
                        continue
                    said, ended, now = said + len(own), own[-1] >= self._merged.num_speech_tokens, time.perf_counter()
                    self._give(place, Sampled(number, tuple(own), ended, seconds=(now - since) / len(own)))
                    since = now
            if not ended and said < run.forced_at:
                raise StageFailed(
                    f"{self._runtime.name}: it ended a request after {said} of {run.forced_at} ids; try again"
                )
            if not ended:
                self._give(place, Sampled(number, (run.forced,), True))
        except Exception as error:
            self._death = error if isinstance(error, EngineStopped) else self._death
            self._give(place, Sampled(number, (), False, error))

    def _give(self, place: _Place, came: Sampled) -> None:
        with self._news:
            self._arrived.append((place, came))
            self._news.notify()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _up_to_control(ids: Sequence[int], own: Vocabulary) -> list[int]:
    """Return the ids up to and including the first control id; StageFailed: an id is not in the speech vocabulary."""
    wrong = next((one for one in ids if not 0 <= one < own.num_logits), None)
    if wrong is not None:
        raise StageFailed(
            f"engine: the runtime sampled id {wrong}, which is not a speech token; use another lm_backend"
        )
    end = next((place for place, one in enumerate(ids) if one >= own.num_speech_tokens), len(ids))
    return list(ids[: end + 1])


async def _made(start: Callable[[], TokenRuntime]) -> TokenRuntime:
    return start()


def import_runtime(package: str, oldest: tuple[int, int], before: tuple[int, int], install: str) -> Any:
    """Import the package; MissingDependency: it cannot be imported, or its version is not supported."""
    try:
        api = import_module(package)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingDependency(f"{package}: cannot be imported ({reason}); {install}") from error
    version = str(getattr(api, "__version__", "of an unknown version"))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not oldest <= (int(found[1]), int(found[2])) < before:
        raise MissingDependency(f"{package}: {version} is not supported; {install}")
    return api


def open_runtime(
    make: Callable[[Path, LanguageModel | Models, EngineSettings, MemoryPlan], TokenRuntime],
    models: Models | LanguageModel,
    settings: EngineSettings,
    memory: MemoryPlan,
) -> StreamedLM:
    """Open a stage over a runtime; `make` gets the merged folder, the models, the settings and the memory plan.

    Raises the errors of `make`, `MergedVocabulary` and `speech_bias`.
    """
    config, folder = models.config, models.merged
    if folder is None:
        raise InvalidRequest("lm_backend: other runtimes load a merged folder, and none was given; use torch")
    _, speech = speech_bias(folder)
    vocabulary = MergedVocabulary(speech.start, config.lm.vocabulary.num_speech_tokens, config.generation)
    start = partial(make, folder, models, settings, memory)
    return StreamedLM(start, vocabulary, config.lm.sampling, slots=memory.slots, capacity=memory.capacity)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, runtime: TokenRuntime | None) -> None:
    async def end() -> None:
        readers = asyncio.all_tasks() - {asyncio.current_task()}
        for reader in readers:
            reader.cancel()
        if readers:
            await asyncio.wait(readers, timeout=1.0)
        try:
            if runtime is not None:
                runtime.close()
        finally:
            loop.stop()

    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(end()))
        if threading.current_thread() is not thread:  # the loop itself may drop the last reference to the stage
            thread.join(_STOP_S)
            if thread.is_alive():
                log.error("engine failed: the language model's runtime did not end within %g s", _STOP_S)
            else:
                loop.close()
