"""Home Assistant's protocol, asked by the `wyoming` package; bare sockets where a client does what it should not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from tests.server.fake_backend import RATE, FakeBackend, Gate, Worded, tone
from vivavoce.errors import Overloaded
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.speech import FinishReason
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.listener import bind
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import AuthSection, ServerSection, ServerSettings
from vivavoce.server.settings_checks import contradictions
from vivavoce_dialects import wyoming

TEXT = "Hello there, all of you. How are you?"
LATE_S = 20.0


def spoken(text: str) -> bytes:
    """What the fake speaker makes of a text, as samples on the wire."""
    return to_int16(tone(len(text), 0)).astype("<i2").tobytes()


@dataclass(frozen=True)
class Home:
    """A server that answers."""

    port: int
    dispatcher: RequestDispatcher
    speaker: FakeBackend

    def client(self) -> AsyncTcpClient:
        return AsyncTcpClient("127.0.0.1", self.port, read_timeout=LATE_S)

    async def socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def speaks(self) -> None:
        """It goes on, whatever was done to it."""
        async with self.client() as client:
            assert await heard(client, Synthesize(TEXT)) == spoken(TEXT)

    def refused(self, code: str) -> float:
        value = self.dispatcher.metrics.registry.get_sample_value
        return value("vivavoce_refused_total", {"door": "wyoming", "code": code}) or 0.0


@asynccontextmanager
async def home(speaker: FakeBackend | None = None, keys: KeyRing | None = None, **server: Any) -> AsyncIterator[Home]:
    dispatcher = RequestDispatcher(speaker or FakeBackend())
    settings, listening = ServerSection(**server), bind("127.0.0.1", 0, "wyoming_port")
    async with wyoming.serving_wyoming(dispatcher, keys or KeyRing(), settings, listening) as port:
        yield Home(port, dispatcher, dispatcher.backend)  # type: ignore[arg-type]


async def until(client: AsyncTcpClient, wanted: type[Eventable]) -> list[Event]:
    """What comes up to an event of this type."""
    events: list[Event] = []
    while not events or not wanted.is_type(events[-1].type):
        event = await client.read_event()
        assert event is not None, f"no {wanted.__name__} after {events}"
        events.append(event)
    return events


def audio_of(events: list[Event]) -> bytes:
    return b"".join(AudioChunk.from_event(event).audio for event in events if AudioChunk.is_type(event.type))


async def heard(client: AsyncTcpClient, *sent: Eventable) -> bytes:
    for one in sent:
        await client.write_event(one.event())
    return audio_of(await until(client, AudioStop))


async def failure(client: AsyncTcpClient, *sent: Eventable) -> Error:
    """The error that a connection ends with."""
    for one in sent:
        await client.write_event(one.event())
    error = Error.from_event((await until(client, Error))[-1])
    assert await client.read_event() is None
    return error


async def test_it_says_what_it_speaks() -> None:
    speaker = FakeBackend(stored={("", "berta"): VoiceSummary("berta", "stored", True, "of my aunt")})
    async with home(speaker) as served, served.client() as client:
        await client.write_event(Ping(text="there?").event())
        assert Pong.from_event((await until(client, Pong))[-1]).text == "there?"
        await client.write_event(Describe().event())
        (program,) = Info.from_event((await until(client, Info))[-1]).tts
        assert (program.name, program.description, program.installed) == ("vivavoce", "fake", True)
        assert program.supports_synthesize_streaming
        assert [(voice.name, voice.description) for voice in program.voices] == [
            ("anna", "a tone"),
            ("berta", "of my aunt"),
        ]
        assert program.voices[0].languages == ["zh", "en", "ja", "ko"]
        assert await heard(client, Synthesize(TEXT)) == spoken(TEXT)  # on the same connection


@pytest.mark.parametrize("rate", [RATE, 22_050])
async def test_a_text_is_spoken_and_one_after_it(rate: int) -> None:
    async with home(FakeBackend(rate=rate)) as served, served.client() as client:
        for text in (TEXT, "Grüß Gott."):
            await client.write_event(Synthesize(text, SynthesizeVoice("anna")).event())
            events = await until(client, AudioStop)
            start = AudioStart.from_event(events[0])
            assert (start.rate, start.width, start.channels) == (rate, 2, 1)
            assert audio_of(events) == spoken(text)
            samples = len(spoken(text)) // 2
            assert AudioStop.from_event(events[-1]).timestamp == samples * 1000 // rate
        assert [order.voice for order in served.speaker.orders] == ["anna", "anna"]
        both = await heard(client, Synthesize("One."), Synthesize("Two!"))
        assert (both, audio_of(await until(client, AudioStop))) == (spoken("One."), spoken("Two!"))


async def test_a_text_is_spoken_while_it_comes() -> None:
    pieces = ("Hello there. ", "", "How are you? ", "Well, I hope.")
    async with home() as served, served.client() as client:
        await client.write_event(SynthesizeStart(SynthesizeVoice("anna")).event())
        first = spoken(pieces[0])
        await client.write_event(SynthesizeChunk(pieces[0]).event())
        got = audio_of(await until(client, AudioStart))
        while len(got) < len(first):
            got += audio_of(await until(client, AudioChunk))
        assert got == first  # with more to come
        for piece in pieces[1:]:
            await client.write_event(SynthesizeChunk(piece).event())
        await client.write_event(Synthesize("".join(pieces)).event())  # for servers that do not stream
        await client.write_event(SynthesizeStop().event())
        events = await until(client, SynthesizeStopped)
        assert AudioStop.is_type(events[-2].type)
        assert got + audio_of(events) == spoken("".join(pieces))
        assert [order.text for order in served.speaker.orders] == [None]
        assert await heard(client, Synthesize(TEXT)) == spoken(TEXT)


@pytest.mark.parametrize("last", [SynthesizeStop(), SynthesizeStart()])
async def test_a_text_without_chunks_is_that_of_synthesize(last: Eventable) -> None:
    async with home() as served, served.client() as client:
        words = "Only compat words."
        assert await heard(client, SynthesizeStart(), Synthesize(words), last, SynthesizeStop()) == spoken(words)
        await until(client, SynthesizeStopped)
        sent = (SynthesizeStart(), Synthesize("Both."), SynthesizeChunk("Both."), SynthesizeStop(), SynthesizeStop())
        if isinstance(last, SynthesizeStop):
            assert await heard(client, *sent) == spoken("Both.")


async def test_a_start_in_the_middle_of_a_text_ends_that_text() -> None:
    async with home() as served, served.client() as client:
        await client.write_event(SynthesizeStart().event())
        await client.write_event(SynthesizeChunk("One.").event())
        await client.write_event(SynthesizeStart().event())
        assert audio_of(await until(client, AudioStop)) == spoken("One.")
        assert await heard(client, SynthesizeChunk("Two!"), SynthesizeStop()) == spoken("Two!")


async def test_words_come_with_their_audio_if_they_are_asked_for() -> None:
    async with home(Worded()) as served, served.client() as client:
        await client.write_event(Event("synthesize", {"text": "Hi there. You!", "word_times": True}))
        events = await until(client, AudioStop)
        told = [event.data for event in events if event.type == "synthesize-words"]
        assert [(word["text"], word["start"], word["end"]) for one in told for word in one["words"]] == [
            ("Hi", 0.0, 0.02),
            ("there.", 0.03, 0.09),
            ("You!", 0.1, 0.14),
        ]
        assert [one["timestamp"] for one in told] == [0, 100]
        assert [event.type for event in events[:3]] == ["audio-start", "synthesize-words", "audio-chunk"]
        assert audio_of(events) == spoken("Hi there. You!")
        await client.write_event(Synthesize(TEXT).event())
        assert "synthesize-words" not in [event.type for event in await until(client, AudioStop)]
        await client.write_event(Event("synthesize", {"text": TEXT, "word_times": "yes"}))
        assert "word_times: 'yes' is neither" in Error.from_event((await until(client, Error))[-1]).text


async def test_a_voice_in_another_form_is_not_the_default_voice_without_a_word() -> None:
    async with home() as served:
        async with served.client() as client:
            await client.write_event(Event("synthesize", {"text": TEXT, "voice": {"id": "anna"}}))
            error = await failure(client)
        assert (error.code, "voice: 'id' names no voice" in error.text) == ("invalid_request", True)
        async with served.client() as client:  # a language alone is Home Assistant's default voice
            await client.write_event(Event("synthesize", {"text": TEXT, "voice": {"language": "en"}}))
            assert audio_of(await until(client, AudioStop)) == spoken(TEXT)


@pytest.mark.parametrize("voice", ["anna", {"name": "anna"}, {"speaker": "anna"}])
async def test_a_voice_is_named_in_any_way(voice: object) -> None:
    async with home() as served, served.client() as client:
        await client.write_event(Event("synthesize", {"text": TEXT, "voice": voice}))
        assert audio_of(await until(client, AudioStop)) == spoken(TEXT)
        assert [order.voice for order in served.speaker.orders] == ["anna"]


async def test_mistakes_are_told_and_end_the_connection() -> None:
    async with home() as served:
        for sent, code, words in (
            ((Synthesize(TEXT, SynthesizeVoice("nobody")),), "voice_not_found", "'nobody' is not registered"),
            ((SynthesizeStart(), SynthesizeChunk("x" * 15_000), SynthesizeChunk("y" * 6_000)), "invalid_text", "20000"),
            ((SynthesizeStart(), SynthesizeChunk("a\x00")), "invalid_text", "U+0000"),
            ((SynthesizeChunk(TEXT),), "invalid_request", "synthesize-chunk: no text was begun"),
            ((SynthesizeStop(),), "invalid_request", "synthesize-stop: no text was begun"),
        ):
            async with served.client() as client:
                error = await failure(client, *sent)
            assert error.code == code
            assert words in error.text
        await served.speaks()


async def test_limits_hold_and_are_told() -> None:
    async with (
        home(FakeBackend(refuses_with=Overloaded("streams: too many", 2.0))) as served,
        served.client() as client,
    ):
        assert (await failure(client, Synthesize(TEXT))).code == "overloaded"
        assert served.refused("overloaded") == 1
        await served.dispatcher.drain(0.0)
        async with served.client() as another:
            assert (await failure(another, Describe())).code == "engine_stopped"


async def test_a_failure_in_the_middle_is_no_end_of_audio() -> None:
    async with home(FakeBackend(fails_after=2)) as served, served.client() as client:
        await client.write_event(Synthesize(TEXT).event())
        events = await until(client, Error)
        assert not [event for event in events if AudioStop.is_type(event.type)]
        assert spoken(TEXT).startswith(audio_of(events))


@pytest.mark.parametrize("sent", [(Synthesize(TEXT),), (SynthesizeStart(), SynthesizeChunk(TEXT))])
async def test_a_client_that_leaves_frees_its_place(sent: tuple[Eventable, ...]) -> None:
    async with home(FakeBackend(gate=Gate(1))) as served:
        async with served.client() as client:
            for one in sent:
                await client.write_event(one.event())
            await until(client, AudioChunk)
        (stream,) = served.speaker.streams
        await asyncio.wait_for(stream.cancelled.wait(), LATE_S)
        assert served.dispatcher.active == 0


async def test_a_listener_that_does_not_read_is_ended() -> None:
    records: list[Any] = []
    async with home(listener_timeout_s=0.3) as served:
        served.dispatcher.request_log.observers.append(records.append)
        _, writer = await served.socket()
        event = {"type": "synthesize", "data": {"text": "Never heard to its end, " * 800}}
        writer.write(json.dumps(event).encode() + b"\n")
        while not served.speaker.streams:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        assert [(one.reason, one.error_code) for one in records] == [(FinishReason.ERROR, "listener_stalled")]
        writer.close()


MALFORMED = {
    "HTTP": b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\n\r\n",
    "no object": b"[1]\n",
    "no end of a line": b"{" + b" " * 200_000,
    "nested": b"[" * 60_000 + b"\n",
    "long data": b'{"type": "describe", "data_length": 9000000}\n',
    "negative": b'{"type": "describe", "payload_length": -1}\n',
    "a size in words": b'{"type": "describe", "data_length": "many"}\n',
    "data of no kind": b'{"type": "synthesize", "data": [7]}\n',
    "data that is no object": b'{"type": "describe", "data_length": 2}\n[]',
    "no type": b'{"data": {"text": "Hello."}}\n',
    "a type that is no text": b'{"type": 5}\n',
    "no text": b'{"type": "synthesize", "data": {"text": 7}}\n',
    "a voice in a list": b'{"type": "synthesize", "data": {"text": "a", "voice": ["anna"]}}\n',
    "a voice of no name": b'{"type": "synthesize", "data": {"text": "a", "voice": {"name": []}}}\n',
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
async def test_what_is_no_event_ends_its_connection(sent: bytes) -> None:
    async with home() as served:
        reader, writer = await served.socket()
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), LATE_S)
        assert b'"code": "invalid_request"' in answer
        assert served.refused("invalid_request") == 1
        writer.close()
        await served.speaks()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b'{"data": {"text": "Hello."}}\n', "type: is missing; each event needs one"),
        (b'{"type": 5}\n', "type: 5 is not a text; each event needs one"),
        (b'{"type": "synthesize", "data": [1]}\n', "data: [1] is not a JSON object"),
        (b'{"type": "synthesize", "data_length": 3}\n"a"', "data: 'a' is not a JSON object"),
        (b"[1]\n", "event: [1] is not a JSON object"),
        (b"{\n", "event: is not JSON"),
    ],
)
async def test_an_error_names_what_is_wrong_with_an_event(sent: bytes, words: str) -> None:
    async with home() as served:
        reader, writer = await served.socket()
        writer.write(sent)
        assert words in (await asyncio.wait_for(reader.read(), LATE_S)).decode()
        writer.close()


async def test_what_means_nothing_here_is_left() -> None:
    async with home() as served, served.client() as client:
        await client.write_event(Event("transcribe", {"text": "x"}, b"payload"))
        assert await heard(client, Synthesize(TEXT)) == spoken(TEXT)


async def test_who_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wyoming, "TEXT_PAUSE_S", 0.2)
    async with home(keep_alive_s=1) as served:
        silent, drips, hangs = [await served.socket() for _ in range(3)]
        drips[1].write(b'{"type":')
        hangs[1].write(b'{"type": "describe", "data_length": 7}\n{')
        for reader, writer in (silent, drips, hangs):
            assert await asyncio.wait_for(reader.read(), LATE_S) == b""
            writer.close()
        async with served.client() as client:
            assert "send synthesize-stop at its end" in (await failure(client, SynthesizeStart())).text


async def test_a_crowd_takes_no_more_places_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with home(FakeBackend(gate=Gate(1)), max_connections=2) as served, served.client() as speaking:
        await speaking.write_event(Synthesize(TEXT).event())
        await until(speaking, AudioChunk)
        idle, refused = [await served.socket() for _ in range(2)]
        with pytest.raises(ConnectionError):
            (await asyncio.wait_for(refused[0].read(), LATE_S)) or _lost()
        monkeypatch.setattr(wyoming, "PATIENCE_S", 0.0)
        async with served.client() as another:
            await another.write_event(Describe().event())
            assert await until(another, Info)
        with pytest.raises(ConnectionError):
            (await asyncio.wait_for(idle[0].read(), LATE_S)) or _lost()
        assert served.dispatcher.active == 1  # who is spoken to keeps its place
        for _, writer in (idle, refused):
            writer.close()


def _lost() -> None:
    raise ConnectionResetError


async def test_all_speak_as_the_key_that_is_named(tmp_path: Path) -> None:
    path, voice = tmp_path / "keys.toml", VoiceSummary("berta", "stored", False)
    add_key(path, new_entry(new_key(), "home", characters_per_minute=10))
    speaker = FakeBackend(stored={("home", "berta"): voice})
    async with home(speaker, KeyRing(path), wyoming_key="home") as served, served.client() as client:
        await client.write_event(Describe().event())
        (program,) = Info.from_event((await until(client, Info))[-1]).tts
        assert [one.name for one in program.voices] == ["anna", "berta"]
        assert await heard(client, Synthesize("Hello.")) == spoken("Hello.")
        assert (await failure(client, Synthesize("Hello again."))).code in ("overloaded", "invalid_request")
    async with home(keys=KeyRing(path), wyoming_key="nobody") as served, served.client() as client:
        assert (await failure(client, Synthesize(TEXT))).code == "unauthorized"


@pytest.mark.parametrize(("key", "keys"), [(None, Path("keys.toml")), ("home", None)])
def test_keys_need_a_name_for_this_port(key: str | None, keys: Path | None) -> None:
    server = ServerSection(wyoming_port=10_300, wyoming_key=key)
    (problem,) = contradictions(ServerSettings(server=server, auth=AuthSection(keys_file=keys)))
    assert problem.startswith("server.wyoming_")
    assert "auth.keys_file" in problem or "server.wyoming_key" in problem


async def test_it_is_found_in_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    zeroconf = pytest.importorskip("zeroconf.asyncio", reason="needs the extra wyoming")
    told: list[Any] = []

    async def register(_: object, info: Any) -> None:
        told.append(info)

    monkeypatch.setattr(zeroconf.AsyncZeroconf, "async_register_service", register)
    monkeypatch.setattr(wyoming, "is_loopback", lambda _: False)
    async with home(host="127.0.0.1") as served:
        (info,) = told
        assert (info.type, info.port) == ("_wyoming._tcp.local.", served.port)
        assert info.parsed_addresses() == ["127.0.0.1"]
