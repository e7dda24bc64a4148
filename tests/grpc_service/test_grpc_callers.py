"""Callers of the gRPC service who come too many, leave, do not read, or are sent away."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.grpc_service.calling import METHOD, TEXT, Caller, audio, calling, pairs, sft, spoken
from tests.server.fake_backend import FakeBackend
from vivavoce.errors import Overloaded
from vivavoce.frontend.speech import FinishReason, SpeechRequest
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.request_log import RequestRecord

SLOW = {"maxAttempts": 2, "initialBackoff": "600s", "maxBackoff": "600s", "backoffMultiplier": 1}
RETRIES = {
    "name": [{"service": "cosyvoice.CosyVoice"}],
    "retryPolicy": {**SLOW, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]},
}


def channel_with(*options: tuple[str, Any]) -> Callable[[str], grpc.aio.Channel]:
    return partial(grpc.aio.insecure_channel, options=options)


async def test_a_channel_that_retries_on_its_own_waits_as_long_as_it_is_told() -> None:
    class FullOnce(FakeBackend):
        async def speak(self, order: SpeechRequest) -> Any:
            stream = await super().speak(order)
            if len(self.orders) == 1:
                raise Overloaded("engine: is full; try again in 0.01 s", 0.01)
            return stream

    config = json.dumps({"methodConfig": [RETRIES]})
    async with calling(FullOnce(), connect=channel_with(("grpc.service_config", config))) as caller:
        assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)
    assert len(caller.speaker.orders) == 2


async def test_more_calls_than_max_conc_are_refused_at_once() -> None:
    gate = asyncio.Event()
    async with calling(FakeBackend(gate=gate), max_conc=1) as caller:
        first = caller.call(sft(TEXT))
        await first.initial_metadata()
        code, details, ending = await caller.refused(sft(TEXT))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details == "calls: 1 are being answered, which is the limit (max_conc); try again soon"
        assert (ending["error-code"], ending["retry-after-ms"]) == ("overloaded", "1000")
        value = caller.dispatcher.metrics.registry.get_sample_value
        assert value("vivavoce_streams_active") == 1
        assert value("vivavoce_refused_total", {"door": "grpc", "code": "overloaded"}) == 1
        gate.set()
        assert b"".join([audio(answer) async for answer in first]) == spoken(TEXT)
        assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)


async def test_a_caller_who_leaves_in_the_middle_frees_its_stream() -> None:
    gate = asyncio.Event()
    async with calling(FakeBackend(gate=gate), max_conc=1) as caller:
        call = caller.call(sft(TEXT), x_request_id="left-1")
        await call.initial_metadata()  # it was taken in, and the first piece is awaited
        call.cancel()
        (stream,) = caller.speaker.streams
        await stream.cancelled.wait()
        gate.set()
        assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)  # there is room for one again
    entry = caller.dispatcher.request_log.get("left-1", ANONYMOUS)
    assert (entry.reason, entry.audio_s) == (FinishReason.CANCELLED, 0.0)


SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0))
"""A client that takes little more than it reads."""


async def test_a_caller_who_does_not_read_is_ended_and_nothing_piles_up() -> None:
    long = "Never heard to its end, " * 800
    async with calling(max_conc=1, listener_timeout_s=0.3, connect=channel_with(*SMALL_WINDOW)) as caller:
        call = caller.call(sft(long), x_request_id="slow-1")
        first = audio(await call.read())
        (stream,) = caller.speaker.streams
        await stream.cancelled.wait()
        entry = caller.dispatcher.request_log.get("slow-1", ANONYMOUS)
        assert (entry.reason, entry.error_code) == (FinishReason.ERROR, "listener_stalled")
        assert entry.audio_s * 48_000 < 500_000  # of 9 million bytes
        assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)  # its place is free, though it goes on
        heard = [first]
        with suppress(grpc.aio.AioRpcError):
            while (answer := await call.read()) is not grpc.aio.EOF:
                heard.append(audio(answer))
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "has not read its audio for 0.3 s" in await call.details()
        assert spoken(long).startswith(b"".join(heard))


async def test_a_call_belongs_to_its_callers_trace() -> None:
    records: list[RequestRecord] = []
    async with calling(observers=[records.append]) as caller:
        await caller.hear(sft(TEXT), x_request_id="traced-1", traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    (scope,) = (record.scope for record in records)
    assert scope is not None
    assert (scope.request_id, scope.trace_id) == ("traced-1", "ab" * 16)


async def test_a_failure_in_the_middle_is_no_whole_answer() -> None:
    async with calling(FakeBackend(fails_after=2)) as caller:
        call = caller.call(sft(TEXT))
        heard = [audio(await call.read()), audio(await call.read())]
        with pytest.raises(grpc.aio.AioRpcError, match="engine: it broke") as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert spoken(TEXT).startswith(b"".join(heard))


async def test_a_server_that_shuts_down_cuts_nobody_off_silently() -> None:
    async with calling(FakeBackend(gate=asyncio.Event())) as caller:
        call = caller.call(sft(TEXT))
        await call.initial_metadata()
        await caller.dispatcher.drain(0.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "it shuts down" in await call.details()
        assert (await caller.refused(sft(TEXT)))[0] is grpc.StatusCode.UNAVAILABLE


async def test_stopping_ends_calls_that_go_on() -> None:
    async with calling(FakeBackend(gate=asyncio.Event())) as caller:
        call = caller.call(sft(TEXT))
        await call.initial_metadata()
        await caller.server.stop(0.0)
        (stream,) = caller.speaker.streams
        await stream.cancelled.wait()
        assert await call.code() is not grpc.StatusCode.OK


HEALTH = "/grpc.health.v1.Health/Check"


def unsent(channel: grpc.aio.Channel, method: str = METHOD, **metadata: str) -> Any:
    """A call whose message never comes."""
    sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    return channel.stream_stream(method)(metadata=sent)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Code, message and stable code of a call that fails, if it does soon."""
    code = await asyncio.wait_for(call.code(), 20)
    return code, await call.details(), pairs(await call.trailing_metadata()).get("error-code", "")


@pytest.mark.parametrize("key", [{}, {"x_api_key": "wrong"}])
async def test_without_a_key_a_message_is_not_waited_for(tmp_path: Path, key: dict[str, str]) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, new_entry(new_key(), "berta"))
    async with calling(keys=KeyRing(path)) as caller:
        code, _, stable = await status_of(unsent(caller.channel, **key))
    assert (code, stable) == (grpc.StatusCode.UNAUTHENTICATED, "unauthorized")


async def test_a_message_has_to_come_in_time() -> None:
    async with calling(max_conc=1, request_timeout_s=0.2) as caller:
        for method in (METHOD, HEALTH):
            code, details, _ = await status_of(unsent(caller.channel, method))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert details == "request: did not come within 0.2 s; send it as soon as the call is open"
        assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)
        value = caller.dispatcher.metrics.registry.get_sample_value
        assert value("vivavoce_refused_total", {"door": "grpc", "code": "deadline_exceeded"}) == 1


def own_channel(caller: Caller) -> grpc.aio.Channel:
    """A channel that shares no connection with others."""
    return channel_with(("grpc.use_local_subchannel_pool", 1))(f"127.0.0.1:{caller.port}")


async def until_refused(channel: grpc.aio.Channel) -> tuple[grpc.StatusCode, str, str]:
    """What becomes of an empty message once all places are taken; before, it is read."""
    for _ in range(1_000):
        if (found := await status_of(channel.unary_stream(METHOD)(b"")))[0] is not grpc.StatusCode.INVALID_ARGUMENT:
            break
    return found


async def test_messages_that_do_not_come_have_few_places_and_health_is_told_nevertheless() -> None:
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(calling(max_conc=1))
        *crowds, other = [await stack.enter_async_context(own_channel(caller)) for _ in range(3)]
        for method, crowd in zip((METHOD, HEALTH), crowds, strict=True):
            waiting = [unsent(crowd, method) for _ in range(8)]
            await asyncio.gather(*(call.wait_for_connection() for call in waiting))
            for _ in range(3):
                assert await asyncio.wait_for(other.unary_unary(HEALTH)(b""), 20) == b"\x08\x01"
        code, details, stable = await until_refused(other)
        assert (code, stable) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded")
        assert details == "calls: the server reads 8 of yours, which is the limit; try again soon"


async def announced(port: int) -> dict[int, int]:
    """The settings of HTTP/2 that a server begins a connection with, by their numbers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    writer.close()
    assert head[3] == 4
    return dict(struct.iter_unpack(">HI", payload))


@pytest.mark.parametrize(("max_conc", "streams"), [(1, 8), (6, 12)])
async def test_a_connection_has_few_calls_that_send_little_before_they_are_read(max_conc: int, streams: int) -> None:
    async with calling(max_conc=max_conc) as caller:
        settings = await announced(caller.port)
    assert (settings[3], settings[4]) == (streams, 65_536)


async def test_connections_that_say_nothing_are_few_and_end() -> None:
    async with calling(max_connections=2, request_timeout_s=1.0) as caller:
        three = [await asyncio.open_connection("127.0.0.1", caller.port) for _ in range(3)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in three]
        done, _ = await asyncio.wait(ended, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert done == {ended[2]}  # at once: there were two
        await asyncio.wait_for(asyncio.gather(*ended), 20)
        for _, writer in three:
            writer.close()


async def test_a_connection_without_calls_ends() -> None:
    async with calling(keep_alive_s=1) as caller:
        assert await caller.hear(sft(TEXT))
        state = caller.channel.get_state()
        while state is grpc.ChannelConnectivity.READY:
            await asyncio.wait_for(caller.channel.wait_for_state_change(state), 20)
            state = caller.channel.get_state()
        assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)  # clients connect again by themselves


async def test_a_call_is_given_up_at_its_deadline() -> None:
    async with calling(FakeBackend(gate=asyncio.Event())) as caller:
        metadata = (("x-request-id", "late-1"),)
        call = caller.channel.unary_stream(METHOD)(sft(TEXT), metadata=metadata, timeout=0.5)
        assert (await status_of(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        (stream,) = caller.speaker.streams
        await asyncio.wait_for(stream.cancelled.wait(), 20)
        entry = caller.dispatcher.request_log.get("late-1", ANONYMOUS)
    assert (entry.reason, entry.error_code) == (FinishReason.ERROR, "deadline_exceeded")


async def test_two_callers_may_choose_the_same_id(tmp_path: Path) -> None:
    path, keys = tmp_path / "keys.toml", {name: new_key() for name in ("anna", "berta")}
    for name, key in keys.items():
        add_key(path, new_entry(key, name))
    async with calling(keys=KeyRing(path)) as caller:
        told = []
        for key in (*keys.values(), keys["anna"]):
            call = caller.call(sft(TEXT), x_request_id="greeting", x_api_key=key)
            assert [answer async for answer in call]
            told.append(pairs(await call.initial_metadata())["x-request-id"])
    assert told[:2] == ["greeting", "greeting"]
    assert told[2].startswith("req_")  # its own is taken
