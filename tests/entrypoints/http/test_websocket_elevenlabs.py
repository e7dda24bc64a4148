"""What ElevenLabs' clients send and expect."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import av
import pytest
from websockets.asyncio.client import ClientConnection

from tests.entrypoints.http.websocket_serving import STREAM, FakeKeys, connected, ending_of, next_reply, send
from vivavoce.entrypoints.http.ws_messages import pause_s, response_format
from vivavoce.errors import InvalidRequest

ANNA = "/v1/text-to-speech/anna/stream-input"


async def all_replies(client: ClientConnection) -> list[dict[str, Any]]:
    """Everything until the server closes without complaint."""
    return [json.loads(frame) async for frame in client]


def audio_of(replies: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(reply["audio"]) for reply in replies if reply["audio"])


async def test_their_sequence_of_messages() -> None:
    path = f"{ANNA}?model_id=eleven_flash_v2_5&output_format=pcm_24000&seed=4&language_code=en"
    async with connected(path=path) as (client, served):
        settings = {"stability": 0.5, "similarity_boost": 0.8, "speed": 1.1}
        generation = {"chunk_length_schedule": [120, 160]}
        await send(client, {"text": " ", "voice_settings": settings, "generation_config": generation})
        await send(client, {"text": "Hello ", "try_trigger_generation": True}, {"text": "there."}, {"text": ""})
        replies = await all_replies(client)
        nothing = {"audio": None, "isFinal": None, "normalizedAlignment": None, "alignment": None}
        assert replies[-1] == {**nothing, "isFinal": True}
        assert [{**reply, "audio": None} for reply in replies[:-1]] == [nothing] * (len(replies) - 1)
        # The stand-in says each piece as a sentence of its own.
        assert len(audio_of(replies)) == 480 * len(" Hello there.")
        order = served.speaker.orders[0]
        assert (order.voice, order.speed, order.seed, order.language) == ("anna", 1.1, 4, "en")


async def test_a_flush_is_spoken_before_the_text_has_ended() -> None:
    async with connected(path=ANNA + "?output_format=pcm_24000") as (client, _):
        await send(client, {"text": " "}, {"text": "One.", "flush": True})
        spoken = 0
        while spoken < 480 * 5:
            spoken += len(audio_of([await next_reply(client)]))
        await send(client, {"text": "Two."}, {"text": ""})
        assert len(audio_of(await all_replies(client))) == 480 * 4


async def test_without_a_format_it_is_mp3_and_the_other_address_knows_them_too() -> None:
    async with connected(path=STREAM + "?voice_id=anna") as (client, _):
        await send(client, {"text": " "}, {"text": "Hello there."}, {"text": ""})
        content = audio_of(await all_replies(client))
    with av.open(io.BytesIO(content)) as container:
        assert container.streams.audio[0].codec_context.name.startswith("mp3")


@pytest.mark.parametrize("field", [{"xi_api_key": "secret"}, {"authorization": "Bearer secret"}])
async def test_the_key_may_come_in_the_first_message(field: dict[str, str]) -> None:
    async with connected(path=ANNA, keys=FakeKeys()) as (client, _):
        await send(client, {"text": " ", **field}, {"text": "Hi."}, {"text": ""})
        assert (await all_replies(client))[-1]["isFinal"]


@pytest.mark.parametrize(
    ("path", "message", "code", "words"),
    [
        ("/v1/text-to-speech/nobody/stream-input", {"text": " "}, "voice_not_found", "nobody"),
        (ANNA + "?output_format=pcm_16000", {"text": " "}, "invalid_request", "output_format: 'pcm_16000'"),
        (ANNA, {"text": " ", "voice_settings": {"speed": 9}}, "invalid_request", "voice_settings.speed"),
        (ANNA, {"text": 5}, "invalid_request", "text:"),
        (ANNA, {"text": "Hi.", "context_id": "a"}, "invalid_request", "context_id"),
        (ANNA + "?inactivity_timeout=0", {"text": " "}, "invalid_request", "inactivity_timeout"),
    ],
)
async def test_what_cannot_be_done_is_told_and_ends_the_connection(
    path: str, message: dict[str, Any], code: str, words: str
) -> None:
    async with connected(path=path) as (client, _):
        await send(client, message)
        reply = await next_reply(client)
        assert (reply["error"], reply["code"]) == (code, 1008)
        assert words in reply["message"]
        assert (await ending_of(client))[0] == 1008


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("pcm_24000", "pcm"),
        ("mp3_44100_128", "mp3"),
        ("mp3_22050_32", "mp3"),
        ("opus_48000_96", "opus"),
        ("pcm_44100", None),
        ("ulaw_8000", None),
        ("mp3", None),
        ("mp3_44100", None),
        ("mp3_x_128", None),
        ("opus_48000_9999", None),
        ("", None),
        ("mp3_44100_²", None),
        (f"mp3_44100_{'1' * 5000}", None),
    ],
)
def test_formats_that_have_a_like_or_none(theirs: str, ours: str | None) -> None:
    if ours is not None:
        assert response_format(theirs, 24_000) == ours
        return
    with pytest.raises(InvalidRequest, match="pcm_24000"):
        response_format(theirs, 24_000)


def test_the_pause_that_a_client_may_make() -> None:
    assert pause_s({}, 120.0) == 120.0
    assert pause_s({"inactivity_timeout": "180"}, 120.0) == 180.0
    for wrong in ("181", "-1", "x", "²", "9" * 5000, ""):
        with pytest.raises(InvalidRequest, match="inactivity_timeout"):
            pause_s({"inactivity_timeout": wrong}, 120.0)
