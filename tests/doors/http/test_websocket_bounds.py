"""WebSockets that send more than there is room for, or leave half."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from tests.doors.http.websocket_serving import (
    LATE_S,
    FakeKeys,
    Served,
    ending_of,
    next_reply,
    replies_until,
    send,
    serving,
)
from vivavoce.doors.http.bodies import BODIES_AT_ONCE
from vivavoce.doors.http.ws_protocol import SMALL_BYTES

STREAM = "/v1/audio/stream"
LIMIT = 1 << 20


def ping(length: int) -> bytes:
    """A message of so many bytes, framed."""
    return Frame(Opcode.TEXT, json.dumps({"type": "ping"}).encode().ljust(length)).serialize(mask=True)


LONG = ping(LIMIT)
BEGINNING, REST = LONG[: LIMIT - 1], LONG[LIMIT - 1 :]


async def opened(served: Served, stack: AsyncExitStack) -> ClientConnection:
    return await stack.enter_async_context(connect(served.address + STREAM))


async def filled(served: Served, stack: AsyncExitStack) -> list[ClientConnection]:
    """As many clients as there is room for have sent a message of which the end is missing."""
    clients = [await opened(served, stack) for _ in range(BODIES_AT_ONCE)]
    for client in clients:
        client.transport.write(BEGINNING)
    while sum(each._waiting for each in served.listener._server.server_state.connections) < len(BEGINNING) * len(
        clients
    ):
        await asyncio.sleep(0)
    return clients


def test_long_messages_have_so_much_room_together_before_there_is_a_key() -> None:
    async def scene() -> None:
        async with serving(max_body_bytes=LIMIT, keys=FakeKeys(required=True)) as served, AsyncExitStack() as stack:
            clients = await filled(served, stack)
            late = await opened(served, stack)
            late.transport.write(ping(2 * SMALL_BYTES))
            code, reason = await ending_of(late)
            assert (code, reason.partition(";")[0]) == (1013, "more is being sent to this server than it holds")
            for client in clients:
                client.transport.abort()

    asyncio.run(scene())


def test_who_has_a_place_keeps_it_and_short_messages_always_have_one() -> None:
    async def scene() -> None:
        async with serving(max_body_bytes=LIMIT) as served, AsyncExitStack() as stack:
            clients = await filled(served, stack)
            short = await opened(served, stack)
            await send(short, {"type": "start"}, {"type": "text", "text": "Hello."}, {"type": "end"})
            assert (await replies_until(short, "done"))[-1]["verdict"]["finish_reason"] == "stop"
            for client in clients:
                client.transport.write(REST)
                assert (await next_reply(client))["type"] == "pong"
            after = await opened(served, stack)  # room is free again
            after.transport.write(LONG)
            assert (await next_reply(after))["type"] == "pong"

    asyncio.run(scene())


def small_window(port: int) -> socket.socket:
    """A connection whose end here takes little before it is read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.connect(("127.0.0.1", port))
    return made


async def until_unread(served: Served) -> None:
    """Wait until what the server has to send does not become less."""
    sizes = [0]
    while sizes[-1] == 0 or sizes[-1000:] != sizes[-1:] * 1000:
        await asyncio.sleep(0)
        connections = served.listener._server.server_state.connections
        sizes.append(sum(each.transport.get_write_buffer_size() for each in connections))


def test_who_stops_writing_has_left_even_if_it_does_not_read() -> None:
    async def scene() -> None:
        async with serving() as served:
            window = small_window(served.port)
            async with connect(served.address + STREAM, sock=window) as client:
                client.transport.pause_reading()
                text = "A long sentence, spoken again. " * 640
                await send(client, {"type": "start", "text": text}, {"type": "end"})
                await until_unread(served)
                client.transport.write_eof()
                await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
                client.transport.abort()

    asyncio.run(scene())


def test_text_that_is_none_is_told_and_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with serving() as served, connect(served.address + STREAM) as client:
            client.transport.write(Frame(Opcode.TEXT, b'{"type": "ping"}\xe9').serialize(mask=True))
            code, reason = await ending_of(client)
            assert (code, reason.partition(";")[0]) == (1007, "message: it is no UTF-8")

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
