"""Text in, audio out: order, marks, flushes and formats."""

from __future__ import annotations

import asyncio
import io

import av
import pytest
from websockets.asyncio.client import connect

from tests.doors.fake_speaker import FakeSpeaker, tone
from tests.doors.http.websocket_serving import (
    FakeKeys,
    audio_of,
    next_reply,
    of_type,
    replies_until,
    send,
    serving,
)
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.host.order import Recording
from vivavoce.service.operations.callers import Allowance

STREAM = "/v1/audio/stream"


def pcm(letters: int, seed: int = 0) -> bytes:
    return to_int16(tone(letters, seed)).astype("<i2").tobytes()


def test_the_simplest_client_gets_its_samples_and_a_verdict() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "Hello."}, {"type": "end"})
            replies = await replies_until(client, "done")
            assert replies[0]["type"] == "started"
            assert replies[0]["sample_rate"] == 24_000
            assert replies[0]["response_format"] == "pcm"
            assert audio_of(replies) == pcm(6)
            assert replies[-1]["verdict"] == {
                "request_id": replies[0]["request_id"],
                "finish_reason": "stop",
                "audio_seconds": 0.06,
                "segments_spoken": 1,
                "segments_given": 1,
                "error": None,
            }

    asyncio.run(scene())


def test_audio_comes_before_the_text_has_ended() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "Hello."})
            await replies_until(client, "binary")
            await send(client, {"type": "text", "text": " Again."}, {"type": "end"})
            assert (await replies_until(client, "done"))[-1]["verdict"]["segments_spoken"] == 2

    asyncio.run(scene())


def test_no_frame_holds_more_than_a_tenth_of_a_second() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "a" * 99}, {"type": "end"})
            sizes = [len(reply["data"]) for reply in of_type(await replies_until(client, "done"), "binary")]
            assert max(sizes) == 4800
            assert sum(sizes) == 99 * 480

    asyncio.run(scene())


def test_what_a_start_says_is_what_is_ordered() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            start = {
                "type": "start",
                "model": "fake",
                "prompt_audio": "AAAA",
                "prompt_text": "Well.",
                "seed": 7,
                "speed": 1.5,
                "mode": "instruct",
                "instructions": "Cheerfully.",
                "language": "en",
                "chunk_policy": "equal",
                "sampling": {"top_k": 5},
                "text": "Hello.",
            }
            await send(client, start, {"type": "end"})
            replies = await replies_until(client, "done")
            assert audio_of(replies) == pcm(6, seed=7)
            order = served.speaker.orders[0]
            assert order.voice == Recording(b"\0\0\0", "Well.")
            assert (order.mode, order.instruct, order.language, order.policy) == (
                "instruct",
                "Cheerfully.",
                "en",
                "equal",
            )
            assert (order.speed, order.sampling.top_k, order.text) == (1.5, 5, None)

    asyncio.run(scene())


def test_a_flush_is_spoken_at_once_and_what_follows_counts_on() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "One. "}, {"type": "flush"})
            first = await replies_until(client, "flushed")
            assert audio_of(first) == pcm(5)
            await send(client, {"type": "text", "text": " "}, {"type": "text", "text": "Two."}, {"type": "end"})
            second = await replies_until(client, "done")
            assert of_type(first + second, "segment") == [
                {"type": "segment", "segment": 0, "start_character": 0, "end_character": 5, "start": 0.0},
                {"type": "segment", "segment": 1, "start_character": 5, "end_character": 10, "start": 0.05},
            ]
            assert of_type(first + second, "segment_done") == [
                {
                    "type": "segment_done",
                    "segment": 0,
                    "start_character": 0,
                    "end_character": 5,
                    "start": 0.0,
                    "end": 0.05,
                },
                {
                    "type": "segment_done",
                    "segment": 1,
                    "start_character": 5,
                    "end_character": 10,
                    "start": 0.05,
                    "end": 0.1,
                },
            ]
            assert second[-1]["verdict"]["segments_given"] == 2

    asyncio.run(scene())


def test_passages_that_were_flushed_ahead_come_in_order() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "seed": 3})
            for text in ("One.", "Two.", "Three.", "Four."):
                await send(client, {"type": "text", "text": text}, {"type": "flush"})
            await send(client, {"type": "flush"}, {"type": "end"})
            replies = await replies_until(client, "done")
            assert [mark["start_character"] for mark in of_type(replies, "segment")] == [0, 4, 8, 14]
            assert len(of_type(replies, "flushed")) == 5
            kinds = [reply["type"] for reply in replies if reply["type"] in ("segment", "flushed")]
            assert kinds[:4] == ["segment", "flushed"] * 2
            assert audio_of(replies) == pcm(4, 3) + pcm(4, 3) + pcm(6, 3) + pcm(5, 3)

    asyncio.run(scene())


def test_a_caller_of_one_request_at_a_time_may_flush() -> None:
    async def scene() -> None:
        keys = FakeKeys(required=True, allowance=Allowance(concurrent=1))
        address = f"{STREAM}?api_key=secret"
        async with serving(keys=keys) as served, connect(served.address + address) as client:
            await send(client, {"type": "start", "text": "One."}, {"type": "flush"}, {"type": "text", "text": "Two."})
            await send(client, {"type": "end"})
            assert audio_of(await replies_until(client, "done")) == pcm(4) + pcm(4)

    asyncio.run(scene())


def test_two_utterances_on_one_connection() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            ids = []
            for text in ("One.", "Another."):
                await send(client, {"type": "start", "text": text, "audio": "base64"}, {"type": "end"})
                replies = await replies_until(client, "done")
                assert not of_type(replies, "binary")
                assert of_type(replies, "audio")
                assert of_type(replies, "segment")[0]["start_character"] == 0
                ids.append(replies[-1]["verdict"]["request_id"])
            assert len(set(ids)) == 2
            await send(client, {"type": "text", "text": "And?"})
            assert "no utterance is open" in (await next_reply(client))["error"]["message"]

    asyncio.run(scene())


def test_the_request_id_is_the_client_s_own() -> None:
    async def scene() -> None:
        headers = {"x-request-id": "mine"}
        async with serving() as served, connect(served.address + STREAM, additional_headers=headers) as client:
            await send(client, {"type": "text", "text": "One."}, {"type": "flush"})
            await send(client, {"type": "text", "text": "Two."}, {"type": "end"})
            assert (await replies_until(client, "done"))[-1]["verdict"]["request_id"] == "mine"
            caller = FakeKeys().caller(None)
            assert served.reception.ledger.get("mine", caller).audio_s == pytest.approx(0.04)
            assert served.reception.ledger.get("mine.2", caller).audio_s == pytest.approx(0.04)

    asyncio.run(scene())


@pytest.mark.parametrize("response_format", ["mp3", "opus", "aac", "flac", "wav"])
def test_every_format_can_be_played(response_format: str) -> None:
    async def scene() -> bytes:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "a" * 50 + ".", "response_format": response_format})
            await send(client, {"type": "end"})
            return audio_of(await replies_until(client, "done"))

    content = asyncio.run(scene())
    with av.open(io.BytesIO(content)) as container:
        samples = sum(frame.samples * 24_000 // frame.sample_rate for frame in container.decode(audio=0))
    assert 51 * 240 <= samples + 24 <= 51 * 240 + 4096


def test_a_failure_in_the_middle_is_told_and_the_rest_of_the_text_is_not_spoken() -> None:
    async def scene() -> None:
        speaker = FakeSpeaker(fails_after=1)
        async with serving(speaker) as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "It is long enough."})
            replies = await replies_until(client, "done")
            assert of_type(replies, "error")[0]["error"]["code"] == "engine_stopped"
            assert replies[-1]["verdict"]["finish_reason"] == "error"
            assert replies[-1]["verdict"]["audio_seconds"] == 0.1
            speaker.fails_after = None
            await send(client, {"type": "text", "text": "More."}, {"type": "end"}, {"type": "ping"})
            assert (await next_reply(client))["type"] == "pong"
            await send(client, {"type": "start", "text": "New."}, {"type": "end"})
            assert audio_of(await replies_until(client, "done")) == pcm(4)

    asyncio.run(scene())


def test_a_piece_that_cannot_be_spoken_is_left_out() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "One."}, {"type": "text", "text": "\0"})
            await send(client, {"type": "text", "text": "Two."}, {"type": "end"})
            replies = await replies_until(client, "done")
            assert [reply["error"]["code"] for reply in of_type(replies, "error")] == ["invalid_text"]
            assert audio_of(replies) == pcm(4) + pcm(4)

    asyncio.run(scene())
