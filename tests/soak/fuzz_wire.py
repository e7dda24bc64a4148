"""Broken requests over HTTP, WebSockets and gRPC, to doors on real ports around a speaker that needs no engine."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.grpc_service import calling
from tests.grpc_service.calling import METHOD, SPEECH, sft
from tests.server.fake_backend import FakeBackend
from tests.server.http.serving import make_state
from tests.soak.bare_http import FORM, asked, form, request
from tests.soak.mutations import STRINGS, altered, mutated, some, value
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.http.listener import Listener, bind
from vivavoce.server.settings import ServerSection, ServerSettings
from vivavoce_grpc.server import start_grpc

GOOD = {"input": "Hello there.", "voice": "anna", "response_format": "pcm", "seed": 7, "sampling": {"top_p": 0.8}}
_PIECES = rb"""{|}|"|\ud800|\u0000|NaN|-Infinity|1e999|--x|; name="|content-length: 5|transfer-encoding: chunked|
filename*=utf-8''%00|expect: 100-continue|upgrade: websocket|content-disposition: form-data"""
WORDS = (*_PIECES.split(b"|"), b"[" * 500, b"9" * 5000, b"\r\n", b"\0", b"--x--\r\n", b"\xff\xfe", b"\xc3(")
KINDS = ("application/json", FORM, "application/x-www-form-urlencoded", "text/plain", "multipart/form-data", "\x80")
DIALECTS: dict[str, list[dict[str, Any]]] = {
    "/v1/audio/stream": [{"type": "start", "voice": "anna"}, {"type": "text", "text": "Hello."}]
    + [{"type": kind} for kind in ("flush", "ping", "end", "cancel")],
    "/v1/text-to-speech/anna/stream-input?output_format=pcm_24000": [
        *({"text": " ", "voice_settings": {"speed": 1.1}}, {"text": "Hello ", "flush": True}, {"text": ""})
    ],
    "/api-ws/v1/inference": [
        {
            "header": {"action": "run-task", "task_id": "a", "streaming": "duplex"},
            "payload": {"parameters": {"voice": "anna", "volume": 60, "hot_fix": {"replace": [{"SQL": "sequel"}]}}},
        },
        {"header": {"action": "continue-task", "task_id": "a"}, "payload": {"input": {"text": "Hello."}}},
        {"header": {"action": "finish-task", "task_id": "a"}, "payload": {"input": {}}},
    ],
}
CALLS = (
    (METHOD, [sft("Hello there.")]),
    (METHOD, [sft("é" * 99)]),
    (
        SPEECH + "Speak",
        [calling.asked(start={"voice": "anna", "seed": 7, "sampling": {"top_p": 0.8}, "text": "Hello."})],
    ),
    (
        SPEECH + "Speak",
        [calling.asked(start={"recording": {"content": b"RIFF"}}), calling.asked(text="Hi. "), calling.asked(flush={})]
        * 2,
    ),
    (SPEECH + "ListVoices", [b""]),
    (SPEECH + "AddVoice", [calling.asked("AddVoiceRequest", name="new", recording={"content": b"RIFF"}, replace=True)]),
    (SPEECH + "RemoveVoice", [calling.asked("RemoveVoiceRequest", name="new", public=True)]),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", [b"\x22\x12vivavoce.v1.Speech", b"\x3a\x01*"]),
    ("/grpc.health.v1.Health/Check", [b"\x0a\x13cosyvoice.CosyVoice"]),
)
"""Methods of the gRPC port, with messages as they should be."""
QUIET_S = 0.05
"""For this long nothing more comes from a WebSocket: it has said all."""
TELLS_OTHERWISE = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}


class Wrong(Exception):
    """A door did what no request may bring it to."""


class Doors:
    """What is attacked."""

    def __init__(
        self, speaker: FakeBackend, port: int, routes: list[tuple[int, str, str]], fields: list[str], grpc_port: int
    ) -> None:
        self._speaker, self._port, self._routes, self._fields = speaker, port, routes, fields
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}")

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()

    def _forget(self) -> None:
        """The stand-in remembers everything, for its tests."""
        self._speaker.orders.clear()
        self._speaker.streams.clear()
        while len(self._speaker.stored) > 20:
            self._speaker.stored.pop(next(iter(self._speaker.stored)))

    async def http(self, chance: random.Random) -> str:
        """One request: of JSON or a form to some route, with some of its bytes changed."""
        self._forget()
        port, method, path = chance.choice(self._routes)
        if chance.random() < 0.1:
            method = chance.choice(("GET", "PUT", "OPTIONS", "BREW"))
        if "{" in path or chance.random() < 0.1:
            start = path.partition("{")[0]
            path = (
                start
                + quote(chance.choice(STRINGS), safe="/", errors="replace")
                + chance.choice(("", "?public=1", "?%ff"))
            )
        kind, body = self._body(chance)
        body = body[: 60_000 if method == "POST" else 1_000]  # more that nobody reads may cost the answer
        content = request(path, body, method=method, kind=kind)
        head_is_whole = chance.random() < 0.8
        if not head_is_whole:
            content = mutated(chance, content, WORDS)
        async with asked(port, content) as (reader, writer):
            if not head_is_whole:
                writer.write_eof()
            answer = b""
            with suppress(ConnectionError):
                answer = await reader.read()
        return _judged(answer, head_is_whole, has_body=method != "HEAD")

    def _body(self, chance: random.Random) -> tuple[str, bytes]:
        kind = chance.choices(KINDS, (8, 6, 2, 1, 1, 1))[0]
        if kind == FORM:
            fields = {name.replace('"', ""): str(value(chance)) for name in some(chance, self._fields)}
            texts = {name: text.encode(errors="replace").decode() for name, text in fields.items() if name.isascii()}
            body = form(texts, chance.choice(("file", "prompt_wav", "prompt_audio", "name")), chance.randbytes(300))
        elif chance.random() < 0.5:
            body = json.dumps(altered(chance, GOOD, self._fields)).encode()
        else:
            body = json.dumps({name: value(chance, self._fields) for name in some(chance, self._fields)}).encode()
        return kind, mutated(chance, body, WORDS) if chance.random() < 0.6 else body

    async def websocket(self, chance: random.Random) -> str:
        """One connection: messages of a dialect, some of them changed, some bytes that are no frames."""
        self._forget()
        path, messages = chance.choice([*DIALECTS.items()])
        with suppress(WebSocketException, ConnectionError):
            async with connect(f"ws://127.0.0.1:{self._port}{path}", close_timeout=2, compression=None) as client:
                await self._talk(client, chance, messages)
            return f"closed with {client.close_code}"
        return "refused"

    async def _talk(self, client: Any, chance: random.Random, messages: list[dict[str, Any]]) -> None:
        for _ in range(chance.choice((1, 2, 3, 6))):
            text = json.dumps(chance.choice(messages)).encode()
            kind = chance.random()
            if kind < 0.4:
                text = json.dumps(altered(chance, json.loads(text), self._fields)).encode()
            elif kind < 0.6:
                text = mutated(chance, text, WORDS)
            if kind > 0.97:
                client.transport.write(chance.randbytes(chance.randrange(1, 200)))
            elif chance.random() < 0.05:
                await client.send(text)
            else:
                await client.send(text.decode(errors="replace"))
        with suppress(TimeoutError, asyncio.TimeoutError, WebSocketException):
            while True:
                reply = await asyncio.wait_for(client.recv(), QUIET_S)
                if isinstance(reply, str) and "internal_error" in reply:
                    raise Wrong(reply[:300])
        if client.close_code == 1011:
            raise Wrong(f"closed with 1011: {client.close_reason}")

    async def grpc(self, chance: random.Random) -> str:
        """One call with messages and metadata that were changed."""
        self._forget()
        method, good = chance.choice(CALLS)
        words = (b"\x0a\xff\xff\xff\x7f", b"\x12\0", *WORDS)
        sent = [one if chance.random() < 0.3 else mutated(chance, one, words) for one in good]
        names = [chance.choice(("x-request-id", "authorization", "traceparent", "x", "a-bin")) for _ in range(3)]
        shown = [chance.choice(("", "00-1-2-3", "Bearer x", "~" * 3000, mutated(chance, b"abc").hex())) for _ in names]
        metadata = [
            (name, text.encode() if name.endswith("-bin") else text) for name, text in zip(names, shown, strict=True)
        ]
        call = self._channel.stream_stream(method)(metadata=metadata, timeout=chance.choice((None, None, 5.0, 0.01)))
        with suppress(grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):  # it may end meanwhile
            for one in sent:
                await call.write(one)
            await call.done_writing()
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        code = await call.code()
        if code in TELLS_OTHERWISE and await call.details() != "Internal error from Core":  # the client's own
            raise Wrong(f"{code.name}: {await call.details()}")
        return str(code.name)


def _judged(answer: bytes, head_is_whole: bool, has_body: bool) -> str:
    """The status; raises what is not a clear answer."""
    if not answer and not head_is_whole:
        return "none"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(maxsplit=2)[1]) if head else 0
    if not 200 <= status < 500 and status != 503 and (head_is_whole or status not in (101, 501, 505)):
        raise Wrong(f"status {status}: {answer[:300]!r}")
    if status >= 400 and has_body and head_is_whole:
        message = json.loads(body)["error"]["message"]
        if not message or "\n" in message or "Traceback" in message or len(message) > 2_000:
            raise Wrong(f"status {status} says {message[:500]!r}")
    return str(status)


@asynccontextmanager
async def doors() -> AsyncIterator[Doors]:
    """Both HTTP ports and gRPC in the running event loop."""
    server = ServerSection(request_timeout_s=1.0, listener_timeout_s=5.0)
    speaker = FakeBackend()
    state = make_state(speaker, ServerSettings(server=server))
    async with AsyncExitStack() as stack:
        ports, routes, fields = list[int](), list[tuple[int, str, str]](), set[str]()
        for app in (build_app(state), build_legacy_app(state)):
            listener = Listener(app, bind("127.0.0.1", 0, "port"), server)
            await listener.start()
            stack.push_async_callback(listener.stop)
            ports.append(listener.port)
            fields |= set(re.findall(r'"(\w+)": \{', json.dumps(app.openapi())))
            described = [(path, method.upper()) for path, found in app.openapi()["paths"].items() for method in found]
            routes += [(listener.port, method, path) for path, method in described]
        routes += [(ports[1], "GET", path) for _, _, path in routes if path.startswith("/inference")]
        running, port = await start_grpc(
            state.dispatcher, state.keys, server.model_copy(update={"grpc_port": 0, "max_conc": 64}), state.dialects
        )
        stack.push_async_callback(running.stop, None)
        found = Doors(speaker, ports[0], routes, sorted(fields), port)
        stack.push_async_callback(found.close)
        yield found
