"""nginx and Envoy as deploy/ configures them, before servers whose speaker does what a test says."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from websockets.asyncio.client import connect

from tests.deploy.proxies import MISSING, Front, Upstream, proxy
from tests.grpc_service.calling import METHOD, audio, sft, spoken
from tests.server.fake_backend import FakeBackend, Gate, tone
from tests.server.http.websocket_serving import (
    END,
    LATE_S,
    FakeKeys,
    audio_of,
    next_reply,
    replies_until,
    send,
    start,
    text,
)
from vivavoce.errors import EngineStopped, OutOfMemory, Overloaded, VivavoceError
from vivavoce.frontend.speech import Recording
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import Listener, bind
from vivavoce.server.settings import ServerSection, ServerSettings
from vivavoce_dialects.table import DIALECTS
from vivavoce_grpc.server import start_grpc

pytestmark = pytest.mark.process

TEXT = "Nobody waits for the rest of it."
PCM = (tone(len(TEXT), 0) * 32_768).round().astype("<i2").tobytes()
MIB = 1 << 20
PROXIES = [
    pytest.param(name, marks=pytest.mark.skipif(name in MISSING, reason=MISSING.get(name, "")))
    for name in ("nginx", "envoy")
]


@dataclass
class Asked(FakeBackend):
    """Counts what it is asked for, refused requests too."""

    asked: int = 0

    async def speak(self, order: Any) -> Any:
        self.asked += 1
        return await super().speak(order)

    async def add_voice(self, *given: Any, **more: Any) -> Any:
        self.asked += 1
        return await super().add_voice(*given, **more)


@dataclass
class Fleet:
    """Three servers, and the proxy before them."""

    front: Front
    speakers: list[Asked]
    dispatchers: list[RequestDispatcher]
    client: httpx.AsyncClient
    gone: list[bytes] = field(default_factory=list)
    """What was asked of the server that drops every connection, if there is one in the place of the third."""

    async def speak(self, **more: Any) -> httpx.Response:
        body = {"input": TEXT, "response_format": "pcm", "voice": "anna"}
        return await self.client.post("/v1/audio/speech", json=body, **more)

    @property
    def spoken(self) -> list[int]:
        return [len(speaker.orders) for speaker in self.speakers]


@asynccontextmanager
async def fleet(
    name: str, folder: Path, make: Callable[[int], Asked] = lambda place: Asked(), *, drops: bool = False
) -> AsyncIterator[Fleet]:
    """make: the speaker of each; drops: the third is ready, and drops connections that ask for anything else."""
    async with AsyncExitStack() as stack:
        speakers, dispatchers, upstreams, gone = [make(place) for place in range(3)], [], [], []
        running: list[Listener] = []

        async def stop() -> None:
            await asyncio.gather(*(listener.stop() for listener in running))

        stack.push_async_callback(stop)
        for speaker in speakers:
            dispatcher = RequestDispatcher(speaker)
            settings = ServerSettings(server=ServerSection(grpc_port=0))
            keys: Any = FakeKeys(required=False)
            state = AppState(dispatcher, keys, settings, dialects=DIALECTS)
            listeners = [
                Listener(build(state), bind("127.0.0.1", 0, "port"), settings.server)
                for build in (build_app, build_legacy_app)
            ]
            for listener in listeners:
                await listener.start()
            running += listeners
            calls, port = await start_grpc(dispatcher, state.keys, settings.server, DIALECTS)
            stack.push_async_callback(calls.stop, None)
            dispatchers.append(dispatcher)
            upstreams.append(Upstream(listeners[0].port, listeners[1].port, port))
        if drops:

            async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await reader.readuntil(b"\r\n\r\n")
                if b" /health/ready " in head:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                else:
                    gone.append(head)
                writer.close()

            server = await asyncio.start_server(drop, "127.0.0.1", 0)
            stack.callback(server.close)
            upstreams[2] = Upstream(server.sockets[0].getsockname()[1])
        front = await stack.enter_async_context(proxy(name, folder, upstreams))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=front.url, timeout=LATE_S))
        yield Fleet(front, speakers, dispatchers, client, gone)


@pytest.mark.parametrize("name", PROXIES)
async def test_audio_goes_on_as_it_comes(name: str, tmp_path: Path) -> None:
    gate = Gate(1)
    body = {"input": TEXT, "response_format": "pcm", "voice": "anna"}
    async with fleet(name, tmp_path, lambda place: Asked(gate=gate)) as servers:
        async with servers.client.stream("POST", "/v1/audio/speech", json=body) as answer:
            pieces = answer.aiter_raw()
            heard = await anext(pieces)
            assert 0 < len(heard) < len(PCM)
            (stream,) = [stream for speaker in servers.speakers for stream in speaker.streams]
            assert stream.verdict is None, "it waits for the gate, with the first piece at its listener"
            gate.set()
            heard += b"".join([piece async for piece in pieces])
        assert heard == PCM
        # The verdict is found, whichever server is asked first; an unknown one is not.
        mine = f"/v1/audio/requests/{answer.headers['x-request-id']}"
        found = [(await servers.client.get(mine)).json()["finish_reason"] for _ in range(4)]
        assert found == ["stop"] * 4
        assert (await servers.client.get("/v1/audio/requests/req_none")).status_code == 404
        assert (await servers.client.get("/metrics")).status_code == 404


@pytest.mark.parametrize("name", PROXIES)
async def test_websockets_and_grpc_go_through(name: str, tmp_path: Path) -> None:
    async with fleet(name, tmp_path) as servers:
        async with connect(f"{servers.front.url.replace('http', 'ws')}/v1/audio/stream") as client:
            await send(client, start(voice="anna"), text(TEXT + " "))
            heard = [await next_reply(client)]
            while not audio_of(heard):  # before the text has ended
                heard.append(await next_reply(client))
            await send(client, text(TEXT), END)
            heard += await replies_until(client, "done")
        assert len(audio_of(heard)) == len(PCM) * 2 + 2 * 240
        async with grpc.aio.insecure_channel(f"127.0.0.1:{servers.front.grpc}") as channel:
            for call in [channel.unary_stream(METHOD)(sft(TEXT)) for _ in range(6)]:
                assert b"".join([audio(piece) async for piece in call]) == spoken(TEXT)
        assert sum(servers.spoken) == 7
        fields = {"tts_text": TEXT, "spk_id": "anna"}
        old = await servers.client.post(f"http://127.0.0.1:{servers.front.legacy}/inference_sft", data=fields)
        assert old.content == spoken(TEXT)


@pytest.mark.parametrize("name", PROXIES)
async def test_what_is_refused_is_asked_for_elsewhere_whole(name: str, tmp_path: Path) -> None:
    refusals: list[VivavoceError | None] = [Overloaded("engine: full"), EngineStopped("engine: it is started"), None]
    async with fleet(name, tmp_path, lambda place: Asked(refuses_with=refusals[place])) as servers:
        for _ in range(12):
            answer = await servers.speak()
            assert (answer.status_code, answer.content) == (200, PCM)
        assert servers.spoken == [0, 0, 12]
        assert sum(speaker.asked for speaker in servers.speakers) > 12
        # With a body that no memory of a connection holds: what comes after a refusal is the same.
        recording = bytes(range(256)) * (10 * MIB // 256)
        body = {"input": TEXT, "response_format": "pcm", "prompt_audio": base64.b64encode(recording).decode()}
        for _ in range(3):
            answer = await servers.client.post("/v1/audio/speech", json=body)
            assert answer.status_code == 200
        orders = [order.voice for order in servers.speakers[2].orders[12:]]
        assert orders == [Recording(recording)] * 3
        # All refuse: the client gets the last one's words, and when to come again.
        servers.speakers[2].refuses_with = Overloaded("engine: full", retry_after_s=7)
        servers.speakers[1].refuses_with = servers.speakers[0].refuses_with = servers.speakers[2].refuses_with
        answer = await servers.speak()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.json()["error"]["code"] == "overloaded"
        # What no server holds takes no server out.
        for speaker in servers.speakers:
            speaker.refuses_with = OutOfMemory("text: too long for the device; send a shorter one")
        assert [(await servers.speak()).status_code for _ in range(6)] == [503] * 6
        for speaker in servers.speakers:
            speaker.refuses_with = None
        assert [(await servers.speak()).status_code for _ in range(6)] == [200] * 6
        # A WebSocket is refused before it is one, so that another server can have it.
        servers.speakers[0].is_ready = servers.speakers[1].is_ready = False
        for _ in range(4):
            async with connect(f"{servers.front.url.replace('http', 'ws')}/v1/audio/stream") as client:
                await send(client, start(voice="anna"), text(TEXT), END)
                assert len(audio_of(await replies_until(client, "done"))) == len(PCM)


@pytest.mark.parametrize("name", PROXIES)
async def test_a_server_that_drains_keeps_its_streams_and_gets_no_more(name: str, tmp_path: Path) -> None:
    gate = Gate(1)
    body = {"input": TEXT, "response_format": "pcm", "voice": "anna"}
    async with fleet(name, tmp_path) as servers:
        for speaker in servers.speakers:
            speaker.gate = gate
        async with servers.client.stream("POST", "/v1/audio/speech", json=body) as answer:
            pieces = answer.aiter_raw()
            heard = await anext(pieces)
            place = servers.spoken.index(1)
            for speaker in servers.speakers:
                speaker.gate = None
            draining = asyncio.create_task(servers.dispatchers[place].drain(LATE_S))
            await asyncio.sleep(0)
            answers = [await servers.speak() for _ in range(9)]
            assert [one.status_code for one in answers] == [200] * 9
            assert servers.spoken[place] == 1
            for _ in range(4):
                async with connect(f"{servers.front.url.replace('http', 'ws')}/v1/audio/stream") as client:
                    await send(client, start(voice="anna"), text(TEXT), END)
                    assert len(audio_of(await replies_until(client, "done"))) == len(PCM)
            assert (await servers.client.get("/health/ready")).status_code == 200, "of another one"
            assert not draining.done()
            gate.set()
            heard += b"".join([piece async for piece in pieces])
        await draining
        assert heard == PCM


@pytest.mark.parametrize("name", PROXIES)
async def test_a_server_that_is_gone(name: str, tmp_path: Path) -> None:
    async with fleet(name, tmp_path, drops=True) as servers:
        answers = await asyncio.gather(*(servers.speak() for _ in range(12)))
        assert [(one.status_code, one.content) for one in answers] == [(200, PCM)] * 12
        assert servers.gone, "it was asked, and its requests were given to others"
        servers.gone.clear()
        # A voice may have been added before the connection broke: it is not added twice.
        form = {"files": {"file": ("a.wav", b"sound")}, "data": {"name": "me", "replace": "true"}}
        added = [await servers.client.post("/v1/audio/voices", **form) for _ in range(9)]
        asked = sum(speaker.asked for speaker in servers.speakers) - sum(servers.spoken)
        assert [one.status_code for one in added].count(201) == asked
        assert asked + len(servers.gone) == 9


@pytest.mark.parametrize("name", PROXIES)
async def test_a_voice_has_its_server(name: str, tmp_path: Path) -> None:
    async with fleet(name, tmp_path) as servers:
        for place in range(3):  # a header; nobody knows the voice of the body
            before = servers.spoken
            for _ in range(4):
                await servers.speak(headers={"x-voice": f"voice {place}"})
            grown = [after - old for after, old in zip(servers.spoken, before, strict=True)]
            assert sorted(grown) == [0, 0, 4]
        home = set()
        for voice in range(16):
            before = servers.spoken
            await servers.speak(headers={"x-voice": f"voice {voice}"})
            home.add([after - old for after, old in zip(servers.spoken, before, strict=True)].index(1))
        assert len(home) == 3
        before = servers.spoken
        play = {"input": TEXT, "voice": "anna", "response_format": "pcm"}
        for _ in range(3):
            assert (await servers.client.get("/v1/audio/speech", params=play)).content == PCM
        grown = [after - old for after, old in zip(servers.spoken, before, strict=True)]
        assert sorted(grown) == [0, 0, 3]
        before = servers.spoken
        for _ in range(3):
            path = "/v1/text-to-speech/anna/stream?output_format=pcm_24000"
            assert (await servers.client.post(path, content=json.dumps({"text": TEXT}))).content == PCM
        grown = [after - old for after, old in zip(servers.spoken, before, strict=True)]
        assert sorted(grown) == [0, 0, 3]


@pytest.mark.parametrize("name", PROXIES)
async def test_a_body_has_room_up_to_the_servers_limit(name: str, tmp_path: Path) -> None:
    async with fleet(name, tmp_path) as servers:
        recording = bytes(range(256)) * (15 * MIB // 256)
        form = {"files": {"file": ("a.wav", recording)}, "data": {"name": "me"}}
        assert (await servers.client.post("/v1/audio/voices", **form)).status_code == 201
        if name == "nginx":  # Envoy breaks the connection of a client that has not sent all
            too_large = bytes(32 * MIB + 1)
            assert (await servers.client.post("/v1/audio/speech", content=too_large)).status_code == 413
