"""Several engines in processes of their own behind one `Vivavoce`: the same audio, and what happens when one ends."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import soundfile

from tests.test_python import errors_in_a_fork
from vivavoce.api import Vivavoce, load
from vivavoce.engine.handle import Outbox, RequestHandle, RequestResult
from vivavoce.engine.request import AudioChunk, EngineRequest, SamplingParams
from vivavoce.errors import CheckpointError, EngineStopped, InvalidRequest, StageFailed
from vivavoce_fleet.engine_group import EngineGroup, _Served

pytestmark = pytest.mark.process

SHORT = SamplingParams(max_ratio=2.0, min_ratio=0.0, top_k=5)
TEXTS = [f"One two three, number {number}." for number in range(6)]
ROUNDING = 0.005
"""Larger batches sum in another order; other tokens are another length or another wave."""


@pytest.fixture(scope="module")
def alone(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vivavoce]:
    with load(babble, device="cpu", voices=tmp_path_factory.mktemp("voices")) as tts:
        yield tts


@pytest.fixture(scope="module")
def both(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vivavoce]:
    with load(babble, device=["cpu", "cpu"], voices=tmp_path_factory.mktemp("voices")) as tts:
        yield tts


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return len(one) == len(other) and bool(np.abs(one - other).max() < ROUNDING * np.abs(other).max())


def streamed(tts: Vivavoce, text: object) -> tuple[np.ndarray, object]:
    stream = tts.stream(text, sampling=SHORT, seed=3)  # type: ignore[arg-type]
    samples = np.concatenate([chunk.samples for chunk in stream])
    return samples, stream.marks


def test_texts_are_spoken_by_all_and_as_one_engine_would(alone: Vivavoce, both: Vivavoce) -> None:
    assert (both.sample_rate, both.device, both.dtype) == (alone.sample_rate, alone.device, alone.dtype)
    spoken = list(both.speak_many(TEXTS, sampling=SHORT))
    for one, wanted in zip(spoken, alone.speak_many(TEXTS, sampling=SHORT), strict=True):
        assert same(one.samples, wanted.samples)
        assert one.marks == wanted.marks
        assert one.timings.flow_s > 0
    group = cast(EngineGroup, both.engine)
    each = [answer.result() for answer in [one.call("statistics") for one in group._engines.values()]]
    assert sum(one.requests.finished for one in each) == both.statistics.requests.finished == len(TEXTS)
    assert all(one.requests.finished for one in each)
    assert both.statistics.streams.first_chunk_s.bounds == each[0].streams.first_chunk_s.bounds
    assert type(both.costs) is type(alone.costs)


@pytest.mark.parametrize("text", [TEXTS[0] * 4, ["One two ", "three four ", "five."]])
def test_streams_and_texts_that_arrive(alone: Vivavoce, both: Vivavoce, text: object) -> None:
    (samples, marks), (wanted, wanted_marks) = streamed(both, text), streamed(alone, text)
    assert same(samples, wanted)
    assert marks == wanted_marks


async def test_the_event_loop_goes_on(both: Vivavoce) -> None:
    async def pieces() -> AsyncIterator[str]:
        for piece in ("One two ", "three."):
            yield piece

    speech, chunks = await asyncio.gather(both.aspeak(TEXTS[0], sampling=SHORT), heard(both, pieces()))
    assert speech.duration_s > 0
    assert chunks > 0


async def heard(tts: Vivavoce, text: AsyncIterator[str]) -> int:
    return sum([1 async for _ in tts.astream(text, sampling=SHORT)])


class Sent(list[tuple[object, ...]]):
    """The connection of an engine's process: what it was to send."""

    def send_bytes(self, message: bytes) -> None:
        self.append(pickle.loads(message))


async def test_a_request_that_ended_first_wants_no_text() -> None:
    served = _Served(cast(Connection, sent := Sent()))
    outbox = Outbox[AudioChunk]()
    handle = served._handles[7] = RequestHandle(outbox, cancel=lambda: None, push=lambda more: outbox.text_sent(-1))
    served._take_text(7, (1, 2))
    (asked,) = served._running
    outbox.end(RequestResult())
    del served._handles[7], handle
    await asked
    assert sent == []


async def test_a_request_that_breaks_the_engine_s_submit_is_answered() -> None:
    def submit(_: object) -> None:
        raise RuntimeError("out of threads")

    here, there = os.pipe()
    served = _Served(Connection(there, readable=False))
    served._engine = SimpleNamespace(submit=submit)  # type: ignore[assignment]
    await served._speak(7, cast(EngineRequest, None))
    answer = pickle.loads(Connection(here, writable=False).recv_bytes())
    assert (answer.number, type(answer.value)) == (7, StageFailed)
    assert "out of threads" in str(answer.value)


async def test_a_task_is_held_for_as_long_as_it_runs() -> None:
    served, over, count = _Served(cast(Connection, Sent())), asyncio.Event(), 10_001

    async def work() -> None:
        await over.wait()

    for _ in range(count):
        served._run(work())
    tasks = list(served._running)
    over.set()
    assert len(tasks) == count
    await asyncio.gather(*tasks)
    assert len(served._running) == 0


def test_who_leaves_frees_its_place_and_bad_input_is_refused(both: Vivavoce) -> None:
    group = cast(EngineGroup, both.engine)
    stream = both.stream(TEXTS[0] * 20, sampling=SHORT)
    next(stream)
    stream.close()
    both.speak(TEXTS[0], sampling=SHORT)
    while any(one.load.streams for one in group._engines.values()):
        pass
    assert both.statistics.requests.cancelled >= 1
    with pytest.raises(InvalidRequest, match="tau_r"):
        both.speak("Hello.", sampling=SamplingParams(tau_r=9.0))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork by themselves")
def test_a_fork_harms_no_engine(both: Vivavoce, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    soundfile.write(path, np.zeros(24_000, np.float32), 24_000)
    (said,) = errors_in_a_fork(both, path)
    assert "load it in each worker" in said
    assert both.speak("Hi.", sampling=SHORT).samples.size


def test_devices_that_are_none_are_refused(babble: Path) -> None:
    with pytest.raises(InvalidRequest, match="device: the list is empty"):
        load(babble, device=[])
    with pytest.raises(InvalidRequest, match="'abacus'"):
        load(babble, device=["cpu", "abacus"])


def test_an_engine_that_cannot_be_loaded_is_an_error_and_leaves_no_process(babble: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(babble, tmp_path / "broken")
    (broken / "hift.pt").write_bytes(b"nothing")
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    with pytest.raises(CheckpointError):
        load(broken, device=["cpu", "cpu"])
    assert children.read_text() == before


def test_a_group_that_is_dropped_leaves_no_process(babble: Path, tmp_path: Path) -> None:
    tts = load(babble, device=["cpu", "cpu"], voices=tmp_path)
    processes = [one._process for one in cast(EngineGroup, tts.engine)._engines.values()]
    assert [one.poll() for one in processes] == [None, None]
    del tts
    gc.collect()
    assert None not in [one.poll() for one in processes]


def test_an_engine_that_ends_takes_what_it_had_and_the_other_goes_on(both: Vivavoce) -> None:
    """The last one: it ends an engine, and then the other."""
    group = cast(EngineGroup, both.engine)
    first, other = group._engines.values()
    streams = [both.stream(TEXTS[0] * 20, sampling=SHORT, seed=0)]
    while not min(first.load.streams, other.load.streams):  # a slow machine gives the second one less
        streams.append(both.stream(TEXTS[0] * 20, sampling=SHORT, seed=len(streams)))
        assert len(streams) < 50
    os.kill(first._process.pid, signal.SIGKILL)
    ends = []
    for stream in streams:
        try:
            ends.append(sum(len(chunk.samples) for chunk in stream) > 0)
        except EngineStopped as error:
            ends.append(str(error))
    assert set(map(type, ends)) == {bool, str}
    assert both.speak(TEXTS[0], sampling=SHORT).duration_s > 0
    os.kill(other._process.pid, signal.SIGKILL)
    other._process.wait()
    with pytest.raises(EngineStopped):
        both.speak(TEXTS[0])
    with pytest.raises(EngineStopped, match="load the model again"):
        both.speak(TEXTS[0])
    with pytest.raises(EngineStopped):
        _ = both.costs
