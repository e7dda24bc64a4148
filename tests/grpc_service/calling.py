"""A gRPC server around a fake speaker, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.server.fake_backend import FakeBackend, tone
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.keys import KeyRing
from vivavoce.server.request_log import RequestRecord
from vivavoce.server.settings import ServerSection
from vivavoce_dialects.table import DIALECTS
from vivavoce_grpc.protos import message
from vivavoce_grpc.server import start_grpc

METHOD = "/cosyvoice.CosyVoice/Inference"
SPEECH = "/vivavoce.v1.Speech/"
LATE_S = 120.0
"""Nothing here takes so long; it ends a test that would hang."""
TEXT = "Hello there, all of you."


def spoken(text: str, seed: int = 0) -> bytes:
    """What the fake speaker makes of a text, as samples on the wire."""
    return to_int16(tone(len(text), seed)).astype("<i2").tobytes()


def request(kind: str, **fields: str | bytes) -> bytes:
    """A serialised Request with that payload."""
    made: Any = message("cosyvoice.Request")()
    payload = getattr(made, kind)
    payload.SetInParent()
    for name, value in fields.items():
        setattr(payload, name, value)
    return made.SerializeToString()


def sft(text: str) -> bytes:
    return request("sft_request", spk_id="anna", tts_text=text)


def audio(response: bytes) -> bytes:
    made: Any = message("cosyvoice.Response")()
    made.ParseFromString(response)
    return made.tts_audio


def asked(name: str = "SpeakRequest", /, **fields: Any) -> bytes:
    """A serialised message of vivavoce.v1."""
    return message(f"vivavoce.v1.{name}")(**fields).SerializeToString()


def read(name: str, content: bytes) -> Any:
    made: Any = message(f"vivavoce.v1.{name}")()
    made.ParseFromString(content)
    return made


async def rest(call: Any) -> list[Any]:
    """What a call of Speak is still answered."""
    replies = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        replies.append(read("SpeakResponse", answer))
    return replies


def kinds(replies: Sequence[Any]) -> list[str]:
    """What answers of Speak hold, audio pieces in a row once."""
    found = [reply.WhichOneof("message") for reply in replies]
    return [kind for place, kind in enumerate(found) if kind != "audio" or found[place - 1] != "audio"]


def heard(replies: Sequence[Any]) -> bytes:
    return b"".join(reply.audio.audio for reply in replies)


def pairs(metadata: Any) -> dict[str, str]:
    """Metadata as gRPC's releases give it, each in its own class."""
    return {key: value for key, value in metadata}  # noqa: C416


@dataclass(frozen=True)
class Caller:
    """A client's channel, and the server that it leads to."""

    channel: grpc.aio.Channel
    server: grpc.aio.Server
    port: int
    dispatcher: RequestDispatcher
    speaker: FakeBackend

    def call(self, content: bytes, **metadata: str) -> Any:
        pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return self.channel.unary_stream(METHOD)(content, metadata=pairs)

    async def hear(self, content: bytes, **metadata: str) -> list[bytes]:
        """The audio of each response; raises as the client does."""
        return [audio(response) async for response in self.call(content, **metadata)]

    async def refused(self, content: bytes, **metadata: str) -> tuple[grpc.StatusCode, str, dict[str, str]]:
        """Status, message and trailing metadata of a call that fails."""
        call = self.call(content, **metadata)
        code, details = await call.code(), await call.details()
        assert code is not grpc.StatusCode.OK
        return code, details, pairs(await call.trailing_metadata())

    def speak(self, **metadata: str) -> Any:
        """A call of Speak, to write to and to read from."""
        sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return self.channel.stream_stream(SPEECH + "Speak")(metadata=sent)

    async def answers(self, *requests: bytes, **metadata: str) -> list[Any]:
        """All answers to these; raises as the client does."""
        call = self.speak(**metadata)
        for request in requests:
            await call.write(request)
        await call.done_writing()
        return await rest(call)

    async def ask(self, method: str, answer: str, content: bytes, **metadata: str) -> Any:
        """The one answer of another method."""
        sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return read(answer, await self.channel.unary_unary(SPEECH + method)(content, metadata=sent))


async def failing(call: Awaitable[Any]) -> tuple[str, str, dict[str, str]]:
    """Status, message and trailing metadata of a call that fails, if it does soon."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, LATE_S)
    error = caught.value
    return error.code().name, error.details() or "", pairs(error.trailing_metadata())


@asynccontextmanager
async def calling(
    speaker: FakeBackend | None = None,
    *,
    keys: KeyRing | None = None,
    observers: Sequence[Callable[[RequestRecord], None]] = (),
    connect: Callable[[str], grpc.aio.Channel] = grpc.aio.insecure_channel,
    **server: Any,
) -> AsyncIterator[Caller]:
    """A caller of a server with this speaker and these settings."""
    speaker = speaker or FakeBackend()
    dispatcher = RequestDispatcher(speaker, flow_steps="official")
    dispatcher.request_log.observers += observers
    running, port = await start_grpc(dispatcher, keys or KeyRing(), ServerSection(grpc_port=0, **server), DIALECTS)
    try:
        async with connect(f"127.0.0.1:{port}") as channel:
            yield Caller(channel, running, port, dispatcher, speaker)
    finally:
        await running.stop(None)
