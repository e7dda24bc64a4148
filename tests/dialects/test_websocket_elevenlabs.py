"""What ElevenLabs' clients send and expect."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import av
import pytest
from websockets.asyncio.client import ClientConnection

from tests.server.fake_backend import FakeBackend, Gate
from tests.server.http.faulty_clients import until
from tests.server.http.websocket_serving import LATE_S, STREAM, FakeKeys, connected, ending_of, next_reply, send
from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat
from vivavoce.server.http.ws_messages import pause_s
from vivavoce_dialects.elevenlabs import output_format

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
        spoken = [reply for reply in replies[:-1] if reply["alignment"] is None]
        assert [{**reply, "audio": None} for reply in spoken] == [nothing] * len(spoken)
        alignments = [reply["alignment"] for reply in replies if reply["alignment"] is not None]
        assert ["".join(alignment["chars"]) for alignment in alignments] == [" ", "Hello ", "there."]
        # Of each piece, from its own beginning.
        assert alignments[1]["charStartTimesMs"] == [0, 10, 20, 30, 40, 50]
        assert alignments[2]["charDurationsMs"] == [10] * 6
        # The stand-in says each piece as a sentence of its own.
        assert len(audio_of(replies)) == 480 * len(" Hello there.")
        order = served.speaker.orders[0]
        assert (order.voice, order.speed, order.seed, order.language) == ("anna", 1.1, 4, "en")


async def test_a_context_of_white_space_is_spoken_when_it_is_closed() -> None:
    async with connected(path=MULTI + "?output_format=pcm_24000") as (client, _):
        await send(client, {"text": "\n\n", "context_id": "a"}, {"context_id": "a", "flush": True})
        await send(client, {"context_id": "a", "close_context": True})
        assert audio_of(await until_final(client, "a"))


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


async def test_a_text_that_ends_at_once_is_answered() -> None:
    async with connected(path=ANNA) as (client, _):
        await send(client, {"text": ""})
        assert (await all_replies(client))[-1]["isFinal"]


async def test_a_wrong_message_in_the_middle_ends_the_connection_too() -> None:
    async with connected(path=ANNA) as (client, _):
        await send(client, {"text": " "}, {"text": 5})
        assert "text:" in (await next_reply(client))["message"]
        assert (await ending_of(client))[0] == 1008
    async with connected(path=ANNA) as (client, _):
        await send(client, {"text": "a\x00"})  # which the engine refuses
        assert "text: holds U+0000" in (await next_reply(client))["message"]
        assert (await ending_of(client))[0] == 1008


async def test_text_after_the_end_is_refused_and_the_text_before_it_spoken() -> None:
    gate = Gate(0)
    async with connected(FakeBackend(gate=gate), ANNA + "?output_format=pcm_24000") as (client, _):
        await send(client, {"text": "Accepted. "}, {"text": ""}, {"text": " "}, {"text": ""}, {"text": "More. "})
        refusal = await next_reply(client)
        assert refusal["message"].startswith("text: it comes after the empty text, which ended it")
        await send(client, {"text": 5})
        assert "text:" in (await next_reply(client))["message"]
        gate.set()
        assert len(audio_of(await all_replies(client))) == 480 * len("Accepted. ")
        assert client.close_code == 1000


@pytest.mark.parametrize(
    ("path", "message", "code", "words"),
    [
        ("/v1/text-to-speech/nobody/stream-input", {"text": " "}, "voice_not_found", "nobody"),
        (ANNA + "?output_format=pcm_16001", {"text": " "}, "invalid_request", "output_format: 'pcm_16001'"),
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
    ("name", "codec", "rate", "bitrate"),
    [
        *[(f"pcm_{rate}", "pcm", rate, None) for rate in (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)],
        ("wav_44100", "wav", 44_100, None),
        ("ulaw_8000", "ulaw", 8_000, None),
        ("alaw_8000", "alaw", 8_000, None),
        ("mp3_22050_32", "mp3", 22_050, 32_000),
        ("mp3_44100", "mp3", 44_100, None),
        ("mp3_44100_192", "mp3", 44_100, 192_000),
        ("opus_48000_192", "opus", 48_000, 192_000),
    ],
)
def test_formats_by_their_names(name: str, codec: str, rate: int, bitrate: int | None) -> None:
    assert output_format(name) == OutputFormat(AudioFormat(codec), rate, bitrate)


@pytest.mark.parametrize(
    "name",
    [
        *("", "mp3", "pcm_11025", "pcm_16000_32", "mp3_x_128", "mp3_22050_192", "opus_48000_9999", "mp3_44100_64_64"),
        *("mp3_44100_²", f"mp3_44100_{'1' * 5000}", "ogg_48000"),
    ],
)
def test_formats_that_there_are_not(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"output_format: '.*' is not supported; use mp3_44100_128, pcm_16000"):
        output_format(name)


async def test_the_audio_has_the_rate_and_bitrate_that_were_asked_for() -> None:
    async with connected(path=ANNA + "?output_format=mp3_44100_192") as (client, _):
        await send(client, {"text": " "}, {"text": "Hello there. " * 9}, {"text": ""})
        content = audio_of(await all_replies(client))
    assert (
        content[content.index(0xFF) :][:3] == b"\xff\xfb\xb0"
    )  # behind the tag: MPEG-1 Layer III, 192 kbit/s, 44.1 kHz
    async with connected(path=ANNA + "?output_format=ulaw_8000") as (client, _):
        await send(client, {"text": " "}, {"text": "Hello."}, {"text": ""})
        assert len(audio_of(await all_replies(client))) == 80 * len(" Hello.")


MULTI = "/v1/text-to-speech/anna/multi-stream-input"


def of_context(replies: list[dict[str, Any]], context: str | None) -> list[dict[str, Any]]:
    return [reply for reply in replies if reply["contextId"] == context]


async def until_final(client: ClientConnection, context: str | None) -> list[dict[str, Any]]:
    """All replies up to the end of this context."""
    found = [await next_reply(client)]
    while not (found[-1].get("isFinal") and found[-1]["contextId"] == context):
        found.append(await next_reply(client))
    return found


async def test_contexts_on_one_connection_as_pipecat_sends_them() -> None:
    async with connected(path=MULTI + "?output_format=pcm_16000&auto_mode=true") as (client, served):
        await send(client, {"text": ""})  # it keeps the connection alive, and begins nothing
        for context, words in (("a", "Hello there. You."), ("b", "Good.")):
            await send(
                client,
                {"text": " ", "context_id": context, "voice_settings": {"speed": 1.2}},
                {"text": words, "context_id": context},
                {"text": "", "context_id": context},
                {"context_id": context, "flush": True},
                {"context_id": context, "close_context": True},
            )
            replies = await until_final(client, context)
            assert {reply["contextId"] for reply in replies} == {context}
            # The stand-in speaks each piece by itself; what follows the text ends its last word.
            assert len(audio_of(replies)) == 320 * len(f" {words} ")
            alignments = [reply["alignment"] for reply in replies if reply["alignment"]]
            assert "".join(char for alignment in alignments for char in alignment["chars"]) == f" {words} "
            assert all(alignment["charStartTimesMs"][0] == 0 for alignment in alignments)
            assert replies[-1]["is_final"]
        assert [order.speed for order in served.speaker.orders] == [1.2, 1.2]
        await send(client, {"close_socket": True})
        assert await ending_of(client) == (1000, "")


async def test_contexts_at_once_and_times_from_their_beginning_as_livekit_wants_them() -> None:
    gate = Gate(1)
    async with connected(FakeBackend(gate=gate), MULTI + "?output_format=pcm_24000&sync_alignment=true") as (client, _):
        for context in ("a", "b"):
            await send(client, {"text": " ", "context_id": context, "voice_settings": {}})
            await send(client, {"text": f"One {context}. ", "context_id": context, "flush": True})
            await send(client, {"text": "Two. ", "context_id": context, "flush": True})
            await send(client, {"text": "", "context_id": context, "flush": True})
            await send(client, {"context_id": context, "close_context": True})
        replies = [await next_reply(client)]
        gate.set()
        replies += await until_final(client, "a")
        if not any(reply.get("isFinal") for reply in of_context(replies, "b")):
            replies += await until_final(client, "b")
    for context in ("a", "b"):
        own = of_context(replies, context)
        assert len(audio_of(own)) == 480 * len(f" One {context}. Two. ")
        starts = [start for reply in own if reply["alignment"] for start in reply["alignment"]["charStartTimesMs"]]
        assert starts == [10 * number for number in range(len(f" One {context}. Two. "))]


async def test_an_interruption_drops_what_was_not_flushed_and_a_second_one_the_rest() -> None:
    gate = Gate(2)
    async with connected(FakeBackend(gate=gate), MULTI + "?output_format=pcm_24000") as (client, served):
        await send(client, {"text": " ", "context_id": "a"}, {"text": "A long sentence.", "context_id": "a"})
        await next_reply(client)
        await send(client, {"context_id": "a", "close_context": True})
        assert (await until_final(client, "a"))[-1]["audio"] is None
        assert served.speaker.streams[0].cancelled.is_set()
        await send(client, {"text": "Another one. ", "context_id": "b", "flush": True})
        await send(client, {"context_id": "b", "close_context": True}, {"text": "Late.", "context_id": "b"})
        await send(client, {"context_id": "b", "close_context": True})
        await until_final(client, "b")
        assert served.speaker.streams[1].cancelled.is_set()
        # A name may be used again.
        gate.set()
        await send(
            client, {"text": "Third.", "context_id": "a", "flush": True}, {"context_id": "a", "close_context": True}
        )
        assert len(audio_of(await until_final(client, "a"))) == 480 * len("Third. ")
        await send(client, {"context_id": "a", "close_context": True}, {"context_id": "x", "flush": True})
        await send(client, {"text": "Default."}, {"flush": True}, {"close_socket": True})
        replies = await all_replies(client)
        assert len(audio_of(of_context(replies, None))) == 480 * len("Default. ")


@pytest.mark.parametrize("flush", [{}, {"flush": True}])
async def test_text_in_the_message_that_closes_is_spoken_first(flush: dict[str, bool]) -> None:
    async with connected(path=MULTI + "?output_format=pcm_24000") as (client, _):
        await send(client, {"text": "Hi there. ", "context_id": "a", "close_context": True, **flush})
        assert len(audio_of(await until_final(client, "a"))) == 480 * len("Hi there. ")
        await send(client, {"text": "Not flushed. ", "context_id": "a"})
        await send(client, {"text": "Now it is. ", "context_id": "a", "close_context": True, **flush})
        assert len(audio_of(await until_final(client, "a"))) == 480 * len("Not flushed. Now it is. ")
        await send(client, {"text": "Bye.", "context_id": "b", "flush": True})
        await send(client, {"text": "Last.", "context_id": "c", "close_socket": True, **flush})
        replies = await all_replies(client)
        assert client.close_code == 1000
        for context, words in (("b", "Bye. "), ("c", "Last. ")):
            own = of_context(replies, context)
            assert (len(audio_of(own)), own[-1]["isFinal"]) == (480 * len(words), True)


async def test_an_empty_text_in_the_message_that_closes_is_no_interruption() -> None:
    async with connected(path=MULTI + "?output_format=pcm_24000") as (client, _):
        await send(client, {"text": "Not flushed. ", "context_id": "a"})
        await send(client, {"text": "", "context_id": "a", "close_context": True})
        assert len(audio_of(await until_final(client, "a"))) == 480 * len("Not flushed. ")
        await send(client, {"text": "", "context_id": "b", "close_context": True})  # begins nothing
        await send(client, {"text": "Last. ", "context_id": "c"}, {"text": "", "context_id": "c", "close_socket": True})
        replies = await all_replies(client)
        assert {reply["contextId"] for reply in replies} == {"c"}
        assert len(audio_of(replies)) == 480 * len("Last. ")


async def test_no_context_begins_after_the_socket_is_to_close() -> None:
    gate = Gate(0)
    async with connected(FakeBackend(gate=gate), MULTI + "?output_format=pcm_24000") as (client, served):
        await send(client, {"text": "Old. ", "context_id": "a", "flush": True}, {"close_socket": True})
        await send(client, {"text": "New. ", "context_id": "b", "flush": True}, {"text": ""})
        (refusal,) = await until_final(client, "b")
        assert refusal["message"] == "context_id: 'b' comes after close_socket; open another connection"
        await send(client, {"text": "Late. ", "context_id": "a", "flush": True})  # it takes no text
        gate.set()
        replies = await all_replies(client)
        assert (client.close_code, len(served.speaker.orders)) == (1000, 1)
        assert [reply["contextId"] for reply in replies] == ["a"] * len(replies)
        assert len(audio_of(replies)) == 480 * len("Old. ")


@pytest.mark.parametrize("path", [ANNA, MULTI])
async def test_who_says_nothing_after_a_flush_is_sent_away(path: str) -> None:
    async with connected(path=f"{path}?inactivity_timeout=1") as (client, served):
        await send(client, {"text": "Hello. ", "flush": True})
        code, reason = await asyncio.wait_for(ending_of(client), LATE_S)
        assert (code, reason.partition(";")[0]) == (1000, "idle: no text came for 1 s")
        assert served.dispatcher.active == 0


async def test_their_names_in_the_address_are_not_lost_before_an_own_message() -> None:
    own = {"type": "start", "text": "Hi."}
    async with connected(path=STREAM + "?voice_id=anna&seed=3&output_format=mp3_44100") as (client, served):
        for message in ({"type": "text", "text": "Hi."}, own, own):
            await send(client, message)
            told = (await next_reply(client))["error"]["message"]
            assert told == "query: voice_id, seed are not read here; send fields in the start message"
        assert not served.speaker.orders
    async with connected(path=STREAM + "?output_format=mp3_44100&language_code=de&api-version=1") as (client, _):
        for _ in range(2):
            await send(client, own, {"type": "end"})
            replies = [await next_reply(client)]
            assert replies[0]["warnings"] == [
                "query: output_format, language_code, api-version are not read here and were ignored"
            ]
            while replies[-1]["type"] != "done":
                replies.append(await next_reply(client))


async def test_a_name_may_be_used_again_after_its_context_failed_while_it_was_closed() -> None:
    async with connected(path=MULTI + "?output_format=pcm_24000") as (client, served):
        await send(client, {"text": " ", "context_id": "other"})
        await until(lambda: served.speaker.streams)
        served.speaker.refuses_with = Overloaded("server: it is busy; try again in 3 s")
        await send(client, {"text": "Refused.", "context_id": "a", "close_context": True})
        assert (await until_final(client, "a"))[-1]["error"] == "overloaded"
        served.speaker.refuses_with = None
        await send(client, {"text": "Spoken.", "context_id": "a", "close_context": True})
        assert len(audio_of(await until_final(client, "a"))) == 480 * len("Spoken. ")


async def test_a_context_that_fails_ends_alone_and_the_rest_of_its_text_is_not_spoken() -> None:
    async with connected(FakeBackend(gate=Gate(0)), MULTI + "?output_format=pcm_24000") as (client, served):
        await send(client, {"text": "Held up. ", "context_id": "held"})
        await until(lambda: served.speaker.streams)
        served.speaker.refuses_with = Overloaded("server: it is busy; try again in 3 s")
        await send(client, {"text": " ", "context_id": "a"})
        (reply,) = await until_final(client, "a")
        assert (reply["error"], reply["code"]) == ("overloaded", 1008)
        served.speaker.refuses_with = None
        await send(client, {"text": "The rest.", "context_id": "a", "flush": True})
        for number in range(4):
            await send(client, {"text": " ", "context_id": f"c{number}"})
        await send(client, {"text": " ", "context_id": "one too many"})
        (reply,) = await until_final(client, "one too many")
        assert "5 contexts are open already" in reply["message"]
        assert len(served.speaker.orders) == 5


async def test_a_voice_that_is_not_there_ends_the_connection_of_contexts() -> None:
    async with connected(path="/v1/text-to-speech/nobody/multi-stream-input") as (client, _):
        await send(client, {"text": " ", "context_id": "a"}, {"text": "Hello.", "context_id": "a"})
        (reply,) = await until_final(client, "a")
        assert reply["error"] == "voice_not_found"
        code, reason = await ending_of(client)
        assert (code, "nobody" in reason) == (1008, True)


def test_the_pause_that_a_client_may_make() -> None:
    assert pause_s({}, 120.0) == 120.0
    assert pause_s({"inactivity_timeout": "180"}, 120.0) == 180.0
    for wrong in ("181", "-1", "x", "²", "9" * 5000, ""):
        with pytest.raises(InvalidRequest, match="inactivity_timeout"):
            pause_s({"inactivity_timeout": wrong}, 120.0)
