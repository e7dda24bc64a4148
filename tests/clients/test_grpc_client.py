"""`vivavoce.clients.grpc`, as docs/grpc.md shows it, against a server in a thread."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.grpc_service.calling import Caller, calling, spoken
from tests.server.certificates import certified, needs_openssl
from tests.server.fake_backend import FakeBackend, Gate
from vivavoce.clients.grpc import SpeechClient
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.loopback import is_local
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key

MANUAL = (Path(__file__).parents[2] / "docs" / "grpc.md").read_text(encoding="utf-8")
KEY = new_key()


class Server:
    """A server in a thread with an event loop of its own."""

    def __init__(self, speaker: FakeBackend, keys: KeyRing | None = None, **settings: Any) -> None:
        self._speaker, self._keys, self._settings = speaker, keys, settings
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with calling(self._speaker, keys=self._keys, **self._settings) as self.caller:
            self._began.set()
            await self._stop.wait()

    caller: Caller

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._began.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.caller.port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(FakeBackend(stored={("", "calm"): VoiceSummary("calm", "built_in", True)})) as running:
        yield running


def test_the_manuals_programs(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)
    assert len(programs) == 2
    found: dict[str, bytes] = {}
    for program in programs:
        exec(program.replace("localhost:50000", server.address), found)
    samples = (tmp_path / "hello.wav").read_bytes().partition(b"data")[2][4:]
    assert samples == spoken("Hello there.", seed=1)
    assert found["pcm"] == spoken("This sentence is spoken ") + spoken("while the next one is written. ") + spoken(
        "Here it is."
    )


@pytest.mark.parametrize("text", [None, 5, b"Hello."])
def test_what_is_not_a_text_is_refused_at_once(server: Server, text: Any) -> None:
    with SpeechClient(server.address) as client, pytest.raises(TypeError, match=r"^text: .* is of type "):
        client.speak(text)


def test_an_error_of_the_pieces_is_raised_where_the_audio_is_read(server: Server) -> None:
    def breaking() -> Iterator[str]:
        yield "Hello."
        raise LookupError("no more words")

    with SpeechClient(server.address) as client:
        with pytest.raises(TypeError, match=r"^text: its piece 5 is of type int; "):
            list(client.speak(["Hello.", 5]))  # type: ignore[list-item]
        with pytest.raises(LookupError, match="no more words"):
            list(client.speak(breaking()))
        assert list(client.speak("Hello."))


def test_halves_of_a_character_are_joined_over_pieces_and_lone_ones_left_out(server: Server) -> None:
    with SpeechClient(server.address) as client:
        pieces = client.speak(["Hi \ud83d", "\ude00 you.", None, "\ude00A\ud83d", None, "B\ud83d"])
        heard = b"".join(pieces)
        assert heard == spoken("Hi ") + spoken("\U0001f600 you.") + spoken("A") + spoken("B")
        assert b"".join(client.speak("\ud83d\ude00 and \ude00.\ud83d")) == spoken("\U0001f600 and .")


def test_it_tells_what_was_spoken_when_and_how_it_ended(server: Server) -> None:
    with SpeechClient(server.address) as client:
        speech = client.speak("One. Two.", voice="calm", sampling={"top_k": 5})
        assert (speech.started.sample_rate, speech.done) == (24_000, None)
        assert b"".join(speech) == spoken("One. ") + spoken("Two.")
        assert [(one.segment, one.start_character, one.end_character) for one in speech.segments] == [
            (0, 0, 5),
            (1, 5, 9),
        ]
        assert (speech.done.finish_reason, speech.done.audio_seconds) == ("stop", 0.09)
        with pytest.raises(ValueError, match="voices"):
            client.speak("Hello.", voices="calm")
        with pytest.raises(grpc.RpcError) as caught:
            assert next(client.speak("Hello.", voice="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert server.caller.speaker.orders[0].sampling.top_k == 5


def test_text_is_read_while_it_is_spoken_and_stops_when_wished() -> None:
    gate, heard = Gate(1), threading.Event()
    with Server(FakeBackend(gate=gate)) as server, SpeechClient(server.address) as client:

        def written() -> Iterator[str]:
            yield "Once upon a time. "
            assert heard.wait(60)
            yield "Never heard."

        speech = client.speak(written())
        assert next(speech) == spoken("Once upon a time. ")[:4800]
        heard.set()
        speech.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            list(speech)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        (stream,) = server.caller.speaker.streams
        asyncio.run_coroutine_threadsafe(stream.cancelled.wait(), server.loop).result(60)


def test_voices_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, new_entry(KEY, "berta"))
    with Server(FakeBackend(), KeyRing(path)) as server:
        with SpeechClient(server.address, key=KEY) as client:
            assert client.add_voice("mine", b"RIFF", "Well.", description="me").transcript == "Well."
            assert [voice.name for voice in client.voices()] == ["anna", "mine"]
            assert b"".join(client.speak("Hello.", voice="mine")) == spoken("Hello.")
            client.remove_voice("mine")
            assert [voice.name for voice in client.voices()] == ["anna"]
        with SpeechClient(server.address) as stranger, pytest.raises(grpc.RpcError) as caught:
            stranger.voices()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@needs_openssl
def test_a_port_with_tls(tmp_path: Path) -> None:
    files = certified(tmp_path)
    credentials = grpc.ssl_channel_credentials(files["tls_certificate"].read_bytes())
    with (
        Server(FakeBackend(), **files) as server,
        SpeechClient(server.address, credentials=credentials) as client,
    ):
        assert b"".join(client.speak("Hello.")) == spoken("Hello.")


def test_it_needs_no_torch() -> None:
    check = "import sys, vivavoce.clients.grpc; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        *((one, True) for one in ("localhost:50051", "127.0.0.1", "http://127.0.0.2:8000/", "[::1]:1")),
        *((one, False) for one in ("tts.example.org:50051", "http://10.0.0.1", "localhost.example.org:1")),
    ],
)
def test_no_proxy_leads_to_this_machine(address: str, local: bool) -> None:
    assert is_local(address) is local
