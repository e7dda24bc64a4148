"""Several engines as one speaker: whom it asks, what it moves when an engine ends; processes that share voices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.engine_process.test_engine_host import ROUNDING, differ, order, recording, settings_for, spoken, until_ready
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process.client import EngineClient, RemoteStream
from vivavoce.engine_process.messages import Cancel, EngineProcessSettings, MoreText, ToProcess
from vivavoce.errors import EngineStopped, InvalidRequest, InvalidText, Overloaded, VivavoceError, VoiceNotFound
from vivavoce.frontend.speech import FinishReason, Recording, SegmentText, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import ModelInfo, engines_of
from vivavoce.server.settings import ModelSection
from vivavoce_fleet import devices as places
from vivavoce_fleet.engine_fleet import MOST_LOST, EngineFleet, FleetStream, open_engines

ENDED = EngineStopped("engine: its process has ended (signal SIGKILL) and is started again; ask again soon")
WHOLE = Verdict(FinishReason.STOP, segments_spoken=1, segments_given=1)
SEGMENT = SegmentText(0, 0, 5)


@dataclass(eq=False)
class FakeEngine:
    """As much of an `EngineClient` as a fleet asks for; its streams do what a test says."""

    name: str
    refusal: VivavoceError | None = None
    ready: bool = True
    stuck: bool = False
    voice_store: str = "ok"
    about: ModelInfo = field(default_factory=lambda: ModelInfo("fake", "", 24_000, demo=True))
    streams: list[RemoteStream] = field(default_factory=list)
    sent: list[ToProcess] = field(default_factory=list)
    asked: int = 0
    capacity: int = 10

    @property
    def active(self) -> int:
        return len(self.streams)

    async def start(self, about: ModelInfo | None = None) -> None:
        await self._asked()

    async def speak(self, request: SpeechRequest) -> RemoteStream:
        await self._asked()
        self.streams.append(RemoteStream(1, 24_000, self.sent.append))
        return self.streams[-1]

    async def add_voice(self, owner: str, name: str, recording: Recording, **_: object) -> str:
        await self._asked()
        return self.name

    async def voices(self, owner: str) -> list[str]:
        await self._asked()
        return [self.name]

    async def _asked(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal


def fleet_of(*engines: FakeEngine) -> EngineFleet:
    return EngineFleet({one.name: cast(EngineClient, one) for one in engines})


def audio(value: float) -> AudioChunk:
    return AudioChunk(np.full(240, value, np.float32), 24_000, segment=0)


async def heard(stream: FleetStream) -> list[SpeechEvent]:
    return [event async for event in stream]


async def steps(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_has_not_sounded_is_spoken_by_another_engine_and_nothing_is_told_twice() -> None:
    one, other = FakeEngine("0"), FakeEngine("1")
    stream = await fleet_of(one, other).speak(SpeechRequest("Hello."))
    listening = asyncio.ensure_future(heard(stream))
    await steps()
    one.streams[0].on_event(SEGMENT)
    one.streams[0].on_end(ENDED)
    await steps()
    assert stream.verdict is None, "it goes on"
    for event in (SEGMENT, audio(0.5), audio(0.25)):
        other.streams[0].on_event(event)
    other.streams[0].on_end(WHOLE)
    events = await listening
    assert events[0] == SEGMENT
    assert [chunk.samples[0] for chunk in events[1:] if isinstance(chunk, AudioChunk)] == [0.5, 0.25]
    assert len(events) == 3
    assert stream.verdict == WHOLE


async def test_what_has_sounded_ends_with_its_engine() -> None:
    one, other = FakeEngine("0"), FakeEngine("1")
    stream = await fleet_of(one, other).speak(SpeechRequest("Hello."))
    one.streams[0].on_event(SEGMENT)
    one.streams[0].on_event(audio(0.5))
    taken: list[SpeechEvent] = []

    async def listen() -> None:
        async for event in stream:
            taken.append(event)
            one.streams[0].on_end(ENDED)

    with pytest.raises(EngineStopped, match="has ended"):
        await listen()
    assert len(taken) == 2
    assert other.asked == 0
    assert stream.verdict is not None
    assert (stream.verdict.reason, stream.verdict.error_code) == (FinishReason.ERROR, "engine_stopped")


async def test_a_text_that_arrives_is_brought_to_the_other_engine_in_its_order() -> None:
    one, other = FakeEngine("0"), FakeEngine("1")
    stream = await fleet_of(one, other).speak(SpeechRequest(None))
    listening = asyncio.ensure_future(heard(stream))
    await stream.push("One ")
    with pytest.raises(InvalidText):
        await stream.push("x" * 20_001)
    await stream.push("two ")
    one.streams[0].on_end(ENDED)
    await stream.push("three ")  # nobody knows yet that the engine has gone
    await steps()
    await stream.push("four.")
    await stream.end()
    texts = [message.text for message in other.sent if isinstance(message, MoreText)]
    assert texts == ["One ", "two ", "three ", "four.", None]
    other.streams[0].on_event(audio(0.5))
    other.streams[0].on_end(WHOLE)
    assert len(await listening) == 1


async def test_each_engine_is_given_a_request_once_and_not_more_than_some_end_under_it() -> None:
    engines = [FakeEngine(str(number)) for number in range(4)]
    stream = await fleet_of(*engines).speak(SpeechRequest("Hello."))
    listening = asyncio.ensure_future(heard(stream))
    await steps()
    for _ in range(MOST_LOST):
        for engine in engines:
            for taken in engine.streams:
                taken.on_end(ENDED)
        await steps()
    with pytest.raises(EngineStopped):
        await listening
    assert sorted(engine.asked for engine in engines) == [0, 0, 1, 1]


async def test_all_that_refuse_are_asked_and_the_shortest_wait_is_told() -> None:
    engines = [FakeEngine(str(number), Overloaded("busy", wait)) for number, wait in enumerate((9.0, 2.0, 4.0))]
    fleet = fleet_of(*engines)
    with pytest.raises(Overloaded) as refusal:
        await fleet.speak(SpeechRequest("Hello.", "anna"))
    assert refusal.value.retry_after_s == 2.0
    assert [engine.asked for engine in engines] == [1, 1, 1]
    engines[2].refusal = None
    await fleet.speak(SpeechRequest("Hello.", "anna"))
    assert len(engines[2].streams) == 1
    for engine in engines:
        engine.refusal = InvalidText("text: cannot be spoken")
    asked = sum(engine.asked for engine in engines)
    with pytest.raises(InvalidText):
        await fleet.speak(SpeechRequest("\x00"))
    assert sum(engine.asked for engine in engines) == asked + 1, "bad input is bad everywhere"


async def test_who_leaves_while_its_request_moves_is_spoken_to_by_nobody() -> None:
    one, other = FakeEngine("0"), FakeEngine("1")
    stream = await fleet_of(one, other).speak(SpeechRequest("Hello."))
    listening = asyncio.ensure_future(heard(stream))
    await steps()
    one.streams[0].on_end(ENDED)
    while not other.asked:
        await asyncio.sleep(0)
    stream.cancel()
    assert await listening == []
    assert stream.verdict is not None
    assert stream.verdict.reason is FinishReason.CANCELLED
    assert other.sent == [Cancel(1)]


async def test_a_voice_is_added_where_there_is_room_and_not_again_where_an_engine_ended() -> None:
    one, other = FakeEngine("0", Overloaded("busy")), FakeEngine("1", Overloaded("busy"))
    fleet = fleet_of(one, other)
    other.refusal = None
    assert cast(str, await fleet.add_voice("", "anna", Recording(b""))) == "1"
    one.refusal = other.refusal = ENDED
    before = one.asked + other.asked
    with pytest.raises(EngineStopped):
        await fleet.add_voice("", "anna", Recording(b""))
    assert one.asked + other.asked == before + 1
    other.refusal = None
    assert cast(list[str], await fleet.voices("")) == ["1"]


async def test_a_single_engine_tells_itself_why_it_refuses_and_has_no_name() -> None:
    one = FakeEngine("", EngineStopped("engine: it is starting"), ready=False)
    fleet = fleet_of(one)
    with pytest.raises(EngineStopped, match="it is starting"):
        await fleet.speak(SpeechRequest("Hello."))
    assert one.asked == 1
    assert engines_of(fleet) == {}


async def test_an_engine_in_the_place_of_one_that_ended_takes_what_waited_there() -> None:
    old, new = FakeEngine(""), FakeEngine("")
    fleet = fleet_of(old)
    stream = await fleet.speak(SpeechRequest("Hello."))
    listening = asyncio.ensure_future(heard(stream))
    await steps()
    fleet.engines[""] = cast(EngineClient, new)
    old.streams[0].on_end(ENDED)
    await steps()
    new.streams[0].on_event(audio(0.5))
    new.streams[0].on_end(WHOLE)
    assert len(await listening) == 1
    assert stream.verdict == WHOLE


async def test_it_is_ready_and_in_order_as_long_as_one_engine_is() -> None:
    one, other = FakeEngine("0"), FakeEngine("1", ready=False, stuck=True)
    fleet = fleet_of(one, other)
    assert (fleet.ready, fleet.stuck, fleet.voice_store) == (True, False, "ok")
    assert list(engines_of(fleet)) == ["0", "1"]
    one.voice_store = "voice store: it does not answer"
    assert fleet.voice_store == "voice store: it does not answer"
    one.ready = False
    assert (fleet.ready, fleet.stuck, fleet.voice_store) == (False, True, "ok")
    with pytest.raises(EngineStopped, match="starting"):
        await fleet.speak(SpeechRequest("Hello."))


async def test_the_first_engine_starts_alone_and_its_trouble_is_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    one, other, third = (FakeEngine(str(number)) for number in range(3))
    other.refusal = EngineStopped("engine: it cannot be started")
    fleet = fleet_of(one, other, third)
    await fleet.start()
    assert (one.asked, other.asked, third.asked) == (1, 0, 0)
    await steps()
    assert (other.asked, third.asked) == (1, 1)
    assert any("engine not started: 1: engine: it cannot be started" in line for line in caplog.messages)
    one.refusal = EngineStopped("engine: the model cannot be loaded")
    with pytest.raises(EngineStopped, match="cannot be loaded"):
        await fleet.start()


async def test_engines_are_placed_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "count_gpus", lambda: 3)

    def devices(**model: Any) -> dict[str, str]:
        engines = open_engines(EngineProcessSettings(ModelSection(**model))).engines
        assert all(one._settings.model.gpus is None for one in engines.values())
        assert all("CUDA_VISIBLE_DEVICES" in one._environment for one in engines.values())
        seen = {name: one._environment["CUDA_VISIBLE_DEVICES"] for name, one in engines.items()}
        return {name: f"{one._settings.model.device} of {seen[name]}" for name, one in engines.items()}

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,MIG-7")
    assert devices() == {"": "auto of 3,5,MIG-7"}
    assert devices(engines=2, device="cpu") == dict.fromkeys("01", "cpu of 3,5,MIG-7")
    assert devices(gpus="2,0") == {"cuda:2": "cuda:0 of MIG-7", "cuda:0": "cuda:0 of 3"}
    assert devices(gpus="all") == {f"cuda:{place}": f"cuda:0 of {one}" for place, one in enumerate(("3", "5", "MIG-7"))}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices(gpus="1") == {"cuda:1": "cuda:0 of 1"}
    for wrong, problem in {"0,3": "here are 3", "1,1": "named twice", "1,two": "is neither all nor"}.items():
        with pytest.raises(InvalidRequest, match=f"gpus: .*{problem}"):
            places.devices_of(wrong, 1, "auto")
    with pytest.raises(InvalidRequest, match="gpus: 0,1 gives each GPU one engine"):
        places.devices_of("0,1", 2, "auto")
    monkeypatch.setattr(places, "count_gpus", lambda: 0)
    with pytest.raises(InvalidRequest, match="here are 0"):
        places.devices_of("all", 1, "auto")


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def fleet(
    loop: asyncio.AbstractEventLoop, babble: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineFleet]:
    settings = settings_for(babble, tmp_path_factory.mktemp("voices"))
    settings = settings._replace(model=settings.model.model_copy(update={"engines": 2}))

    async def opened() -> EngineFleet:
        fleet = open_engines(settings)
        assert isinstance(fleet, EngineFleet)
        await fleet.start()
        await asyncio.gather(*(until_ready(one) for one in fleet.engines.values()))
        return fleet

    yield (fleet := loop.run_until_complete(opened()))
    loop.run_until_complete(fleet.close())


@pytest.mark.process
async def test_a_voice_that_one_engine_stores_is_spoken_replaced_and_removed_for_all(
    loop: asyncio.AbstractEventLoop, fleet: EngineFleet
) -> None:
    one, other = fleet.engines.values()
    await one.add_voice("", "anna", recording())
    assert "anna" in {voice.name for voice in await other.voices("")}
    assert (await fleet.normalize(order("5 km"))).spoken == "five kilometers"
    there, _ = await spoken(other, order())
    assert np.array_equal(there, (await spoken(one, order()))[0]), "the same voice and seed"
    await other.add_voice("", "anna", recording(1), replace=True)
    now, _ = await spoken(one, order())
    assert not np.array_equal(now, there), "the new voice"
    assert np.array_equal(now, (await spoken(other, order()))[0])
    await fleet.remove_voice("", "anna")
    for engine in (one, other):
        with pytest.raises(VoiceNotFound):
            await engine.speak(order())


@pytest.mark.process
async def test_an_engine_that_is_killed_takes_its_own_streams_and_comes_back(
    loop: asyncio.AbstractEventLoop, fleet: EngineFleet
) -> None:
    await fleet.add_voice("", "bert", recording())
    alone, _ = await spoken(fleet.engines["0"], order(voice="bert"))
    streams = [await fleet.speak(order("Hello there, friend.", "bert")) for _ in range(8)]
    at = {name: one.active for name, one in fleet.engines.items()}
    assert min(at.values()) > 0, "both have some"
    victim = fleet.engines["1"]
    assert victim.process_id is not None
    os.kill(victim.process_id, signal.SIGKILL)
    while victim.active:  # until its streams know that it has ended: a chunk taken before that would count as heard
        await asyncio.sleep(0)
    for stream in streams:  # none of them has been listened to
        chunks = [event.samples async for event in stream if isinstance(event, AudioChunk)]
        assert stream.verdict is not None
        assert stream.verdict.reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert differ(np.concatenate(chunks), alone) < ROUNDING
    await until_ready(victim)
    again, _ = await spoken(victim, order(voice="bert"))
    assert np.array_equal(again, alone)
