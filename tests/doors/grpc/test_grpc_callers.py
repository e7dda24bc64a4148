"""Callers of the gRPC service who come too many, leave, do not read, or are sent away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.grpc.calling import METHOD, TEXT, Office, audio, run, sft, spoken
from vivavoce.errors import Overloaded
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.callers import ANYBODY
from vivavoce.service.operations.ledger import Entry, Ledger
from vivavoce.service.operations.scope import RequestScope, current_scope

RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "cosyvoice.CosyVoice"}],
            "retryPolicy": {
                "maxAttempts": 2,
                "initialBackoff": "600s",
                "maxBackoff": "600s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


def test_a_channel_that_retries_on_its_own_waits_as_long_as_it_is_told() -> None:
    class FullOnce(FakeSpeaker):
        async def speak(self, order: SpeechOrder) -> Any:
            stream = await super().speak(order)
            if len(self.orders) == 1:
                raise Overloaded("engine: is full; try again in 0.01 s", 0.01)
            return stream

    async def work() -> None:
        office = Office(FullOnce())
        async with office.called((("grpc.service_config", json.dumps(RETRIES)),)) as caller:
            assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)
        assert len(office.speaker.orders) == 2

    run(work())


def test_in_the_loop_that_servers_run_in() -> None:
    async def work() -> None:
        gate = asyncio.Event()
        office = Office(FakeSpeaker(gate=gate))
        async with office.called() as caller:
            call = caller.call(sft(TEXT))
            await call.initial_metadata()
            call.cancel()
            await office.speaker.streams[0].cancelled.wait()
            gate.set()
            assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)

    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(work(), 60))
    finally:
        loop.close()


def test_more_calls_than_max_conc_are_refused_at_once() -> None:
    async def work() -> None:
        gate = asyncio.Event()
        async with Office(FakeSpeaker(gate=gate), max_conc=1).called() as caller:
            first = caller.call(sft(TEXT))
            await first.initial_metadata()
            code, details, ending = await caller.refused(sft(TEXT))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details == "calls: 1 are being answered, which is the limit (max_conc); try again soon"
            assert (ending["error-code"], ending["retry-after-ms"]) == ("overloaded", "1000")
            (door,) = caller.desk.reception.meters.snapshot().doors
            assert (door.active, door.refused) == (1, {"overloaded": 1})
            gate.set()
            assert b"".join([audio(answer) async for answer in first]) == spoken(TEXT)
            assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)

    run(work())


def test_a_caller_who_leaves_in_the_middle_frees_its_stream() -> None:
    async def work() -> None:
        gate = asyncio.Event()
        office = Office(FakeSpeaker(gate=gate), max_conc=1)
        async with office.called() as caller:
            call = caller.call(sft(TEXT), x_request_id="left-1")
            await call.initial_metadata()  # it was taken in, and the first piece is awaited
            call.cancel()
            (stream,) = office.speaker.streams
            await stream.cancelled.wait()
            gate.set()
            assert b"".join(await caller.hear(sft(TEXT))) == spoken(TEXT)  # there is room for one again
        entry = office.ledger.get("left-1", ANYBODY)
        assert (entry.reason, entry.audio_s) == (FinishReason.CANCELLED, 0.0)

    run(work())


SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0))
"""A client that takes little more than it reads."""


def test_a_caller_who_does_not_read_is_ended_and_nothing_piles_up() -> None:
    async def work() -> None:
        long = "Never heard to its end, " * 800
        office = Office(max_conc=1, options={"listener_timeout_s": 0.3})
        async with office.called(SMALL_WINDOW) as caller:
            call = caller.call(sft(long), x_request_id="slow-1")
            first = audio(await call.read())
            (stream,) = office.speaker.streams
            await stream.cancelled.wait()
            entry = office.ledger.get("slow-1", ANYBODY)
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

    run(work())


def test_a_call_belongs_to_its_callers_trace() -> None:
    scopes: list[RequestScope | None] = []

    def watch(entry: Entry) -> Callable[[Entry], None]:
        scopes.append(current_scope())
        return lambda _: None

    async def work() -> None:
        async with Office(ledger=Ledger(watchers=[watch])).called() as caller:
            await caller.hear(sft(TEXT), x_request_id="traced-1", traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")

    run(work())
    (scope,) = scopes
    assert scope is not None
    assert (scope.request_id, scope.trace_id) == ("traced-1", "ab" * 16)


def test_a_failure_in_the_middle_is_no_whole_answer() -> None:
    async def work() -> None:
        async with Office(FakeSpeaker(fails_after=2)).called() as caller:
            call = caller.call(sft(TEXT))
            heard = [audio(await call.read()), audio(await call.read())]
            with pytest.raises(grpc.aio.AioRpcError, match="engine: it broke") as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert spoken(TEXT).startswith(b"".join(heard))

    run(work())


def test_a_server_that_shuts_down_cuts_nobody_off_silently() -> None:
    async def work() -> None:
        async with Office(FakeSpeaker(gate=asyncio.Event())).called() as caller:
            call = caller.call(sft(TEXT))
            await call.initial_metadata()
            await caller.desk.reception.drain(0.0)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert "it shuts down" in await call.details()
            assert (await caller.refused(sft(TEXT)))[0] is grpc.StatusCode.UNAVAILABLE

    run(work())


def test_stopping_ends_calls_that_go_on() -> None:
    async def work() -> None:
        office = Office(FakeSpeaker(gate=asyncio.Event()))
        async with office.open() as (_, server), grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_stream(METHOD)(sft(TEXT))
            await call.initial_metadata()
            await server.stop(0.0)
            (stream,) = office.speaker.streams
            await stream.cancelled.wait()
            assert await call.code() is not grpc.StatusCode.OK

    run(work())
