"""A gRPC server around a fake speaker, and a client whose messages are read from the .proto file alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.doors.fake_speaker import FakeSpeaker, tone
from vivavoce.doors.grpc import server as server_module
from vivavoce.doors.grpc.server import GrpcServer, start_grpc
from vivavoce.doors.grpc.wire import Field, file_descriptor, message_classes
from vivavoce.doors.http.desk import Desk
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSection, ServerSettings

T = TypeVar("T")
METHOD = "/cosyvoice.CosyVoice/Inference"
PROTO = Path(server_module.__file__).with_name("cosyvoice.proto")


TEXT = "Hello there, all of you."


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def spoken(text: str) -> bytes:
    """What the fake speaker makes of a text, as samples on the wire."""
    return to_int16(tone(len(text), 0)).astype("<i2").tobytes()


def described() -> FileDescriptorProto:
    """What the .proto file says."""
    text = re.sub(r"//.*", "", PROTO.read_text(encoding="utf-8"))
    messages: dict[str, list[Field]] = {}
    oneof = None
    for line in re.findall(r"[^;{}]*[;{}]", text):
        words = line.strip("\n ;{").split()
        if line.strip() == "}":
            oneof = None
        elif words[:1] == ["message"]:
            messages[words[1]] = []
        elif words[:1] == ["oneof"]:
            oneof = words[1]
        elif len(words) == 4 and words[2] == "=":
            messages[list(messages)[-1]].append(Field(words[1], int(words[3]), words[0], oneof))
    return file_descriptor(PROTO.name, "cosyvoice", messages)


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


@dataclass
class Office:
    """A fake speaker behind a gRPC server."""

    speaker: FakeSpeaker = field(default_factory=FakeSpeaker)
    keys: KeyRing = field(default_factory=KeyRing.none)
    max_conc: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    meters: Meters = field(default_factory=Meters)

    def desk(self) -> Desk:
        reception = Reception(self.speaker, ledger=self.ledger, meters=self.meters, allowances=Allowances())
        return Desk(reception, self.keys, ServerSettings(server=ServerSection(**self.options)))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Desk, GrpcServer]]:
        desk = self.desk()
        server = await start_grpc(desk, "127.0.0.1", 0, self.max_conc)
        try:
            yield desk, server
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def called(self, options: Sequence[tuple[str, Any]] = ()) -> AsyncIterator[Caller]:
        async with (
            self.open() as (desk, server),
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as channel,
        ):
            yield Caller(channel, desk)


@dataclass(frozen=True)
class Caller:
    """A client's channel; desk: of the server that it leads to."""

    channel: grpc.aio.Channel
    desk: Desk

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
