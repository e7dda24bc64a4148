"""WebSocket listeners who interrupt, leave, stop reading, say nothing, or send more than there is room for."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from tests.server.certificates import certified, needs_openssl
from tests.server.fake_backend import FakeBackend, FakeStream
from tests.server.http.websocket_serving import (
    CANCEL,
    END,
    FLUSH,
    LATE_S,
    PING,
    FakeKeys,
    Served,
    answered,
    audio_of,
    connected,
    ending_of,
    errors_of,
    next_reply,
    of_type,
    replies_until,
    send,
    serving,
    start,
    text,
)
from vivavoce.frontend.audio.encode import Encoder
from vivavoce.frontend.speech import FinishReason
from vivavoce.server.http import ws_session
from vivavoce.server.http.listener import BODIES_AT_ONCE, SMALL_BYTES


@pytest.mark.parametrize("messages", [[], [start(text="Hello."), END]], ids=["nothing", "no audio yet"])
async def test_a_cancel_before_any_audio_frees_the_stream(messages: list[dict[str, Any]]) -> None:
    speaker = FakeBackend(gate=asyncio.Event())
    async with connected(speaker) as (client, served):
        request_id = (await answered(client, *messages, until="started"))[0]["request_id"] if messages else None
        nothing = {"type": "cancelled", "request_id": request_id, "audio_seconds": 0.0, "reached": None}
        assert await answered(client, CANCEL, until="cancelled") == [nothing]
        assert all(stream.cancelled.is_set() for stream in speaker.streams)
        assert served.dispatcher.active == 0
        if request_id is not None:
            assert served.record(request_id).reason is FinishReason.CANCELLED


async def test_a_cancel_in_the_middle_of_audio_is_the_last_of_it_and_says_how_far_it_came() -> None:
    async with serving() as served, served.connect(max_queue=4) as client:
        await send(client, start(text="First. " + "a" * 19_000 + "."), FLUSH, text("More."))
        heard = [await next_reply(client) for _ in range(20)]
        heard += await answered(client, CANCEL, until="cancelled")
        assert await answered(client, PING, until="pong") == [{"type": "pong"}]
        seconds = heard[-1]["audio_seconds"]
        assert len(audio_of(heard)) == round(seconds * 48_000)
        assert seconds < 190
        assert heard[-1]["reached"] == {"segment": 1, "from_character": 7, "to_character": 19_008}
        assert not of_type(heard, "done")
        assert all(stream.cancelled.is_set() for stream in served.speaker.streams)
        assert served.dispatcher.active == 0
        after = await answered(client, text("A straggler."), END, start(text="Yes."), END)
        assert after[0]["type"] == "started"
        assert len(audio_of(after)) == 4 * 480


async def test_who_leaves_frees_the_stream() -> None:
    speaker = FakeBackend(gate=asyncio.Event())
    async with serving(speaker) as served:
        async with served.connect() as client:
            await answered(client, start(text="Hello."), until="started")
            client.transport.abort()
        await asyncio.wait_for(speaker.streams[0].cancelled.wait(), LATE_S)
        await served.dispatcher.drain(LATE_S)
        assert served.dispatcher.active == 0


async def narrow(port: int) -> socket.socket:
    """A connection whose end here takes little before it is read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made


async def test_who_does_not_read_is_ended() -> None:
    async with (
        serving(listener_timeout_s=0.2) as served,
        served.connect(sock=await narrow(served.port), max_queue=1) as client,
    ):
        request_id = (await answered(client, start(text="a" * 20_000), until="started"))[0]["request_id"]
        await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        assert served.record(request_id).error_code == "listener_stalled"
        assert (await ending_of(client))[0] != ws_session.NORMAL


@pytest.mark.parametrize("first", [[], [start(text="Hel")]], ids=["nothing", "a beginning"])
async def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch, first: list[dict[str, str]]) -> None:
    monkeypatch.setattr(ws_session, "IDLE_S", 0.05)
    async with connected() as (client, served):
        await send(client, *first)
        code, reason = await ending_of(client)
        assert code == ws_session.NORMAL
        assert "idle" in reason
        assert served.dispatcher.active == 0


async def test_who_says_nothing_after_a_flush_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_session, "IDLE_S", 0.3)
    async with connected() as (client, served):
        assert audio_of(await answered(client, text("Hi there friend."), FLUSH, until="flushed"))
        code, reason = await asyncio.wait_for(ending_of(client), LATE_S)
        assert (code, reason) == (ws_session.NORMAL, "idle: no text came for 0.3 s; send end when all of it has come")
        assert served.dispatcher.active == 0


async def test_who_opens_an_utterance_and_brings_no_text_may_not_stay_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_session, "IDLE_S", 0.3)
    async with connected() as (client, served):
        await answered(client, start(), until="started")

        async def ping_on() -> None:
            while True:
                await send(client, PING, FLUSH, text(""))
                await asyncio.sleep(0.01)

        pinging = asyncio.create_task(ping_on())
        code, reason = await asyncio.wait_for(ending_of(client), LATE_S)
        pinging.cancel()
        await asyncio.wait({pinging})
        assert (code, reason) == (ws_session.NORMAL, "idle: no text came for 0.3 s; send end when all of it has come")
        assert served.dispatcher.active == 0


@pytest.mark.parametrize(("last", "reply"), [(END, "done"), (FLUSH, "flushed")])
async def test_who_waits_for_audio_need_not_say_anything(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, str], reply: str
) -> None:
    monkeypatch.setattr(ws_session, "IDLE_S", 1.0)
    gate = asyncio.Event()
    async with connected(FakeBackend(gate=gate)) as (client, _):
        await answered(client, text("Hello."), last, until="started")
        await asyncio.sleep(1.5)  # longer than it may be idle
        gate.set()
        assert len(audio_of(await replies_until(client, reply))) == 6 * 480


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_server_that_shuts_down_finishes_what_is_spoken_in_time_and_then_goes(in_time: bool) -> None:
    gate = asyncio.Event()
    async with connected(FakeBackend(gate=gate)) as (client, served):
        await answered(client, text("Hello."), END, until="started")
        draining = asyncio.create_task(served.dispatcher.drain(LATE_S if in_time else 0.0))
        await asyncio.sleep(0)
        if in_time:
            gate.set()
        replies = await replies_until(client, "done")
        assert errors_of(replies) == ([] if in_time else ["engine_stopped"])
        assert replies[-1]["verdict"]["finish_reason"] == ("stop" if in_time else "error")
        assert (await ending_of(client))[0] == ws_session.GOING_AWAY
        await draining


async def test_a_start_while_the_server_shuts_down_is_refused() -> None:
    async with connected() as (client, served):
        await served.dispatcher.drain(0.0)
        assert errors_of(await answered(client, start())) == ["engine_stopped"]
        assert (await ending_of(client))[0] == ws_session.GOING_AWAY


@pytest.mark.parametrize(("owner", "method"), [(FakeBackend, "speak"), (FakeStream, "push"), (Encoder, "encode")])
async def test_a_defect_is_told_as_the_servers_without_its_innards(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(owner, method, broken)
    async with connected() as (client, served):
        replies = await answered(client, text("Hello."), END)
        verdict = replies[-1]["verdict"]
        assert errors_of(replies) == [verdict["error"]["code"]] == ["stage_failed"]
        assert "secret" not in str(replies)
        remembered = served.record(verdict["request_id"])
        assert (remembered.reason, remembered.error_code) == (FinishReason.ERROR, "stage_failed")
        assert served.dispatcher.active == 0


async def test_a_message_that_is_too_large_ends_the_connection() -> None:
    async with connected(max_body_bytes=65_536) as (client, _):
        assert errors_of(await answered(client, start(prompt_audio="A" * 70_000), until="error")) == ["too_large"]
        assert (await ending_of(client))[0] == ws_session.TOO_BIG


LIMIT = 1 << 20


def framed(content: bytes) -> bytes:
    return Frame(Opcode.TEXT, content).serialize(mask=True)


def ping(length: int) -> bytes:
    """A message of so many bytes, framed."""
    return framed(json.dumps(PING).encode().ljust(length))


LONG = ping(LIMIT)
BEGINNING, REST = LONG[: LIMIT - 1], LONG[LIMIT - 1 :]


async def filled(served: Served, stack: AsyncExitStack) -> list[ClientConnection]:
    """As many clients as there is room for have sent a message of which the end is missing; and one more."""
    *clients, further = [await stack.enter_async_context(served.connect()) for _ in range(BODIES_AT_ONCE + 1)]
    for client in clients:
        client.transport.write(BEGINNING)
    while sum(each.waiting for each in served.listener.connections) < len(BEGINNING) * len(clients):
        await asyncio.sleep(0)
    return [*clients, further]


async def test_long_messages_have_so_much_room_together_before_there_is_a_key() -> None:
    async with serving(max_body_bytes=LIMIT, keys=FakeKeys()) as served, AsyncExitStack() as stack:
        *clients, late = await filled(served, stack)
        late.transport.write(ping(2 * SMALL_BYTES))
        code, reason = await ending_of(late)
        assert (code, reason.partition(";")[0]) == (1013, "more is being sent to this server than it holds")
        for client in clients:
            client.transport.abort()


async def test_who_has_a_place_keeps_it_and_short_messages_always_have_one() -> None:
    async with serving(max_body_bytes=LIMIT) as served, AsyncExitStack() as stack:
        *clients, short = await filled(served, stack)
        assert (await answered(short, start(), text("Hello."), END))[-1]["verdict"]["finish_reason"] == "stop"
        for client in clients:
            client.transport.write(REST)
            assert (await next_reply(client))["type"] == "pong"
        short.transport.write(LONG)  # room is free again
        assert (await next_reply(short))["type"] == "pong"


async def until_unread(served: Served) -> None:
    """Wait until what the server has to send does not become less."""
    sizes = [0]
    while sizes[-1] == 0 or sizes[-1000:] != sizes[-1:] * 1000:
        await asyncio.sleep(0)
        sizes.append(sum(each.get_write_buffer_size() for each in served.listener.connections))


async def test_who_stops_writing_has_left_even_if_it_does_not_read() -> None:
    async with serving() as served, served.connect(sock=await narrow(served.port)) as client:
        client.transport.pause_reading()
        await send(client, start(text="A long sentence, spoken again. " * 640), END)
        await until_unread(served)
        client.transport.write_eof()
        await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        client.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("last", [[], [PING], [CANCEL], [text("More.")]])
async def test_who_leaves_while_audio_is_stuck_is_no_defect(
    caplog: pytest.LogCaptureFixture, last: list[dict[str, str]]
) -> None:
    """What nobody looked at asyncio tells when it is collected."""
    async with serving() as served, served.connect(sock=await narrow(served.port)) as client:
        client.transport.pause_reading()
        await send(client, start(text="A long sentence, spoken again. " * 640))
        await until_unread(served)
        await send(client, *last)
        for _ in range(1_000):
            await asyncio.sleep(0)
        client.transport.abort()
        await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        await served.dispatcher.drain(LATE_S)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@needs_openssl
async def test_who_leaves_a_tls_connection_without_a_word_is_no_defect(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    files = certified(tmp_path)
    context = ssl.create_default_context(cafile=files["tls_certificate"])
    async with serving(**files) as served:
        address = f"wss://127.0.0.1:{served.port}/v1/audio/stream"
        async with connect(address, ssl=context) as client:
            await send(client, start(text="A long sentence, spoken again. " * 640))
            assert (await next_reply(client))["type"] == "started"
            client.transport.abort()
            await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        await served.dispatcher.drain(LATE_S)
        while served.listener.connections:
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_text_that_is_none_is_told_and_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (client, _):
        client.transport.write(framed(b'{"type": "ping"}\xe9'))
        assert (await ending_of(client))[0] == 1007
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
