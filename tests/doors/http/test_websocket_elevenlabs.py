"""What ElevenLabs' clients send and expect."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import av
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.doors.http.websocket_serving import LATE_S, FakeKeys, ending_of, send, serving
from vivavoce.doors.http.elevenlabs import pause_s, response_format
from vivavoce.errors import InvalidRequest

ANNA = "/v1/text-to-speech/anna/stream-input"


async def all_replies(client: ClientConnection) -> list[dict[str, Any]]:
    """Everything until the server closes without complaint."""
    return [json.loads(frame) async for frame in client]


def audio_of(replies: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(reply["audio"]) for reply in replies if reply["audio"])


def test_their_sequence_of_messages() -> None:
    async def scene() -> None:
        address = f"{ANNA}?model_id=eleven_flash_v2_5&output_format=pcm_24000&seed=4&language_code=en"
        async with serving() as served, connect(served.address + address) as client:
            settings = {"stability": 0.5, "similarity_boost": 0.8, "speed": 1.1}
            generation = {"chunk_length_schedule": [120, 160]}
            await send(client, {"text": " ", "voice_settings": settings, "generation_config": generation})
            await send(client, {"text": "Hello ", "try_trigger_generation": True}, {"text": "there."})
            await send(client, {"text": ""})
            replies = await all_replies(client)
            final = {"audio": None, "isFinal": True, "normalizedAlignment": None, "alignment": None}
            assert replies[-1] == final
            assert [reply["isFinal"] for reply in replies[:-1]] == [None] * (len(replies) - 1)
            assert all(reply["alignment"] is None for reply in replies)
            # The stand-in says each piece as a sentence of its own.
            assert len(audio_of(replies)) == 480 * len(" Hello there.")
            order = served.speaker.orders[0]
            assert (order.voice, order.speed, order.seed, order.language) == ("anna", 1.1, 4, "en")

    asyncio.run(scene())


def test_a_flush_is_spoken_before_the_text_has_ended() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + ANNA + "?output_format=pcm_24000") as client:
            await send(client, {"text": " "}, {"text": "One.", "flush": True})
            spoken = 0
            while spoken < 480 * 5:
                reply = json.loads(await asyncio.wait_for(client.recv(), LATE_S))
                spoken += len(base64.b64decode(reply["audio"]))
            await send(client, {"text": "Two."}, {"text": ""})
            assert len(audio_of(await all_replies(client))) == 480 * 4

    asyncio.run(scene())


def test_without_a_format_it_is_mp3_and_the_other_address_knows_them_too() -> None:
    async def scene() -> bytes:
        async with serving() as served, connect(served.address + "/v1/audio/stream?voice_id=anna") as client:
            await send(client, {"text": " "}, {"text": "Hello there."}, {"text": ""})
            return audio_of(await all_replies(client))

    with av.open(io.BytesIO(asyncio.run(scene()))) as container:
        assert container.streams.audio[0].codec_context.name.startswith("mp3")


@pytest.mark.parametrize("field", [{"xi_api_key": "secret"}, {"authorization": "Bearer secret"}])
def test_the_key_may_come_in_the_first_message(field: dict[str, str]) -> None:
    async def scene() -> None:
        async with serving(keys=FakeKeys(required=True)) as served, connect(served.address + ANNA) as client:
            await send(client, {"text": " ", **field}, {"text": "Hi."}, {"text": ""})
            assert (await all_replies(client))[-1]["isFinal"]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("address", "message", "code", "words"),
    [
        ("/v1/text-to-speech/nobody/stream-input", {"text": " "}, "voice_not_found", "nobody"),
        (ANNA + "?output_format=pcm_16000", {"text": " "}, "invalid_request", "output_format: 'pcm_16000'"),
        (ANNA, {"text": " ", "voice_settings": {"speed": 9}}, "invalid_request", "voice_settings.speed"),
        (ANNA, {"text": 5}, "invalid_request", "text:"),
        (ANNA, {"text": "Hi.", "context_id": "a"}, "invalid_request", "context_id"),
        (ANNA + "?inactivity_timeout=0", {"text": " "}, "invalid_request", "inactivity_timeout"),
    ],
)
def test_what_cannot_be_done_is_told_and_ends_the_connection(
    address: str, message: dict[str, Any], code: str, words: str
) -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + address) as client:
            await send(client, message)
            reply = json.loads(await asyncio.wait_for(client.recv(), LATE_S))
            assert (reply["error"], reply["code"]) == (code, 1008)
            assert words in reply["message"]
            assert (await ending_of(client))[0] == 1008

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("pcm_24000", "pcm"), ("mp3_44100_128", "mp3"), ("mp3_22050_32", "mp3"), ("opus_48000_96", "opus")],
)
def test_formats_that_have_a_like(theirs: str, ours: str) -> None:
    assert response_format(theirs, 24_000) == ours


@pytest.mark.parametrize(
    "theirs",
    [
        "pcm_44100",
        "ulaw_8000",
        "mp3",
        "mp3_44100",
        "mp3_x_128",
        "opus_48000_9999",
        "",
        "mp3_44100_²",
        f"mp3_44100_{'1' * 5000}",
    ],
)
def test_formats_that_have_none(theirs: str) -> None:
    with pytest.raises(InvalidRequest, match="pcm_24000"):
        response_format(theirs, 24_000)


def test_the_pause_that_a_client_may_make() -> None:
    assert pause_s({}, 120.0) == 120.0
    assert pause_s({"inactivity_timeout": "180"}, 120.0) == 180.0
    for wrong in ("181", "-1", "x", "²", "9" * 5000, ""):
        with pytest.raises(InvalidRequest, match="inactivity_timeout"):
            pause_s({"inactivity_timeout": wrong}, 120.0)
