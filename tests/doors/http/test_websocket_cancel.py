"""Listeners who interrupt, leave, stop reading or say nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest
from websockets.asyncio.client import connect

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.websocket_serving import (
    LATE_S,
    audio_of,
    ending_of,
    next_reply,
    of_type,
    replies_until,
    send,
    serving,
)
from vivavoce.doors.http import ws_passage, ws_session, ws_utterance
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.callers import ANYBODY

STREAM = "/v1/audio/stream"


def test_a_cancel_before_any_audio_frees_the_stream() -> None:
    async def scene() -> None:
        speaker = FakeSpeaker(gate=asyncio.Event())
        async with serving(speaker) as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "text": "Hello."}, {"type": "end"})
            request_id = (await next_reply(client))["request_id"]
            await send(client, {"type": "cancel"})
            nothing = {"type": "cancelled", "request_id": request_id, "audio_seconds": 0.0, "reached": None}
            assert await next_reply(client) == nothing
            assert speaker.streams[0].cancelled.is_set()
            assert served.reception.visits == 0
            entry = served.reception.ledger.get(request_id, ANYBODY)
            assert entry.reason is not None
            assert entry.reason.value == "cancelled"

    asyncio.run(scene())


def test_a_cancel_in_the_middle_of_audio_is_the_last_of_it_and_says_how_far_it_came() -> None:
    async def scene() -> None:
        text = "First. " + "a" * 19_000 + "."
        async with serving() as served, connect(served.address + STREAM, max_queue=4) as client:
            await send(client, {"type": "start", "text": text}, {"type": "flush"}, {"type": "text", "text": "More."})
            heard = [await next_reply(client) for _ in range(20)]
            await send(client, {"type": "cancel"})
            heard += await replies_until(client, "cancelled")
            await send(client, {"type": "ping"})
            assert (await next_reply(client))["type"] == "pong"
            seconds = heard[-1]["audio_seconds"]
            assert len(audio_of(heard)) == round(seconds * 48_000)
            assert seconds < 190
            assert heard[-1]["reached"] == {"segment": 1, "from_character": 7, "to_character": 19_008}
            assert not of_type(heard, "done")
            assert all(stream.cancelled.is_set() for stream in served.speaker.streams)
            assert served.reception.visits == 0
            await send(client, {"type": "text", "text": "A straggler."}, {"type": "end"})
            await send(client, {"type": "start", "text": "Yes."}, {"type": "end"})
            after = await replies_until(client, "done")
            assert after[0]["type"] == "started"
            assert len(audio_of(after)) == 4 * 480

    asyncio.run(scene())


def test_a_cancel_of_nothing_is_answered() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "cancel"})
            nothing = {"type": "cancelled", "request_id": None, "audio_seconds": 0.0, "reached": None}
            assert await next_reply(client) == nothing

    asyncio.run(scene())


def test_who_leaves_frees_the_stream() -> None:
    async def scene() -> None:
        speaker = FakeSpeaker(gate=asyncio.Event())
        async with serving(speaker) as served:
            async with connect(served.address + STREAM) as client:
                await send(client, {"type": "start", "text": "Hello."})
                await next_reply(client)
                client.transport.abort()
            await asyncio.wait_for(speaker.streams[0].cancelled.wait(), LATE_S)
            await served.reception.drain(LATE_S)
            assert served.reception.visits == 0

    asyncio.run(scene())


def test_who_does_not_read_is_ended() -> None:
    async def scene() -> None:
        speaker = FakeSpeaker()
        async with serving(speaker, listener_timeout_s=0.2) as served:
            narrow = socket.socket()
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            narrow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", served.port))
            async with connect(served.address + STREAM, sock=narrow, max_queue=1) as client:
                await send(client, {"type": "start", "text": "a" * 20_000})
                request_id = (await next_reply(client))["request_id"]
                await asyncio.wait_for(speaker.streams[0].cancelled.wait(), LATE_S)
                assert served.reception.ledger.get(request_id, ANYBODY).error_code == "listener_stalled"
                assert (await ending_of(client))[0] != ws_session.NORMAL

    asyncio.run(scene())


@pytest.mark.parametrize("first", [[], [{"type": "start", "text": "Hel"}]])
def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch, first: list[dict[str, str]]) -> None:
    monkeypatch.setattr("vivavoce.doors.http.websocket.IDLE_S", 0.05)

    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, *first)
            code, reason = await ending_of(client)
            assert code == ws_session.NORMAL
            assert "idle" in reason
            assert served.reception.visits == 0

    asyncio.run(scene())


def test_who_waits_for_audio_need_not_say_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.doors.http.websocket.IDLE_S", 1.0)

    async def scene() -> None:
        gate = asyncio.Event()
        async with serving(FakeSpeaker(gate=gate)) as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "Hello."}, {"type": "end"})
            await next_reply(client)
            await asyncio.sleep(1.5)  # longer than it may be idle
            gate.set()
            assert (await replies_until(client, "done"))[-1]["verdict"]["finish_reason"] == "stop"

    asyncio.run(scene())


def test_a_server_that_shuts_down_finishes_what_is_spoken_and_then_goes() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        async with serving(FakeSpeaker(gate=gate)) as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "Hello."}, {"type": "end"})
            await next_reply(client)
            draining = asyncio.create_task(served.reception.drain(LATE_S))
            await asyncio.sleep(0)
            gate.set()
            replies = await replies_until(client, "done")
            assert replies[-1]["verdict"]["finish_reason"] == "stop"
            assert (await ending_of(client))[0] == ws_session.GOING_AWAY
            await draining

    asyncio.run(scene())


def test_what_is_not_finished_when_the_server_must_go_says_so() -> None:
    async def scene() -> None:
        async with serving(FakeSpeaker(gate=asyncio.Event())) as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "Hello."}, {"type": "end"})
            await next_reply(client)
            await served.reception.drain(0.0)
            replies = await replies_until(client, "done")
            assert of_type(replies, "error")[0]["error"]["code"] == "engine_stopped"
            assert replies[-1]["verdict"]["finish_reason"] == "error"

    asyncio.run(scene())


def test_a_start_while_the_server_shuts_down_is_refused() -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await served.reception.drain(0.0)
            await send(client, {"type": "start"})
            replies = await replies_until(client, "done")
            assert of_type(replies, "error")[0]["error"]["code"] == "engine_stopped"
            assert (await ending_of(client))[0] == ws_session.GOING_AWAY

    asyncio.run(scene())


def test_a_defect_is_told_without_its_innards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ws_passage.Passage, "visit", broken)

    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "Hello."}, {"type": "end"})
            replies = await replies_until(client, "done")
            error = of_type(replies, "error")[0]["error"]
            assert error["code"] == "stage_failed"
            assert "secret" not in error["message"]
            assert served.reception.visits == 0

    asyncio.run(scene())


def test_a_defect_while_audio_is_sent_is_no_wish_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ws_utterance.Utterance, "_say_piece", broken)

    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "text", "text": "Hello."}, {"type": "end"})
            verdict = (await replies_until(client, "done"))[-1]["verdict"]
            assert verdict["error"]["code"] == "stage_failed"
            remembered = served.reception.ledger.get(verdict["request_id"], ANYBODY)
            assert (remembered.reason, remembered.error_code) == (FinishReason.ERROR, "stage_failed")

    asyncio.run(scene())


def test_a_message_that_is_too_large_ends_the_connection() -> None:
    async def scene() -> None:
        async with serving(max_body_bytes=65_536) as served, connect(served.address + STREAM) as client:
            await send(client, {"type": "start", "prompt_audio": "A" * 70_000})
            assert (await next_reply(client))["error"]["code"] == "too_large"
            assert (await ending_of(client))[0] == ws_session.TOO_BIG

    asyncio.run(scene())
