"""Where requests come in: a drain waits for all that came before it, and defects are told apart from cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.entrypoints.fake_speaker import FakeSpeaker, FakeStream
from vivavoce.errors import EngineStopped
from vivavoce.service.operations.dispatcher import ActiveRequest, RequestDispatcher
from vivavoce.service.operations.rate_limiter import ANONYMOUS
from vivavoce.service.speech import FinishReason, SegmentText, SpeechEvent, SpeechRequest

HELLO = SpeechRequest("Hello.", "anna")


@dataclass
class SlowToTake(FakeSpeaker):
    """Takes requests when it may."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_take: asyncio.Event = field(default_factory=asyncio.Event)

    async def speak(self, order: SpeechRequest) -> FakeStream:
        self.asked.set()
        await self.may_take.wait()
        return await super().speak(order)


async def reason_of(active: ActiveRequest) -> FinishReason | None:
    async with active:
        async for _ in active:
            pass
    return None if active.verdict is None else active.verdict.reason


@pytest.mark.parametrize("refused", [False, True])
async def test_a_drain_waits_for_a_request_that_is_not_taken_yet(refused: bool) -> None:
    speaker = SlowToTake(refuses_with=EngineStopped("engine: it broke") if refused else None)
    dispatcher = RequestDispatcher(speaker)
    coming = asyncio.create_task(dispatcher.speak(ANONYMOUS, HELLO, door="http", request_id="r"))
    await speaker.asked.wait()
    draining = asyncio.create_task(dispatcher.drain(60.0))
    for _ in range(5):
        await asyncio.sleep(0)  # a drain that does not wait ends in these turns of the loop
    assert not draining.done()
    with pytest.raises(EngineStopped, match="shutting down"):
        await dispatcher.speak(ANONYMOUS, HELLO, door="http", request_id="late")
    speaker.may_take.set()
    if refused:
        with pytest.raises(EngineStopped, match="it broke"):
            await coming
    else:
        active = await coming
        assert not draining.done()
        assert await reason_of(active) is FinishReason.STOP
    await asyncio.wait_for(draining, 10)


async def test_a_request_that_leaves_before_it_is_taken_holds_no_drain_up() -> None:
    speaker = SlowToTake()
    dispatcher = RequestDispatcher(speaker)
    coming = asyncio.create_task(dispatcher.speak(ANONYMOUS, HELLO, door="http", request_id="r"))
    await speaker.asked.wait()
    coming.cancel()
    await asyncio.wait({coming})
    await asyncio.wait_for(dispatcher.drain(60.0), 10)


async def test_an_unexpected_failure_is_not_a_cancellation() -> None:
    """Neither before a request is taken nor after, or an operator would look for impatient clients."""

    class Defective(FakeSpeaker):
        async def speak(self, order: SpeechRequest) -> FakeStream:
            if not order.voice:
                raise KeyError("a defect")
            return DefectiveStream(order, None)

    class DefectiveStream(FakeStream):
        async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
            yield SegmentText(0, 0, 1)
            raise KeyError("a defect")

    dispatcher = RequestDispatcher(Defective())
    with pytest.raises(KeyError):
        await dispatcher.speak(ANONYMOUS, SpeechRequest("Hello."), door="http", request_id="a")
    active = await dispatcher.speak(ANONYMOUS, HELLO, door="http", request_id="b")
    with pytest.raises(KeyError):
        await reason_of(active)
    for request_id in "ab":
        record = dispatcher.request_log.get(request_id, ANONYMOUS)
        assert (record.reason, record.error_code) == (FinishReason.ERROR, "stage_failed")
        assert "KeyError" in str(record.error)
        assert "a defect" not in str(record.error)
    assert dispatcher.active == 0


async def test_late_audio_is_an_underrun_and_audio_in_time_is_not() -> None:
    """Pieces of 0.1 s; the second comes in time, the third 0.7 s after its listener had played all."""
    moments = iter([0.0, 0.1, 0.5, 0.55, 1.4, 2.0])

    dispatcher = RequestDispatcher(FakeSpeaker(), clock=lambda: next(moments))
    active = await dispatcher.speak(ANONYMOUS, SpeechRequest("a" * 30 + "."), door="http", request_id="r")
    pieces = 0
    async for event in active:
        pieces += not isinstance(event, SegmentText)
        if pieces == 3:
            break
    active.cancel()
    value = dispatcher.metrics.registry.get_sample_value
    assert (value("vivavoce_gap_seconds_count"), value("vivavoce_underruns_total")) == (2, 1)
    assert value("vivavoce_late_seconds_sum") == pytest.approx(0.7)
    assert value("vivavoce_first_audio_seconds_sum", {"door": "http"}) == 0.5
    assert value("vivavoce_audio_seconds_total") == pytest.approx(0.2)
