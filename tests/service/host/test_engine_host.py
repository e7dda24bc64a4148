"""The engine in a process of its own: real processes, a tiny model that babbles."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from vivavoce.engine.admission import AdmissionMode
from vivavoce.errors import (
    CheckpointError,
    EngineStopped,
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.service.host.host import EngineHost
from vivavoce.service.host.order import Recording, Sampling, SpeechOrder
from vivavoce.service.host.speaker import SegmentText, SpeechPiece
from vivavoce.service.host.talk import AHEAD
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.settings import EngineSection, ModelSection, ServerSettings, VoicesSection

SHORT = Sampling(max_ratio=1.0, min_ratio=0.0, top_k=5)
"""Babble does not stop by itself: one speech token for each text token."""
TEXT = "One two three four five six seven eight. " * 16
"""More segments than the engine is given at once."""
ROUNDING = 0.005
"""Larger batches sum in another order; other tokens are another length or another wave."""


def settings_for(model: Path, voices: Path) -> ServerSettings:
    return ServerSettings(
        model=ModelSection(model=str(model), device="cpu", warm_up_s=0),
        engine=EngineSection(admission=AdmissionMode.ALL),
        voices=VoicesSection(place=str(voices)),
    )


async def with_host(settings: ServerSettings, work: Callable[[EngineHost], Awaitable[None]]) -> None:
    """Run something with a host of its own that is ready."""
    host = EngineHost(settings)
    try:
        await host.start()
        await asyncio.wait_for(work(host), 120)
    finally:
        await host.close()


@dataclass(frozen=True)
class Shared:
    """One host for several tests, in an event loop of its own, with the voice anna."""

    host: EngineHost
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=120)


@pytest.fixture(scope="module")
def shared(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> EngineHost:
        host = EngineHost(settings_for(babble, tmp_path_factory.mktemp("voices")))
        await host.start()
        added = await host.add_voice("", "anna", recording(), description="noise")
        assert (added.name, added.kind, added.public) == ("anna", "stored", True)
        return host

    host = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=120)
    yield Shared(host, loop)
    asyncio.run_coroutine_threadsafe(host.close(), loop).result(timeout=60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def recording(seed: int = 0) -> Recording:
    """A second of something that is no silence, as a WAV file."""
    import io

    noise = np.random.default_rng(seed).normal(0, 0.1, 16_000).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, noise, 16_000, format="WAV", subtype="PCM_16")
    return Recording(file.getvalue(), "hello there")


def order(
    text: str | None = "Hello there, friend.", voice: str | Recording | None = "anna", **fields: object
) -> SpeechOrder:
    return SpeechOrder(text, voice, sampling=SHORT, **fields)  # type: ignore[arg-type]


async def spoken(host: EngineHost, wanted: SpeechOrder) -> tuple[np.ndarray, list[SegmentText]]:
    stream = await host.speak(wanted)
    samples, told = [], []
    async for event in stream:
        if isinstance(event, SpeechPiece):
            assert event.segment in {one.place for one in told}
            samples.append(event.samples)
        else:
            told.append(event)
    assert stream.verdict is not None
    assert stream.verdict.reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert stream.verdict.segments_spoken == stream.verdict.segments_given == len({one.place for one in told})
    assert stream.verdict.speech_tokens is not None
    return np.concatenate(samples), told


def differ(one: np.ndarray, other: np.ndarray) -> float:
    """By what share of its peak one differs from the other, which may be of another length."""
    return 1.0 if len(one) != len(other) else float(np.abs(one - other).max() / np.abs(other).max())


async def drained(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


def test_it_speaks_lists_adds_and_removes(shared: Shared) -> None:
    host = shared.host

    async def work() -> None:
        assert host.about.sample_rate == 24_000
        assert "anna" in {voice.name for voice in await host.voices("")}
        before = await host.statistics()
        first, _ = await spoken(host, order())
        again, _ = await spoken(host, order())
        other, _ = await spoken(host, order(seed=1))
        assert np.array_equal(first, again)
        assert differ(first, other) > ROUNDING
        after = await host.statistics()
        assert before is not None
        assert after is not None
        assert after.engine.requests.finished - before.engine.requests.finished == 3
        assert after.starts == 1
        await host.add_voice("me", "mine", recording(1))
        assert {voice.name for voice in await host.voices("me")} >= {"anna", "mine"}
        await spoken(host, order(voice="mine", owner="me"))
        with pytest.raises(VoiceNotFound):
            await host.speak(order(voice="mine"))
        await host.remove_voice("me", "mine")
        with pytest.raises(VoiceNotFound):
            await host.speak(order(voice="mine", owner="me"))

    shared.run(work())


def test_neighbours_do_not_change_a_long_text_whose_segments_are_told(shared: Shared) -> None:
    async def work() -> None:
        alone, told = await spoken(shared.host, order(TEXT))
        assert len(told) > AHEAD + 1
        assert (told[0].start, told[-1].end) == (0, len(TEXT))
        assert all(one.end == other.start for one, other in pairwise(told))
        several = await asyncio.gather(*(spoken(shared.host, order(TEXT, seed=seed)) for seed in (0, 1)))
        assert differ(several[0][0], alone) <= ROUNDING < differ(several[1][0], alone)

    shared.run(work())


def test_bad_input_is_refused_and_nobody_else_is_harmed(shared: Shared) -> None:
    host = shared.host

    async def work() -> None:
        going = asyncio.ensure_future(spoken(host, order(TEXT)))
        refusals: list[tuple[SpeechOrder, type[VivavoceError]]] = [
            (order("..."), InvalidText),
            (order("x" * 20_001), InvalidText),
            (order(voice="nobody"), VoiceNotFound),
            (order(voice="../../etc/passwd"), VivavoceError),
            (order(voice=Recording(b"no audio")), InvalidAudio),
            (order(mode="sing"), InvalidRequest),
            (order(policy="fast"), InvalidRequest),
            (order(language="tlh"), InvalidRequest),
            (order(speed=9.0), InvalidRequest),
        ]
        for wanted, kind in refusals:
            with pytest.raises(kind):
                await host.speak(wanted)
        empty = await host.speak(order(None))
        await empty.end()
        with pytest.raises(InvalidText):
            await anext(aiter(empty))
        unharmed, _ = await going
        assert differ((await spoken(host, order(TEXT)))[0], unharmed) <= ROUNDING

    shared.run(work())


def test_a_cancelled_request_is_freed(shared: Shared) -> None:
    host = shared.host

    async def work() -> None:
        stream = await host.speak(order(TEXT))
        async for event in stream:
            if isinstance(event, SpeechPiece):
                stream.cancel()
        assert stream.verdict is not None
        assert stream.verdict.reason is FinishReason.CANCELLED
        waiting = await host.speak(order(None))
        waiting.cancel()
        asking = asyncio.ensure_future(host.speak(order(TEXT)))
        await asyncio.sleep(0)
        asking.cancel()
        await spoken(host, order())  # what was asked before it has been taken up by now
        figures = await host.statistics()
        assert figures is not None
        assert figures.engine.requests.unfinished == 0
        assert figures.engine.slots.used == 0

    shared.run(work())


def test_what_a_listener_does_not_take_is_not_made(shared: Shared) -> None:
    """The engine is given so many segments beyond the one that is heard, and no more."""
    host = shared.host

    async def work() -> None:
        stream = await host.speak(order(TEXT))
        events = aiter(stream)
        told = 0
        while not isinstance(event := await anext(events), SpeechPiece):
            told += isinstance(event, SegmentText)
        assert told == AHEAD + 1
        stream.cancel()

    shared.run(work())


def test_a_text_that_arrives_is_spoken_sentence_by_sentence(babble: Path, tmp_path: Path) -> None:
    model = shutil.copytree(babble, tmp_path / "model")
    card = model / "vivavoce.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "text_stream": "sentences"}))

    async def work(host: EngineHost) -> None:
        await host.add_voice("", "anna", recording())
        stream = await host.speak(order(None))
        events = aiter(stream)
        await stream.push("One two three four five. Six sev")
        first = await anext(events)
        assert first == SegmentText(0, 0, 24)  # and its audio need not wait for the rest
        while not isinstance(await anext(events), SpeechPiece):
            pass
        await stream.push("en eight nine ten eleven.")
        await stream.end()
        rest = [event async for event in events]
        assert SegmentText(1, 25, 57) in rest
        assert stream.verdict is not None
        assert (stream.verdict.segments_spoken, stream.verdict.segments_given) == (2, 2)

    asyncio.run(with_host(settings_for(model, tmp_path / "voices"), work))


def test_a_killed_process_is_replaced_voices_are_there_and_it_ends_with_its_server(
    babble: Path, tmp_path: Path
) -> None:
    ids: list[int] = []

    async def work(host: EngineHost) -> None:
        await host.add_voice("", "anna", recording())
        before, _ = await spoken(host, order())
        stream = await host.speak(order(TEXT))
        victim = host.process_id
        assert victim is not None
        assert os.getpgid(victim) != os.getpgid(0), "a terminal's Ctrl-C would end it, too"
        events = aiter(stream)
        while not isinstance(await anext(events), SpeechPiece):
            pass
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(EngineStopped, match="SIGKILL"):
            await drained(events)
        assert not host.ready
        with pytest.raises(EngineStopped, match="starting"):
            await host.speak(order())
        assert host.about.name  # what it was is still known
        await host.until_ready()
        assert host.process_id not in (None, victim)
        ids.append(host.process_id or 0)
        assert np.array_equal((await spoken(host, order()))[0], before)
        figures = await host.statistics()
        assert figures is not None
        assert figures.starts == 2

    asyncio.run(with_host(settings_for(babble, tmp_path / "voices"), work))
    with pytest.raises(ProcessLookupError):
        os.kill(ids[0], 0)


def test_a_process_that_is_stuck_is_replaced(babble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.service.host.host.PULSE_S", 0.1)
    monkeypatch.setattr("vivavoce.service.host.host.STUCK_S", 2.0)

    async def work(host: EngineHost) -> None:
        victim = host.process_id
        assert victim is not None
        os.kill(victim, signal.SIGSTOP)
        asking = asyncio.gather(host.voices(""), host.speak(order()), return_exceptions=True)
        for answer in await asking:
            assert isinstance(answer, EngineStopped)
            assert "SIGKILL" in str(answer)
        monkeypatch.setattr("vivavoce.service.host.host.STUCK_S", 60.0)
        await host.until_ready()
        assert host.process_id not in (None, victim)

    asyncio.run(with_host(settings_for(babble, tmp_path / "voices"), work))


def test_a_process_that_cannot_be_begun_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        host = EngineHost(settings_for(tmp_path, tmp_path), command=(str(tmp_path / "nothing"),))
        with pytest.raises(EngineStopped, match=r"cannot be begun.*before it could speak"):
            await host.start()
        await host.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "model").mkdir()
        host = EngineHost(settings_for(tmp_path / "model", tmp_path / "voices"))
        with pytest.raises(CheckpointError):
            await host.start()
        await host.close()

    asyncio.run(run())


def test_the_server_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, vivavoce.service.host.host, vivavoce.doors.http.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
