"""CosyVoice's gRPC service, asked by real clients."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from tests.doors.fake_speaker import FakeSpeaker, tone
from tests.doors.grpc.calling import METHOD, TEXT, Office, audio, described, pairs, request, run, sft, spoken
from vivavoce.doors.grpc.messages import FILE
from vivavoce.doors.grpc.server import start_grpc
from vivavoce.errors import EngineStopped, InvalidRequest, Overloaded
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.callers import ANYBODY
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.keys_writer import add_key, new_entry, new_key

SECOND = struct.pack("<4h", 0, 1000, -1000, 32767) * 4000
"""One second of samples at 16 kHz."""


def test_the_messages_are_those_of_the_proto_file() -> None:
    assert described() == FILE


def test_protoc_reads_the_proto_file_the_same_way(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from tests.doors.grpc.calling import PROTO

    out = tmp_path / "set"
    assert protoc.main(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={out}", PROTO.name]) == 0
    (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    (service,) = file.service
    (method,) = service.method
    assert f"/{file.package}.{service.name}/{method.name}" == METHOD
    assert (method.input_type, method.output_type) == (".cosyvoice.Request", ".cosyvoice.Response")
    assert (method.client_streaming, method.server_streaming) == (False, True)
    file.ClearField("service")
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert file == FILE


def test_the_bytes_on_the_wire() -> None:
    """Written out by hand: tag, length, value."""
    inner = b"\x0a\x04anna" + b"\x12\x03Hi."
    assert request("sft_request", spk_id="anna", tts_text="Hi.") == b"\x0a" + bytes([len(inner)]) + inner
    inner = b"\x0a\x03Hi." + b"\x12\x02Ho" + b"\x1a\x02\x01\x02"
    made = request("zero_shot_request", tts_text="Hi.", prompt_text="Ho", prompt_audio=b"\x01\x02")
    assert made == b"\x12" + bytes([len(inner)]) + inner
    assert audio(b"\x0a\x02\x01\x02") == b"\x01\x02"


def wav(samples: bytes) -> bytes:
    sizes = struct.pack("<4sI4s", b"RIFF", 36 + len(samples), b"WAVE")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16)
    return sizes + form + struct.pack("<4sI", b"data", len(samples)) + samples


@pytest.mark.parametrize(
    ("content", "order"),
    [
        (sft(TEXT), SpeechOrder(TEXT, "anna", mode="sft")),
        (
            request("zero_shot_request", tts_text=TEXT, prompt_text="What I say.", prompt_audio=SECOND),
            SpeechOrder(TEXT, Recording(wav(SECOND), "What I say."), mode="zero_shot"),
        ),
        (
            request("cross_lingual_request", tts_text=TEXT, prompt_audio=SECOND),
            SpeechOrder(TEXT, Recording(wav(SECOND)), mode="cross_lingual"),
        ),
        (
            request("instruct_request", tts_text=TEXT, spk_id="anna", instruct_text="Softly."),
            SpeechOrder(TEXT, "anna", mode="instruct", instruct="Softly."),
        ),
    ],
    ids=["sft", "zero_shot", "cross_lingual", "instruct"],
)
def test_every_request_is_spoken(content: bytes, order: SpeechOrder) -> None:
    async def work() -> None:
        office = Office()
        async with office.called() as caller:
            pieces = await caller.hear(content)
        assert office.speaker.orders == [order]
        assert len(pieces) == 3  # within one sentence
        assert b"".join(pieces) == spoken(TEXT)

    run(work())


def test_a_blocking_client_as_the_original_one() -> None:
    def client(port: int) -> np.ndarray[Any, Any]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answers = channel.unary_stream(METHOD)(sft(TEXT))
            return np.frombuffer(b"".join(audio(answer) for answer in answers), dtype=np.int16)

    async def work() -> None:
        async with Office().open() as (_, server):
            heard = await asyncio.to_thread(client, server.port)
        np.testing.assert_array_equal(heard, to_int16(tone(len(TEXT), 0)))

    run(work())


def test_a_whole_answer_says_so_and_whose_it_is() -> None:
    async def work() -> None:
        office = Office()
        async with office.called() as caller:
            call = caller.call(sft(TEXT), x_request_id="mine-1")
            assert pairs(await call.initial_metadata())["x-request-id"] == "mine-1"
            assert [answer async for answer in call]
            ending = pairs(await call.trailing_metadata())
        assert (ending["x-request-id"], ending["finish-reason"]) == ("mine-1", "stop")
        entry = office.ledger.get("mine-1", ANYBODY)
        assert (entry.door, entry.reason, entry.audio_s) == ("grpc", FinishReason.STOP, pytest.approx(len(TEXT) / 100))

    run(work())


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", "INVALID_ARGUMENT", "request: holds nothing to do"),
        (b"\xff\xff", "INVALID_ARGUMENT", "request: its 2 bytes are no cosyvoice.Request"),
        (request("sft_request", spk_id="anna"), "INVALID_ARGUMENT", "tts_text: is missing; a sftRequest needs it"),
        (request("sft_request", tts_text="Hi."), "INVALID_ARGUMENT", "spk_id: is missing"),
        (sft("  "), "INVALID_ARGUMENT", "text: nothing in '' can be spoken"),
        (request("sft_request", tts_text="Hi.", spk_id="中文女"), "NOT_FOUND", "voice: '中文女' is not registered"),
        (request("instruct_request", tts_text="Hi.", spk_id="anna"), "INVALID_ARGUMENT", "instruct_text: is missing"),
        (request("zero_shot_request", tts_text="Hi.", prompt_audio=SECOND), "INVALID_ARGUMENT", "prompt_text: is"),
        (request("cross_lingual_request", tts_text="Hi."), "INVALID_ARGUMENT", "prompt_audio: is missing"),
        (
            request("cross_lingual_request", tts_text="Hi.", prompt_audio=b"123"),
            "INVALID_ARGUMENT",
            "prompt_audio: 3 bytes are no whole number of 16-bit samples",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(content: bytes, status: str, message: str) -> None:
    async def work() -> None:
        async with Office(max_conc=1).called() as caller:
            code, details, ending = await caller.refused(content)
            assert (code.name, details[: len(message)]) == (status, message)
            assert ending["error-code"] in ("invalid_request", "invalid_text", "invalid_audio", "voice_not_found")
            assert "retry-after-ms" not in ending
            assert await caller.hear(sft(TEXT))  # it took nobody's place

    run(work())


@pytest.mark.parametrize(
    ("error", "status", "milliseconds"),
    [
        (Overloaded("engine: is full; try again in 2.5 s", 2.5), "RESOURCE_EXHAUSTED", "2500"),
        (EngineStopped("engine: it broke; ask again"), "UNAVAILABLE", "5000"),
    ],
)
def test_who_should_come_again_learns_when(error: Overloaded, status: str, milliseconds: str) -> None:
    async def work() -> None:
        async with Office(FakeSpeaker(refuses_with=error)).called() as caller:
            code, details, ending = await caller.refused(sft(TEXT), x_request_id="full-1")
        assert (code.name, details) == (status, str(error))
        assert (ending["retry-after-ms"], ending["error-code"]) == (milliseconds, error.code)
        assert ending["x-request-id"] == "full-1"

    run(work())


def test_what_nobody_foresaw_is_told_without_its_innards(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeSpeaker):
        async def speak(self, order: SpeechOrder) -> Any:
            raise KeyError("a secret")

    async def work() -> None:
        async with Office(Broken(), max_conc=1).called() as caller:
            for _ in range(2):
                code, details, ending = await caller.refused(sft(TEXT), x_request_id="odd-1")
                assert (code, ending["error-code"]) == (grpc.StatusCode.INTERNAL, "internal_error")
                assert "secret" not in details

    run(work())
    assert "a secret" in caplog.text


def test_a_message_larger_than_a_body_may_be_is_refused() -> None:
    async def work() -> None:
        office = Office(options={"max_body_bytes": 65_536})
        async with office.called() as caller:
            content = request("cross_lingual_request", tts_text=TEXT, prompt_audio=bytes(65_536))
            assert (await caller.refused(content))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert office.speaker.orders == []

    run(work())


@pytest.mark.parametrize("header", ["authorization", "x_api_key", "xi_api_key"])
def test_keys(tmp_path: Path, header: str) -> None:
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "berta"))

    async def work() -> None:
        office = Office(keys=KeyRing.load(path))
        async with office.called() as caller:
            for metadata in ({}, {header: "wrong"}, {"authorization": f"Basic {key}"}):
                code, details, ending = await caller.refused(sft(TEXT), **metadata)
                assert (code, ending["error-code"]) == (grpc.StatusCode.UNAUTHENTICATED, "unauthorized")
                assert key not in details
            value = f"Bearer {key}" if header == "authorization" else key
            assert b"".join(await caller.hear(sft(TEXT), **{header: value})) == spoken(TEXT)
        (order,) = office.speaker.orders
        assert order.owner == "berta"

    run(work())


@pytest.mark.parametrize(
    ("asked", "ready", "answer"), [(b"", True, b"\x08\x01"), (b"\x0a\x13cosyvoice.CosyVoice", False, b"\x08\x02")]
)
def test_health(asked: bytes, ready: bool, answer: bytes) -> None:
    async def work() -> None:
        async with Office(FakeSpeaker(is_ready=ready)).called() as caller:
            assert await caller.channel.unary_unary("/grpc.health.v1.Health/Check")(asked) == answer

    run(work())


@pytest.mark.parametrize(("asked", "status"), [(b"\x0a\x01x", "NOT_FOUND"), (b"\xff", "INVALID_ARGUMENT")])
def test_health_of_what_is_not_there(asked: bytes, status: str) -> None:
    async def work() -> None:
        async with Office().called() as caller:
            call = caller.channel.unary_unary("/grpc.health.v1.Health/Check")(asked)
            assert (await call.code()).name == status

    run(work())


def test_a_port_that_is_taken_is_said() -> None:
    async def work() -> None:
        office = Office()
        async with office.open() as (desk, server):
            with pytest.raises(InvalidRequest, match=f"grpc port: {server.port} on 127.0.0.1 cannot be taken"):
                await start_grpc(desk, "127.0.0.1", server.port, 4)
            with pytest.raises(InvalidRequest, match="max_conc: 0 is below 1"):
                await start_grpc(desk, "127.0.0.1", 0, 0)

    run(work())
