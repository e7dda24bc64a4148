"""Text in, audio out over a WebSocket: order, marks, flushes, formats; wrong messages, and who may send any."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import av
import pytest
from starlette.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from tests.server.fake_backend import FakeBackend, Unguided, tone
from tests.server.http.websocket_serving import (
    END,
    FLUSH,
    LATE_S,
    PING,
    STREAM,
    FakeKeys,
    answered,
    audio_of,
    connected,
    ending_of,
    errors_of,
    next_reply,
    of_type,
    send,
    serving,
    start,
    text,
)
from vivavoce.engine.request import SamplingParams
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.server import utterance
from vivavoce.server.http import ws_session
from vivavoce.server.http.app_state import is_own_page


def pcm(letters: int, seed: int = 0) -> bytes:
    return to_int16(tone(letters, seed)).astype("<i2").tobytes()


async def test_the_rate_may_be_chosen_and_marks_stay_what_they_are() -> None:
    async with connected() as (client, _):
        order = start(response_format="pcm", sample_rate=16_000)
        replies = await answered(client, order, text("Hello."), FLUSH, text("You."), END)
        assert replies[0]["sample_rate"] == 16_000
        assert len(audio_of(replies)) == len(pcm(10)) * 2 // 3
        assert replies[-1]["verdict"]["audio_seconds"] == 0.1
        assert errors_of(await answered(client, start(sample_rate=11_025), until="error"), "param") == ["sample_rate"]


@pytest.mark.parametrize("rate", [24_000, 22_050])
async def test_the_simplest_client_gets_its_samples_and_a_verdict(rate: int) -> None:
    async with connected(FakeBackend(rate=rate)) as (client, _):
        replies = await answered(client, text("Hello."), END)
        identity = replies[0]["request_id"]
        assert replies[0] == {
            "type": "started",
            "request_id": identity,
            "sample_rate": rate,
            "response_format": "pcm",
            "flow_steps": "official",
        }
        assert audio_of(replies) == pcm(6)
        assert replies[-1]["verdict"] == {
            "request_id": identity,
            "finish_reason": "stop",
            "audio_seconds": round(6 * 240 / rate, 6),
            "segments_spoken": 1,
            "segments_given": 1,
            "error": None,
        }


async def test_audio_comes_before_the_text_has_ended_a_tenth_of_a_second_in_a_frame() -> None:
    async with connected() as (client, _):
        early = await answered(client, start(text="Hello."), until="binary")
        replies = await answered(client, text("a" * 99), END)
        assert replies[-1]["verdict"]["segments_spoken"] == 2
        assert audio_of(early + replies) == pcm(6) + pcm(99)
        assert max(len(reply["data"]) for reply in of_type(replies, "binary")) == 4800


async def test_halves_of_a_character_in_two_pieces_reach_the_speech() -> None:
    async with connected() as (client, _):
        replies = await answered(client, text("Well \ud83d"), text("\ude00!"), END)
        assert of_type(replies, "error") == []
        assert audio_of(replies) == pcm(8)


async def test_what_a_start_says_is_what_is_ordered() -> None:
    wanted = {"mode": "instruct", "language": "French", "code": "silent", "speed": 1.5, "seed": 7}
    more = {"instructions": "Cheerfully.", "chunk_policy": "equal", "sampling": {"top_k": 5}, "text": "Hello."}
    recording = {"ref_audio": "AAAA", "ref_text": "Well."}
    async with connected() as (client, served):
        assert audio_of(await answered(client, start(model="fake", **wanted, **more, **recording), END)) == pcm(6, 7)
        order = SpeechRequest(None, Recording(b"\0\0\0", "Well."), policy="equal", instruct="Cheerfully.", **wanted)
        assert served.speaker.orders == [replace(order, sampling=SamplingParams(top_k=5))]


async def test_what_is_not_as_wished_is_told_at_the_start() -> None:
    async with connected(speaker=Unguided()) as (client, served):
        wish = start(speed=4, mode="instruct", instructions="Like an old wizard.", text="Hello.")
        replies = await answered(client, wish, END)
        (started,) = of_type(replies, "started")
        assert [warning.partition(":")[0] for warning in started["warnings"]] == ["speed", "instructions"]
        assert served.speaker.orders[0].speed == 2.0
        assert (served.speaker.orders[0].instruct, served.speaker.orders[0].mode) == (None, None)


async def test_a_character_may_come_in_halves_and_half_of_one_costs_no_words() -> None:
    async with connected() as (client, _):
        replies = await answered(client, text("Well \ud83d"), text("\ude00 done,\ud83d my friend."), END)
        assert not errors_of(replies, "param")
        assert len(audio_of(replies)) == len(pcm(len("Well ..done,. my friend.") + 1))


async def test_a_flush_is_spoken_at_once_and_what_follows_counts_on() -> None:
    async with connected() as (client, _):
        first = await answered(client, start(text="One. "), FLUSH, until="flushed")
        assert audio_of(first) == pcm(5)
        second = await answered(client, text(" "), text("Two."), END)
        keys = ("segment", "start_character", "end_character", "start", "end")
        marks = [[each.get(key) for key in keys] for each in first + second if each["type"].startswith("segment")]
        assert marks == [[0, 0, 5, 0.0, None], [0, 0, 5, 0.0, 0.05], [1, 5, 10, 0.05, None], [1, 5, 10, 0.05, 0.1]]
        assert second[-1]["verdict"]["segments_given"] == 2


async def test_a_flush_within_reasoning_keeps_what_follows_silent() -> None:
    async with connected() as (client, served):
        pieces = (text("<think>Well, "), FLUSH, text("perhaps.</think>Hello."), END)
        replies = await answered(client, start(), *pieces)
        assert len(served.speaker.orders) == 1  # one text, so that the reading sees where the reasoning ends
        assert [reply["type"] for reply in replies if reply["type"] in ("flushed", "done")] == ["flushed", "done"]
        await answered(client, start(reasoning="read"), *pieces)
        assert len(served.speaker.orders) == 3


async def test_a_flush_speaks_the_words_before_open_reasoning_and_keeps_the_rest_of_it_silent() -> None:
    async with connected() as (client, served):
        spoken = await answered(client, start(), text("Hello. <thinking>One, "), FLUSH, until="flushed")
        assert audio_of(spoken) == pcm(7) + pcm(15)  # this backend speaks reasoning, too
        assert await answered(client, text("two "), FLUSH, until="flushed") == [{"type": "flushed"}]
        assert len(served.speaker.orders) == 1
        rest = "two three.</think>four</thinking>"
        replies = await answered(client, text(rest.removeprefix("two ")), text("Go."), END)
        assert len(served.speaker.orders) == 2
        # The second order begins with the tag again, so that the reading knows that it is within reasoning.
        assert len(audio_of(replies)) == len(pcm(len(f"<thinking>{rest}Go.")))
        assert of_type(replies, "segment")[0]["start_character"] == len("Hello. <thinking>One, ")
        assert of_type(replies, "segment")[-1]["end_character"] == len(f"Hello. <thinking>One, {rest}Go.")


async def test_a_flush_within_a_block_of_code_goes_on_within_it() -> None:
    async with connected() as (client, served):
        begun, rest = "Look:\n```py\nx = 1\n", "```\nDone."
        spoken = await answered(client, start(), text(begun), FLUSH, until="flushed")
        assert audio_of(spoken) == pcm(len(begun))
        assert await answered(client, text("\n"), FLUSH, until="flushed") == [{"type": "flushed"}]
        replies = await answered(client, text(rest), END)
        assert len(served.speaker.orders) == 2
        # The second order begins with the fence again, so that the reading knows that it is within code.
        assert len(audio_of(replies)) == len(pcm(len(f"```\n\n{rest}")))
        (segment,) = of_type(replies, "segment")  # the characters that come again are not of it
        assert (segment["start_character"], segment["end_character"]) == (len(begun), len(f"{begun}\n{rest}"))


async def test_passages_that_were_flushed_ahead_come_in_order_as_one_request_at_a_time() -> None:
    async with connected(keys=FakeKeys(concurrent=1)) as (client, _):
        await send(client, start(seed=3, api_key="secret"))
        for words in ("One.", "Two.", "Three.", "Four."):
            await send(client, text(words), FLUSH)
        replies = await answered(client, FLUSH, END)
        assert [mark["start_character"] for mark in of_type(replies, "segment")] == [0, 4, 8, 14]
        kinds = [reply["type"] for reply in replies if reply["type"] in ("segment", "flushed")]
        assert kinds == [*["segment", "flushed"] * 4, "flushed"]
        assert audio_of(replies) == pcm(4, 3) + pcm(4, 3) + pcm(6, 3) + pcm(5, 3)


async def test_a_flush_of_nothing_is_confirmed_and_of_too_much_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterance, "MAX_WAITING", 2)
    gate = asyncio.Event()
    async with connected(FakeBackend(gate=gate)) as (client, _):
        await answered(client, start(), FLUSH, until="flushed")
        refused = await answered(client, text("A."), FLUSH, text("B."), FLUSH, FLUSH, until="error")
        assert errors_of(refused, "param") == ["flush"]
        gate.set()
        assert audio_of(await answered(client, END)) == pcm(2) + pcm(2)


async def test_a_flush_where_no_utterance_is_open_is_confirmed_and_text_may_follow() -> None:
    async with connected() as (client, _):
        assert await answered(client, FLUSH, until="flushed") == [{"type": "flushed"}]
        assert audio_of(await answered(client, text("Hello."), FLUSH, END)) == pcm(6)
        assert await answered(client, FLUSH, until="flushed") == [{"type": "flushed"}]


async def test_a_text_that_is_too_long_has_the_code_of_a_text() -> None:
    async with connected() as (client, _):
        for message in (start(text="a" * 20_001), text("a" * 20_001)):
            assert errors_of(await answered(client, message, until="error")) == ["invalid_text"]
        refused = await answered(client, start(text="a" * 20_001, speed=9), until="error")
        assert errors_of(refused) == ["invalid_request"]


async def test_two_utterances_on_one_connection() -> None:
    async with connected() as (client, _):
        ids = set()
        for words in ("One.", "Another."):
            replies = await answered(client, start(text=words, audio="base64"), END)
            assert not of_type(replies, "binary")
            assert of_type(replies, "audio")
            assert of_type(replies, "segment")[0]["start_character"] == 0
            ids.add(replies[-1]["verdict"]["request_id"])
        assert len(ids) == 2
        await send(client, text("And?"))
        assert "no utterance is open" in (await next_reply(client))["error"]["message"]


async def test_the_request_id_is_the_client_s_own() -> None:
    async with connected(headers={"x-request-id": "mine"}) as (client, served):
        replies = await answered(client, text("One."), FLUSH, text("Two."), END)
        assert replies[-1]["verdict"]["request_id"] == "mine"
        assert [served.record(name).audio_s for name in ("mine", "mine~2")] == [pytest.approx(0.04)] * 2


@pytest.mark.parametrize("response_format", ["mp3", "opus", "aac", "flac", "wav"])
async def test_every_format_can_be_played(response_format: str) -> None:
    async with connected() as (client, _):
        content = audio_of(await answered(client, start(text="a" * 50 + ".", response_format=response_format), END))
    with av.open(io.BytesIO(content)) as container:
        samples = sum(frame.samples * 24_000 // frame.sample_rate for frame in container.decode(audio=0))
    assert 51 * 240 <= samples + 24 <= 51 * 240 + 4096


async def test_a_failure_in_the_middle_is_told_and_the_rest_of_the_text_is_not_spoken() -> None:
    speaker = FakeBackend(fails_after=1)
    async with connected(speaker) as (client, _):
        replies = await answered(client, start(text="It is long enough."))
        assert errors_of(replies) == ["engine_stopped"]
        assert replies[-1]["verdict"]["finish_reason"] == "error"
        assert replies[-1]["verdict"]["audio_seconds"] == 0.1
        speaker.fails_after = None
        assert await answered(client, text("More."), END, PING, until="pong") == [{"type": "pong"}]
        assert audio_of(await answered(client, start(text="New."), END)) == pcm(4)


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("{", "message"),
        ("[1]", "message"),
        ("[" * 100_000, "message"),
        ("{}", "type"),
        ('{"type": "sing"}', "type"),
        ('{"type": ["text"]}', "type"),
        ('{"type": "text"}', "text"),
        ('{"type": "text", "text": 5}', "text"),
        ('{"type": "end"}', "end"),
        ('{"type": "ping", "more": 1}', "more"),
        (start(speed=9), "speed"),
        (start(speed=float("nan")), "speed"),
        (start(seed=-1), "seed"),
        (start(response_format="ogg"), "response_format"),
        (start(chunk_policy="slow"), "chunk_policy"),
        (start(sampling={"top_k": 0}), "sampling.top_k"),
        (start(prompt_audio="?"), "prompt_audio"),
        (start(prompt_text="Well."), "prompt_text"),
        (start(prompt_audio="AAAA", voice="anna"), "voice"),
        (start(audio="mp3"), "audio"),
        (start(voice=5), "voice"),
        (start(sampling=[[]] * 200_000), "message"),
        (start(unknown=1), "unknown"),
        (b"\x01\x02", "message"),
    ],
)
async def test_a_bad_message_is_named_and_the_connection_goes_on(
    frame: str | bytes | dict[str, Any], param: str
) -> None:
    async with connected() as (client, _):
        await client.send(json.dumps(frame) if isinstance(frame, dict) else frame)
        reply = await next_reply(client)
        assert (reply["type"], reply["error"]["param"]) == ("error", param)
        assert reply["error"]["type"] == "invalid_request_error"
        assert audio_of(await answered(client, start(text="Yes."), END)) == pcm(4)


@pytest.mark.parametrize(
    ("fields", "code"), [({"voice": "nobody"}, "voice_not_found"), ({"model": "other"}, "model_not_found")]
)
async def test_the_text_of_a_refused_start_is_not_spoken_by_another_voice(fields: dict[str, str], code: str) -> None:
    async with connected() as (client, served):
        replies = await answered(client, start(**fields), text("Hello."), END, PING, until="pong")
        assert errors_of(replies) == [code]
        assert not audio_of(replies)
        assert not served.speaker.orders


async def test_an_utterance_goes_on_after_bad_messages_and_bad_text_in_its_middle() -> None:
    async with connected() as (client, _):
        await send(client, start(text="One."), start(), {"type": "sing"}, text("\0"), text("Two."), END, PING)
        replies = [await next_reply(client) for _ in range(12)]
        assert sorted(errors_of(replies, "param")) == ["start", "text", "type"]
        assert audio_of(replies) == pcm(4) + pcm(4)
        assert of_type(replies, "pong")
        assert of_type(replies, "done")


async def test_text_that_grows_too_long_is_refused_piece_by_piece() -> None:
    async with connected() as (client, _):
        await send(client, start(text="One.", audio="base64"), FLUSH, text("  "))
        await send(client, text("a" * 19_999), text("Two."), text("b" * 19_995), text("c" * 19_994))
        replies = await answered(client, END)
        assert ["20001 characters" in message for message in errors_of(replies, "message")] == [True, True]
        places = [(one["start_character"], one["end_character"]) for one in of_type(replies, "segment_done")]
        assert places == [(0, 4), (4, 10), (10, 20_004)]  # the two spaces belong to what follows
        assert replies[-1]["verdict"]["audio_seconds"] == 200.04


@pytest.mark.parametrize(
    ("headers", "query", "fields"),
    [
        ({"authorization": "Bearer secret"}, "", {}),
        ({"xi-api-key": "secret"}, "", {}),
        ({}, "?api_key=secret", {}),
        ({}, "", {"api_key": "secret"}),
    ],
)
async def test_a_key_may_come_in_four_places(headers: dict[str, str], query: str, fields: dict[str, str]) -> None:
    async with connected(path=STREAM + query, keys=FakeKeys(), headers=headers) as (client, served):
        await answered(client, start(**fields), until="started")
        assert served.speaker.orders[0].owner == "tester"


@pytest.mark.parametrize(
    ("query", "messages"), [("?api_key=wrong", []), ("", [text("Hi.")]), ("", [start(api_key="wrong")])]
)
async def test_without_a_good_key_nothing_is_spoken(query: str, messages: list[dict[str, str]]) -> None:
    async with connected(path=STREAM + query, keys=FakeKeys()) as (client, served):
        await answered(client, *messages, until="error")
        assert (await ending_of(client))[0] == ws_session.NO_KEY
        assert not served.speaker.orders


@pytest.mark.parametrize("talks", [False, True])
async def test_who_brings_no_key_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, talks: bool) -> None:
    monkeypatch.setattr(ws_session, "KEY_S", 0.2)
    async with connected(keys=FakeKeys()) as (client, _):

        async def wait() -> None:
            with suppress(ConnectionClosed):
                while True:
                    if talks:
                        await client.send("{")
                    assert (await next_reply(client))["type"] == "error"

        await asyncio.wait_for(wait(), LATE_S)
        assert client.close_code == ws_session.NO_KEY


async def test_a_key_that_was_taken_back_starts_nothing_more() -> None:
    keys = FakeKeys()
    async with connected(keys=keys, headers={"authorization": "Bearer secret"}) as (client, served):
        await answered(client, start(text="One."), END)
        keys.known = False
        assert errors_of(await answered(client, start(text="Two."), until="error")) == ["unauthorized"]
        assert (await ending_of(client))[0] == ws_session.NO_KEY
        assert len(served.speaker.orders) == 1


async def test_a_page_from_elsewhere_is_refused_before_the_connection_is_there() -> None:
    async with serving(cors_origins=("https://app.example",)) as served:
        async with served.connect(origin=Origin("https://app.example")) as client:
            await answered(client, PING, until="pong")
        with pytest.raises(InvalidStatus) as refused:
            await served.connect(origin=Origin("https://evil.example"))
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["error"]["code"] == "forbidden"


async def test_an_utterance_is_given_up_at_the_time_that_its_client_gave() -> None:
    gate = asyncio.Event()
    async with connected(FakeBackend(gate=gate), headers={"x-request-timeout": "0.3"}) as (client, served):
        for number in (1, 2):
            replies = await answered(client, start(response_format="pcm"), text("Hello there."))
            assert errors_of(replies) == ["deadline_exceeded"]
            assert replies[-1]["verdict"]["error"]["code"] == "deadline_exceeded"
            assert served.speaker.streams[-1].cancelled.is_set()
            assert len(served.speaker.streams) == number
        gate.set()  # each utterance has its own time
        done = (await answered(client, start(response_format="pcm"), text("Hello."), END))[-1]
        assert done["verdict"]["finish_reason"] == "stop"


async def test_a_time_that_cannot_be_is_told_before_the_connection_is_there() -> None:
    async with serving() as served:
        with pytest.raises(InvalidStatus) as refused:
            await served.connect(additional_headers={"x-request-timeout": "soon"})
        assert refused.value.response.status_code == 400
        assert "x-request-timeout: 'soon'" in json.loads(refused.value.response.body)["error"]["message"]


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "allowed", "expected"),
    [
        (None, "a.example", "ws", (), True),
        ("http://a.example", "a.example", "ws", (), True),
        ("https://a.example", "a.example:443", "wss", (), True),
        ("https://a.example", "a.example", "ws", (), True),
        ("http://a.example:8880", "a.example:8880", "ws", (), True),
        ("http://[::1]:8880", "[::1]:8880", "ws", (), True),
        ("http://a.example:8881", "a.example:8880", "ws", (), False),
        ("http://b.example", "a.example", "ws", (), False),
        ("http://a.example.b.example", "a.example", "ws", (), False),
        ("http://a.example:x", "a.example", "ws", (), False),
        ("http://[", "a.example", "ws", (), False),
        ("http://a.example", "[", "ws", (), False),
        ("null", "a.example", "ws", (), False),
        ("", "a.example", "ws", (), False),
        ("null", "a.example", "ws", ("*",), True),
    ],
)
def test_the_same_origin_is_the_same_host_and_port(
    origin: str | None, host: str, scheme: str, allowed: tuple[str, ...], expected: bool
) -> None:
    headers = Headers({"host": host, **({} if origin is None else {"origin": origin})})
    assert is_own_page(headers, scheme, allowed) is expected


async def test_a_server_that_takes_no_requests_says_so_before_it_accepts() -> None:
    """A proxy in front can ask another one then."""
    async with serving() as served:
        await served.dispatcher.drain(LATE_S)
        with pytest.raises(InvalidStatus) as refused:
            async with served.connect():
                pass
        assert refused.value.response.status_code == 503
        assert int(refused.value.response.headers["retry-after"]) >= 1


async def test_the_answer_tells_the_flow_steps_that_were_asked_for() -> None:
    async with connected(FakeBackend()) as (client, _):
        replies = await answered(client, start(flow_steps="fast"), text("Hello."), END)
        assert replies[0]["flow_steps"] == "fast"
