"""A gRPC server around a fake speaker, and a client whose messages are read from the .proto file alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.entrypoints.fake_speaker import FakeSpeaker, tone
from vivavoce.entrypoints.grpc import server as server_module
from vivavoce.entrypoints.grpc.server import file_descriptor, message_classes, start_grpc
from vivavoce.service.audio.samples import to_int16
from vivavoce.service.operations.dispatcher import RequestDispatcher
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.request_log import RequestLog, RequestRecord
from vivavoce.service.operations.settings import ServerSection

METHOD = "/cosyvoice.CosyVoice/Inference"
PROTO = Path(server_module.__file__).with_name("cosyvoice.proto")
TEXT = "Hello there, all of you."


def spoken(text: str) -> bytes:
    """What the fake speaker makes of a text, as samples on the wire."""
    return to_int16(tone(len(text), 0)).astype("<i2").tobytes()


def described() -> FileDescriptorProto:
    """What the .proto file says; its fields are numbered from 1."""
    text = re.sub(r"//.*", "", PROTO.read_text(encoding="utf-8"))
    messages: dict[str, list[str]] = {}
    oneofs: dict[str, str] = {}
    for line in re.findall(r"[^;{}]*[;{}]", text):
        words = line.strip("\n ;{").split()
        if words[:1] == ["message"]:
            messages[words[1]] = []
        elif words[:1] == ["oneof"]:
            oneofs[list(messages)[-1]] = words[1]
        elif len(words) == 4 and words[2] == "=":
            fields = messages[list(messages)[-1]]
            fields.append(f"{words[0]} {words[1]}")
            assert int(words[3]) == len(fields)
    return file_descriptor(PROTO.name, "cosyvoice", {name: ", ".join(f) for name, f in messages.items()}, oneofs)


MESSAGES = message_classes(described())


def request(kind: str, **fields: str | bytes) -> bytes:
    """A serialised Request with that payload."""
    message: Any = MESSAGES["Request"]()
    payload = getattr(message, kind)
    payload.SetInParent()
    for name, value in fields.items():
        setattr(payload, name, value)
    return message.SerializeToString()


def sft(text: str) -> bytes:
    return request("sft_request", spk_id="anna", tts_text=text)


def audio(response: bytes) -> bytes:
    message: Any = MESSAGES["Response"]()
    message.ParseFromString(response)
    return message.tts_audio


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
    speaker: FakeSpeaker

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


@asynccontextmanager
async def calling(
    speaker: FakeSpeaker | None = None,
    *,
    keys: KeyRing | None = None,
    observers: Sequence[Callable[[RequestRecord], None]] = (),
    connect: Callable[[str], grpc.aio.Channel] = grpc.aio.insecure_channel,
    **server: Any,
) -> AsyncIterator[Caller]:
    """A caller of a server with this speaker and these settings."""
    speaker = speaker or FakeSpeaker()
    dispatcher = RequestDispatcher(speaker, request_log=RequestLog(observers=[*observers]))
    running, port = await start_grpc(dispatcher, keys or KeyRing(), ServerSection(grpc_port=0, **server))
    try:
        async with connect(f"127.0.0.1:{port}") as channel:
            yield Caller(channel, running, port, dispatcher, speaker)
    finally:
        await running.stop(None)
