"""CosyVoice's gRPC service, asked by real clients."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.grpc_service.calling import METHOD, TEXT, audio, calling, pairs, request, sft, spoken
from tests.server.certificates import certified, needs_openssl
from tests.server.fake_backend import FakeBackend, Unguided
from vivavoce.errors import EngineStopped, InvalidRequest, Overloaded
from vivavoce.frontend.speech import INSTRUCTIONS_LEFT_OUT, FinishReason, Recording, SpeechRequest
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import ServerSection
from vivavoce_grpc.server import start_grpc

SECOND = struct.pack("<4h", 0, 1000, -1000, 32767) * 4000
"""One second of samples at 16 kHz."""


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
        (sft(TEXT), SpeechRequest(TEXT, "anna", mode="sft", reading="official")),
        (
            request("zero_shot_request", tts_text=TEXT, prompt_text="What I say.", prompt_audio=SECOND),
            SpeechRequest(TEXT, Recording(wav(SECOND), "What I say."), mode="zero_shot", reading="official"),
        ),
        (
            request("cross_lingual_request", tts_text=TEXT, prompt_audio=SECOND),
            SpeechRequest(TEXT, Recording(wav(SECOND)), mode="cross_lingual", reading="official"),
        ),
        (
            request("cross_lingual_request", tts_text=TEXT, prompt_audio=wav(SECOND)),
            SpeechRequest(TEXT, Recording(wav(SECOND)), mode="cross_lingual", reading="official"),
        ),
        (
            request("instruct_request", tts_text=TEXT, spk_id="anna", instruct_text="Softly."),
            SpeechRequest(TEXT, "anna", mode="instruct", instruct="Softly.", reading="official"),
        ),
    ],
    ids=["sft", "zero_shot", "cross_lingual", "a file", "instruct"],
)
async def test_every_request_is_spoken(content: bytes, order: SpeechRequest) -> None:
    async with calling(FakeBackend(rate=22_050)) as caller:  # the wire tells no rate: it is the model's
        pieces = await caller.hear(content)
    assert caller.speaker.orders == [order]
    assert len(pieces) == 3  # within one sentence
    assert b"".join(pieces) == spoken(TEXT)


async def test_a_whole_answer_says_so_and_whose_it_is() -> None:
    async with calling() as caller:
        call = caller.call(sft(TEXT), x_request_id="mine-1")
        told = pairs(await call.initial_metadata())
        assert (told["x-request-id"], float(told["x-admission-seconds"]) < 60) == ("mine-1", True)
        assert [answer async for answer in call]
        ending = pairs(await call.trailing_metadata())
    assert (ending["x-request-id"], ending["finish-reason"]) == ("mine-1", "stop")
    entry = caller.dispatcher.request_log.get("mine-1", ANONYMOUS)
    assert (entry.protocol, entry.reason, entry.audio_s) == ("grpc", FinishReason.STOP, pytest.approx(len(TEXT) / 100))


async def test_what_is_not_as_wished_is_told_before_the_audio() -> None:
    async with calling(Unguided()) as caller:
        call = caller.call(request("instruct_request", tts_text=TEXT, spk_id="anna", instruct_text="Softly."))
        assert pairs(await call.initial_metadata())["x-warning"] == INSTRUCTIONS_LEFT_OUT
        assert b"".join([audio(answer) async for answer in call]) == spoken(TEXT)
        assert caller.speaker.orders[0].mode is None
        assert set(b"".join(await caller.hear(sft("  ")))) == {0}


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", "INVALID_ARGUMENT", "request: holds nothing to do"),
        (b"\xff\xff", "INVALID_ARGUMENT", "request: its 2 bytes are not a cosyvoice.Request"),
        (request("sft_request", spk_id="anna"), "INVALID_ARGUMENT", "tts_text: is missing; a sftRequest needs it"),
        (request("sft_request", tts_text="Hi."), "INVALID_ARGUMENT", "spk_id: is missing"),
        (request("sft_request", tts_text="Hi.", spk_id="中文女"), "NOT_FOUND", "voice: '中文女' is not registered"),
        (request("instruct_request", tts_text="Hi.", spk_id="anna"), "INVALID_ARGUMENT", "instruct_text: is missing"),
        (request("zero_shot_request", tts_text="Hi.", prompt_audio=SECOND), "INVALID_ARGUMENT", "prompt_text: is"),
        (request("cross_lingual_request", tts_text="Hi."), "INVALID_ARGUMENT", "prompt_audio: is missing"),
        (
            request("cross_lingual_request", tts_text="Hi.", prompt_audio=b"123"),
            "INVALID_ARGUMENT",
            "prompt_audio: 3 bytes are not a whole number of 16-bit samples",
        ),
        (
            request("cross_lingual_request", tts_text=TEXT, prompt_audio=bytes(65_536)),
            "RESOURCE_EXHAUSTED",
            "SERVER: Received message larger than max (65570 vs. 65536)",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused(content: bytes, status: str, message: str) -> None:
    async with calling(max_conc=1, max_body_bytes=65_536) as caller:
        code, details, ending = await caller.refused(content)
        assert (code.name, details[: len(message)]) == (status, message)
        if "message larger" not in message:  # else gRPC itself refused it
            assert ending["error-code"] in ("invalid_request", "invalid_text", "invalid_audio", "voice_not_found")
        assert "retry-after-ms" not in ending
        assert caller.speaker.orders == []
        assert await caller.hear(sft(TEXT))  # it took nobody's place


@pytest.mark.parametrize(
    ("error", "status", "milliseconds"),
    [
        (Overloaded("engine: is full; try again in 2.5 s", 2.5), "RESOURCE_EXHAUSTED", "2500"),
        (EngineStopped("engine: it broke; ask again"), "UNAVAILABLE", "5000"),
    ],
)
async def test_who_should_come_again_learns_when(error: Overloaded, status: str, milliseconds: str) -> None:
    async with calling(FakeBackend(refuses_with=error)) as caller:
        code, details, ending = await caller.refused(sft(TEXT), x_request_id="full-1")
    assert (code.name, details) == (status, str(error))
    assert (ending["retry-after-ms"], ending["error-code"]) == (milliseconds, error.code)
    assert ending["x-request-id"] == "full-1"


async def test_what_nobody_foresaw_is_told_without_its_innards(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeBackend):
        async def speak(self, order: SpeechRequest) -> Any:
            raise KeyError("a secret")

    async with calling(Broken(), max_conc=1) as caller:
        for _ in range(2):
            code, details, ending = await caller.refused(sft(TEXT), x_request_id="odd-1")
            assert (code, ending["error-code"]) == (grpc.StatusCode.INTERNAL, "internal_error")
            assert "secret" not in details
    assert "a secret" in caplog.text


@pytest.mark.parametrize("header", ["authorization", "x_api_key", "xi_api_key"])
async def test_keys(tmp_path: Path, header: str) -> None:
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "berta"))
    async with calling(keys=KeyRing(path)) as caller:
        for metadata in ({}, {header: "wrong"}, {"authorization": f"Basic {key}"}):
            code, details, ending = await caller.refused(sft(TEXT), **metadata)
            assert (code, ending["error-code"]) == (grpc.StatusCode.UNAUTHENTICATED, "unauthorized")
            assert key not in details
        value = f"Bearer {key}" if header == "authorization" else key
        assert b"".join(await caller.hear(sft(TEXT), **{header: value})) == spoken(TEXT)
    (order,) = caller.speaker.orders
    assert order.owner == "berta"


@pytest.mark.parametrize(
    ("asked", "ready", "answer"), [(b"", True, b"\x08\x01"), (b"\x0a\x13cosyvoice.CosyVoice", False, b"\x08\x02")]
)
async def test_health(asked: bytes, ready: bool, answer: bytes) -> None:
    async with calling(FakeBackend(is_ready=ready)) as caller:
        assert await caller.channel.unary_unary("/grpc.health.v1.Health/Check")(asked) == answer


async def test_a_port_that_is_taken_is_said() -> None:
    async with calling() as caller:
        with pytest.raises(InvalidRequest, match=f"grpc port: {caller.port} on 127.0.0.1 cannot be taken"):
            await start_grpc(caller.dispatcher, KeyRing(), ServerSection(grpc_port=caller.port))


async def ask(credentials: grpc.ChannelCredentials | None, **files: Path) -> bytes:
    connect = grpc.aio.insecure_channel
    async with calling(
        connect=connect if credentials is None else lambda address: grpc.aio.secure_channel(address, credentials),
        **files,
    ) as caller:
        return b"".join(await caller.hear(sft("Hello.")))


@needs_openssl
async def test_with_a_certificate_nothing_is_said_in_the_clear(tmp_path: Path) -> None:
    files = certified(tmp_path)
    assert len(await ask(grpc.ssl_channel_credentials(files["tls_certificate"].read_bytes()), **files)) == 6 * 480
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(None, **files)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@needs_openssl
async def test_clients_may_have_to_show_a_certificate_too(tmp_path: Path) -> None:
    files = certified(tmp_path)
    certificate, key = (path.read_bytes() for path in files.values())
    files["tls_client_ca"] = files["tls_certificate"]
    assert len(await ask(grpc.ssl_channel_credentials(certificate, key, certificate), **files)) == 6 * 480
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(grpc.ssl_channel_credentials(certificate), **files)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(InvalidRequest, match="or the certificate and its key are not PEM files of a pair"):
        await ask(None, tls_certificate=tmp_path / "tls.crt", tls_key=tmp_path / "tls.key")


async def test_the_longest_recording_and_text_come_in_and_no_more() -> None:
    longest = request("zero_shot_request", tts_text="字" * 20_000, prompt_text="字" * 20_000, prompt_audio=SECOND * 30)
    too_long = request("cross_lingual_request", tts_text=TEXT, prompt_audio=SECOND * 38)
    async with calling() as caller:
        assert await anext(aiter(caller.call(longest)))
        code, details, _ = await asyncio.wait_for(caller.refused(too_long), 20)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details == f"SERVER: Received message larger than max ({len(too_long)} vs. 1200000)"


async def test_a_packed_message_is_not_unpacked_beyond_what_is_taken() -> None:
    bomb = request("cross_lingual_request", tts_text=TEXT, prompt_audio=bytes(8 << 20))
    async with calling() as caller:
        call = caller.channel.unary_stream(METHOD)(bomb, compression=grpc.Compression.Gzip)
        assert await asyncio.wait_for(call.code(), 20) is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Releases of gRPC that unpack all of it tell its size.
        assert await call.details() == "Decompressed message larger than max"
        assert await caller.hear(sft(TEXT))
