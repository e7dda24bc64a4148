"""Callers of the gRPC service who come too many, leave, do not read, or are sent away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.entrypoints.fake_speaker import FakeSpeaker
from tests.entrypoints.grpc.calling import TEXT, audio, calling, sft, spoken
from vivavoce.errors import Overloaded
from vivavoce.service.operations.rate_limiter import ANONYMOUS
from vivavoce.service.operations.request_log import RequestRecord
from vivavoce.service.speech import FinishReason, SpeechRequest

SLOW = {"maxAttempts": 2, "initialBackoff": "600s", "maxBackoff": "600s", "backoffMultiplier": 1}
RETRIES = {
    "name": [{"service": "cosyvoice.CosyVoice"}],
    "retryPolicy": {**SLOW, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]},
}


def channel_with(*options: tuple[str, Any]) -> Callable[[str], grpc.aio.Channel]:
    return partial(grpc.aio.insecure_channel, options=options)


async def test_a_channel_that_retries_on_its_own_waits_as_long_as_it_is_told() -> None:
    class FullOnce(FakeSpeaker):
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
    async with calling(FakeSpeaker(gate=gate), max_conc=1) as caller:
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
    async with calling(FakeSpeaker(gate=gate), max_conc=1) as caller:
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
    async with calling(FakeSpeaker(fails_after=2)) as caller:
        call = caller.call(sft(TEXT))
        heard = [audio(await call.read()), audio(await call.read())]
        with pytest.raises(grpc.aio.AioRpcError, match="engine: it broke") as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert spoken(TEXT).startswith(b"".join(heard))


async def test_a_server_that_shuts_down_cuts_nobody_off_silently() -> None:
    async with calling(FakeSpeaker(gate=asyncio.Event())) as caller:
        call = caller.call(sft(TEXT))
        await call.initial_metadata()
        await caller.dispatcher.drain(0.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "it shuts down" in await call.details()
        assert (await caller.refused(sft(TEXT)))[0] is grpc.StatusCode.UNAVAILABLE


async def test_stopping_ends_calls_that_go_on() -> None:
    async with calling(FakeSpeaker(gate=asyncio.Event())) as caller:
        call = caller.call(sft(TEXT))
        await call.initial_metadata()
        await caller.server.stop(0.0)
        (stream,) = caller.speaker.streams
        await stream.cancelled.wait()
        assert await call.code() is not grpc.StatusCode.OK
