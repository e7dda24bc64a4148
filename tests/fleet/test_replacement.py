"""Engines that are replaced while they speak: no request is lost, and one that cannot begin changes nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from tests.engine_process.test_engine_host import order, recording, settings_for, until_ready
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import PROTOCOL, EngineProcessSettings
from vivavoce.engine_process.model_service import missing_room
from vivavoce.errors import CheckpointError, EngineStopped, InvalidRequest, OutOfMemory, VivavoceError, VoiceNotFound
from vivavoce.frontend.speech import FinishReason
from vivavoce.frontend.speech_backend import ModelInfo, SpeechStream
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce_fleet import replacement
from vivavoce_fleet.engine_fleet import open_engines
from vivavoce_fleet.replacement import Replacement, check_same_rate
from vivavoce_textnorm.lexicon import Lexicon, Lexicons

LONG = "One two three four five six seven eight. " * 6
"""More than the engine makes ahead of its listener."""
SPOKEN = (FinishReason.STOP, FinishReason.LENGTH)
DRAIN_S = 60.0


class Server:
    """As much of a server as a replacement asks for."""

    def __init__(self, settings: EngineProcessSettings) -> None:
        self.settings = settings
        self.fleet = open_engines(settings)
        self.engines = self.fleet.engines
        self.dispatcher = RequestDispatcher(self.fleet)
        self._number = 0

    async def replace(self, drain_s: float = DRAIN_S, gap: bool = False, **model: object) -> None:
        wanted = self.settings._replace(model=self.settings.model.model_copy(update=model))
        await Replacement(self.engines, drain_s, gap).replace(self.settings, wanted)

    async def listen(self, text: str = "Hello there, friend.") -> float:
        """Seconds of audio of a request that is spoken to its end."""
        self._number += 1
        identity = f"request-{self._number}"
        request = await self.dispatcher.speak(ANONYMOUS, order(text), protocol="test", request_id=identity)
        async with request:
            samples = 0
            async for event in request:
                if isinstance(event, AudioChunk):
                    samples += len(event.samples)
        assert request.whole().reason in SPOKEN
        return samples / request.sample_rate


@asynccontextmanager
async def serving(settings: EngineProcessSettings) -> AsyncIterator[Server]:
    """With the voice anna, once all engines are ready."""
    server = Server(settings)
    try:
        await server.fleet.start()
        await asyncio.gather(*(until_ready(one) for one in server.engines.values()))
        await server.fleet.add_voice("", "anna", recording())
        yield server
    finally:
        await server.fleet.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Of the tests that share a server."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def server(loop: asyncio.AbstractEventLoop, babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each test leaves it with an engine that speaks."""
    context = serving(settings_for(babble, tmp_path_factory.mktemp("voices")))
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))


@pytest.mark.process
async def test_listeners_hear_all_of_their_texts_while_the_engine_is_replaced(
    loop: asyncio.AbstractEventLoop, server: Server
) -> None:
    alone = await server.listen(LONG)
    old = server.engines[""]
    listening = [asyncio.ensure_future(server.listen(LONG)) for _ in range(4)]
    replacing = asyncio.ensure_future(server.replace())
    asked = 0
    while not replacing.done():  # others come all the time
        assert await server.listen() > 0
        asked += 1
    await replacing
    assert asked > 1
    assert [await one for one in listening] == [alone] * 4
    assert server.engines[""] is not old
    assert (old.process_id, old.ready) == (None, False)
    assert await server.listen(LONG) == alone


@pytest.mark.process
async def test_one_that_cannot_begin_leaves_the_old_one_as_it_was(
    loop: asyncio.AbstractEventLoop, server: Server, tmp_path: Path
) -> None:
    old = server.engines[""]
    (tmp_path / "empty").mkdir()
    with pytest.raises(VivavoceError, match="empty"):
        await server.replace(model=str(tmp_path / "empty"))
    assert server.engines[""] is old
    assert await server.listen() > 0


@pytest.mark.process
async def test_what_is_not_done_in_time_ends_with_a_reason(babble: Path, tmp_path: Path) -> None:
    settings = settings_for(babble, tmp_path)
    queue = settings.engine.model_copy(update={"slots": 1, "admission": AdmissionMode.QUEUE})
    async with serving(settings._replace(engine=queue)) as server:
        stream: SpeechStream = await server.engines[""].speak(order(LONG * 4))
        events = aiter(stream)
        await anext(events)
        waiting = asyncio.ensure_future(server.listen())
        await server.replace(drain_s=0.0)
        with pytest.raises(EngineStopped, match="another one has taken its place"):
            async for _ in events:
                pass
        assert await waiting > 0, "one that had not sounded is spoken by the new engine"
        assert stream.verdict is not None
        assert stream.verdict.error_code == "engine_stopped"
        assert await server.listen() > 0


@pytest.mark.process
async def test_where_two_do_not_fit_it_is_said_before_anything_begins(
    loop: asyncio.AbstractEventLoop, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: EngineClient, memory_gb: float | None) -> str:
        return "each takes all free memory of the GPU's 16.0 GB; model.memory_gb bounds it"

    assert await server.engines[""].room_beside(None) == "", "a tiny model on a CPU"
    old = server.engines[""]
    monkeypatch.setattr(EngineClient, "room_beside", full)
    with pytest.raises(OutOfMemory, match=r"two do not fit side by side \(each takes .*; make room for both, or send"):
        await server.replace()
    assert server.engines[""] is old
    listening = asyncio.ensure_future(server.listen(LONG))
    await asyncio.sleep(0)
    replacing = asyncio.ensure_future(server.replace(gap=True))
    while server.engines[""] is old:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineStopped, match="starting"):
        await server.listen()
    assert await listening > 0, "what runs is spoken to its end"
    await replacing
    assert await server.listen() > 0
    # With a gap, too, a model that cannot be loaded costs the time of two starts and not the server.
    with pytest.raises(CheckpointError):
        await server.replace(gap=True, variant="nothing-of-that-name", model=str(tmp_path))
    assert await server.listen() > 0


@pytest.mark.process
async def test_a_fleet_changes_one_after_the_other_also_where_two_do_not_fit(
    babble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: EngineClient, memory_gb: float | None) -> str:
        return "full"

    settings = settings_for(babble, tmp_path)
    settings = settings._replace(model=settings.model.model_copy(update={"engines": 2}))
    monkeypatch.setattr(EngineClient, "room_beside", full)
    async with serving(settings) as server:
        before = dict(server.engines)
        replacing = asyncio.ensure_future(server.replace())
        while not replacing.done():
            assert await server.listen() > 0, "another engine speaks meanwhile"
        await replacing
        assert server.engines.keys() == before.keys()
        assert not set(server.engines.values()) & set(before.values())
        assert all(one.process_id is None for one in before.values())
        assert await server.listen(LONG) > 0


@pytest.mark.process
async def test_an_engine_whose_code_is_of_another_version_is_not_started() -> None:
    worker = Path(__file__).parents[1] / "engine_process" / "odd_worker.py"
    client = EngineClient(EngineProcessSettings(), (sys.executable, str(worker), "other version"))
    with pytest.raises(EngineStopped, match="of another version than the server's; restart the server"):
        await client.start()
    await client.close()


def test_a_protocol_is_another_one_if_a_field_of_what_travels_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from vivavoce.engine_process import messages
    from vivavoce.frontend.speech import Recording, SpeechRequest
    from vivavoce.server.settings import EngineSection

    assert messages._protocol() == PROTOCOL
    for kind in (SpeechRequest, Recording, EngineSection, messages.Heard):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "__annotations__", {**kind.__annotations__, "more": "int"})
            assert messages._protocol() != PROTOCOL, kind


def test_two_engines_fit_if_both_are_bounded_and_there_is_room_for_both() -> None:
    assert missing_room(used=30, total=80, own=40, wanted=40) == ""
    assert missing_room(used=45, total=80, own=40, wanted=40) == (
        "of the device's 80.0 GB 45.0 are taken, and the new one may take 40.0"
    )
    assert "40.0 are taken" in missing_room(used=30, total=80, own=40, wanted=41), "it may take more than it has"
    for own, wanted in ((None, 40), (40, None)):
        assert "model.memory_gb bounds it" in missing_room(used=30, total=80, own=own, wanted=wanted)


def test_another_sample_rate_needs_a_restart() -> None:
    one, other = ModelInfo("old", "", 24_000, demo=False), ModelInfo("new", "", 22_050, demo=False)
    check_same_rate(one, one)
    with pytest.raises(InvalidRequest, match=r"model.model: new has audio of 22050 Hz, but old, .* 24000 Hz; restart"):
        check_same_rate(one, other)


@pytest.mark.process
async def test_lexicons_voices_and_log_change_in_a_running_engine_and_in_the_next_process(
    loop: asyncio.AbstractEventLoop, server: Server
) -> None:
    """The last one that uses the server: it has other voices and lexicons then."""
    settings, engine = server.settings, server.engines[""]
    assert (await engine.normalize(order("Ng."))).spoken == "Ng."
    with pytest.raises(VoiceNotFound):
        await engine.speak(order(voice="bert"))
    lexicons = Lexicons(Lexicon({"Ng": "Eng"}), {}, {})
    voices = settings.voices.model_copy(update={"default": "anna", "aliases": {"bert": "anna"}})
    await engine.reload(voices, settings.logging, lexicons)
    assert (await engine.normalize(order("Ng."))).spoken == "Eng."
    assert {one.name for one in await engine.voices("")} >= {"anna", "bert"}
    for voice in (None, "bert"):
        stream = await engine.speak(order(voice=voice))
        assert [event async for event in stream]
    assert engine._process is not None
    engine._process.kill()
    while engine.ready:
        await asyncio.sleep(0.01)
    await until_ready(engine)
    assert (await engine.normalize(order("Ng."))).spoken == "Eng."
    assert await server.listen() > 0


@dataclass
class Retired:
    """An old engine, or a new one; idle: its last request is over."""

    idle: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    ready: bool = True
    added_adapters: tuple[tuple[str, str], ...] = ()
    about: ModelInfo = field(default_factory=lambda: ModelInfo("odd", "nothing", 24_000, demo=True))
    process_id: int = 1

    async def start(self) -> None: ...

    async def room_beside(self, _: float | None) -> str:
        return ""

    async def until_idle(self) -> None:
        await self.idle.wait()

    async def close(self, _: str = "") -> None:
        self.closed.set()


async def replaced(monkeypatch: pytest.MonkeyPatch, old: Retired, drain_s: float) -> list[EngineProcessSettings]:
    """The settings of the engines that take the place of the old one."""
    made: list[EngineProcessSettings] = []

    def make(settings: EngineProcessSettings, _: str) -> dict[str, Retired]:
        made.append(settings)
        return {"": Retired()}

    monkeypatch.setattr(replacement, "make_engines", make)
    engines = {"": cast(EngineClient, old)}
    await Replacement(engines, drain_s).replace(EngineProcessSettings(), EngineProcessSettings())
    assert engines[""] is not old
    return made


async def test_an_old_engine_ends_when_its_last_request_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Retired()
    replacing = asyncio.ensure_future(replaced(monkeypatch, old, drain_s=1e6))
    while not replacing.done():
        await asyncio.sleep(0)
        assert old.closed.is_set() <= old.idle.is_set()
        old.idle.set()
    assert old.closed.is_set()


async def test_an_old_engine_that_does_not_get_idle_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Retired()
    await replaced(monkeypatch, old, drain_s=0.01)
    assert old.closed.is_set()


async def test_adapters_that_were_added_are_the_new_engine_s_too(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Retired(added_adapters=(("news", "/srv/news"),))
    old.idle.set()
    assert [one.adapters for one in await replaced(monkeypatch, old, 1.0)] == [old.added_adapters] * 2
