"""Messages that are wrong, and who may send any."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from starlette.datastructures import Headers
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from tests.doors.http.websocket_serving import (
    LATE_S,
    FakeKeys,
    audio_of,
    ending_of,
    next_reply,
    of_type,
    replies_until,
    send,
    serving,
)
from vivavoce.doors.http import ws_session
from vivavoce.doors.http.ws_origin import may_connect

STREAM = "/v1/audio/stream"


def start(**fields: Any) -> str:
    return json.dumps({"type": "start", **fields})


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
        ('{"type": "text", "text": "\\ud800"}', "message"),
        ('{"type": "flush"}', "flush"),
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
def test_a_bad_message_is_named_and_the_connection_goes_on(frame: str | bytes, param: str) -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await client.send(frame)
            reply = await next_reply(client)
            assert reply["type"] == "error"
            assert reply["error"]["param"] == param
            assert reply["error"]["type"] == "invalid_request_error"
            await send(client, {"type": "start", "text": "Yes."}, {"type": "end"})
            assert len(audio_of(await replies_until(client, "done"))) == 4 * 480

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("fields", "code"), [({"voice": "nobody"}, "voice_not_found"), ({"model": "other"}, "model_not_found")]
)
def test_the_text_of_a_refused_start_is_not_spoken_by_another_voice(fields: dict[str, str], code: str) -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", **fields}, {"type": "text", "text": "Hello."}, {"type": "end"})
            await send(client, {"type": "ping"})
            replies = await replies_until(client, "pong")
            assert of_type(replies, "error")[0]["error"]["code"] == code
            assert not audio_of(replies)
            assert not served.speaker.orders

    asyncio.run(scene())


def test_an_utterance_goes_on_after_a_bad_message_in_its_middle() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "One."}, {"type": "start"}, {"type": "sing"}, {"type": "end"})
            await send(client, {"type": "ping"})
            replies = [await next_reply(client) for _ in range(8)]
            assert [reply["error"]["param"] for reply in of_type(replies, "error")] == ["start", "type"]
            assert len(audio_of(replies)) == 4 * 480
            assert of_type(replies, "pong")
            assert of_type(replies, "done")

    asyncio.run(scene())


def test_a_text_that_grows_too_long_is_refused_piece_by_piece() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "audio": "base64"})
            for text in ("a" * 19_999, "bc", "b"):
                await send(client, {"type": "text", "text": text})
            await send(client, {"type": "end"})
            replies = await replies_until(client, "done")
            assert "20001 characters" in of_type(replies, "error")[0]["error"]["message"]
            assert replies[-1]["verdict"]["audio_seconds"] == 200.0

    asyncio.run(scene())


@pytest.mark.parametrize("where", ["header", "elevenlabs header", "query", "message"])
def test_a_key_may_come_in_four_places(where: str) -> None:
    async def scene() -> None:
        headers = {
            "header": {"authorization": "Bearer secret"},
            "elevenlabs header": {"xi-api-key": "secret"},
        }.get(where)
        path = STREAM + ("?api_key=secret" if where == "query" else "")
        keys = FakeKeys(required=True)
        async with serving(keys=keys) as served, connect(served.address + path, additional_headers=headers) as client:
            await send(client, {"type": "start", **({"api_key": "secret"} if where == "message" else {})})
            assert (await next_reply(client))["type"] == "started"
            assert served.speaker.orders[0].owner == "tester"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("query", "message"),
    [("?api_key=wrong", None), ("", {"type": "text", "text": "Hi."}), ("", {"type": "start", "api_key": "wrong"})],
)
def test_without_a_good_key_nothing_is_spoken(query: str, message: dict[str, str] | None) -> None:
    async def scene() -> None:
        keys = FakeKeys(required=True)
        async with serving(keys=keys) as served, connect(served.address + STREAM + query) as client:
            if message is not None:
                await send(client, message)
            assert (await next_reply(client))["error"]["code"] == "unauthorized"
            assert (await ending_of(client))[0] == ws_session.NO_KEY
            assert not served.speaker.orders

    asyncio.run(scene())


def test_who_brings_no_key_at_all_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_session, "KEY_S", 0.05)

    async def scene() -> None:
        async with serving(keys=FakeKeys(required=True)) as served, connect(served.address + STREAM) as client:
            assert (await next_reply(client))["error"]["code"] == "unauthorized"
            assert (await ending_of(client))[0] == ws_session.NO_KEY

    asyncio.run(scene())


def test_who_brings_no_key_stays_no_longer_for_what_else_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_session, "KEY_S", 0.2)

    async def scene() -> None:
        async with serving(keys=FakeKeys(required=True)) as served, connect(served.address + STREAM) as client:

            async def babble() -> None:
                with suppress(ConnectionClosed):
                    while True:
                        await client.send("{")
                        assert (await next_reply(client))["type"] == "error"

            await asyncio.wait_for(babble(), LATE_S)
            assert client.close_code == ws_session.NO_KEY

    asyncio.run(scene())


def test_a_key_that_was_taken_back_starts_nothing_more() -> None:
    async def scene() -> None:
        keys = FakeKeys(required=True)
        headers = {"authorization": "Bearer secret"}
        async with (
            serving(keys=keys) as served,
            connect(served.address + STREAM, additional_headers=headers) as client,
        ):
            await send(client, {"type": "start", "text": "One."}, {"type": "end"})
            assert (await replies_until(client, "done"))[-1]["verdict"]["finish_reason"] == "stop"
            keys.known = False
            await send(client, {"type": "start", "text": "Two."})
            assert (await next_reply(client))["error"]["code"] == "unauthorized"
            assert (await ending_of(client))[0] == ws_session.NO_KEY
            assert len(served.speaker.orders) == 1

    asyncio.run(scene())


def test_text_that_grows_too_long_by_the_space_before_it_is_refused_as_a_whole() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "One."}, {"type": "flush"}, {"type": "text", "text": "  "})
            await send(
                client, {"type": "text", "text": "a" * 19_999}, {"type": "text", "text": "Two."}, {"type": "end"}
            )
            replies = await replies_until(client, "done")
            assert "20001 characters" in of_type(replies, "error")[0]["error"]["message"]
            places = [(one["start_character"], one["end_character"]) for one in of_type(replies, "segment_done")]
            assert places[0][0] == 0
            assert places[-1] == (4, 10)  # the two spaces belong to what follows

    asyncio.run(scene())


def test_a_page_from_elsewhere_is_refused_before_the_connection_is_there() -> None:
    async def scene() -> None:
        async with serving(cors_origins=("https://app.example",)) as served:
            async with connect(served.address + STREAM, origin=Origin("https://app.example")) as client:
                await send(client, {"type": "ping"})
                assert (await next_reply(client))["type"] == "pong"
            with pytest.raises(InvalidStatus) as refused:
                await connect(served.address + STREAM, origin=Origin("https://evil.example"))
            assert refused.value.response.status_code == 403
            assert json.loads(refused.value.response.body)["error"]["code"] == "forbidden"

    asyncio.run(scene())


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
    assert may_connect(headers, scheme, allowed) is expected
