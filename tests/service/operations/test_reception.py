"""Where requests come in: an end that waits for all that came before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.doors.fake_speaker import FakeSpeaker, FakeStream
from vivavoce.errors import EngineStopped
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.speaker import SegmentText, SpeechEvent
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.callers import ANYBODY
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception, Visit

HELLO = SpeechOrder("Hello.", "anna")


@dataclass
class SlowToTake(FakeSpeaker):
    """Takes requests when it may."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_take: asyncio.Event = field(default_factory=asyncio.Event)

    async def speak(self, order: SpeechOrder) -> FakeStream:
        self.asked.set()
        await self.may_take.wait()
        return await super().speak(order)


def reception_of(speaker: FakeSpeaker) -> Reception:
    return Reception(speaker, ledger=Ledger(), meters=Meters(), allowances=Allowances())


async def heard(visit: Visit) -> FinishReason | None:
    async with visit:
        async for _ in visit:
            pass
    return None if visit.verdict is None else visit.verdict.reason


@pytest.mark.parametrize("refused", [False, True])
def test_a_drain_waits_for_a_request_that_is_not_taken_yet(refused: bool) -> None:
    async def work() -> None:
        speaker = SlowToTake(refuses_with=EngineStopped("engine: it broke") if refused else None)
        reception = reception_of(speaker)
        coming = asyncio.create_task(reception.speak(ANYBODY, HELLO, door="http", request_id="r"))
        await speaker.asked.wait()
        draining = asyncio.create_task(reception.drain(60.0))
        for _ in range(5):
            await asyncio.sleep(0)  # one that does not wait ends in these turns of the loop
        assert not draining.done()
        with pytest.raises(EngineStopped, match="shutting down"):
            await reception.speak(ANYBODY, HELLO, door="http", request_id="late")
        speaker.may_take.set()
        if refused:
            with pytest.raises(EngineStopped, match="it broke"):
                await coming
        else:
            visit = await coming
            assert not draining.done()
            assert await heard(visit) is FinishReason.STOP
        await asyncio.wait_for(draining, 10)

    asyncio.run(asyncio.wait_for(work(), 20))


def test_a_request_that_leaves_before_it_is_taken_holds_no_drain_up() -> None:
    async def work() -> None:
        speaker = SlowToTake()
        reception = reception_of(speaker)
        coming = asyncio.create_task(reception.speak(ANYBODY, HELLO, door="http", request_id="r"))
        await speaker.asked.wait()
        coming.cancel()
        await asyncio.wait({coming})
        await asyncio.wait_for(reception.drain(60.0), 10)

    asyncio.run(asyncio.wait_for(work(), 20))


def test_a_failure_that_nobody_foresaw_is_no_cancellation() -> None:
    """Neither before a request is taken nor after, or an operator would look for impatient clients."""

    class Defective(FakeSpeaker):
        async def speak(self, order: SpeechOrder) -> FakeStream:
            if not order.voice:
                raise KeyError("a defect")
            return DefectiveStream(order, None)

    class DefectiveStream(FakeStream):
        async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
            yield SegmentText(0, 0, 1)
            raise KeyError("a defect")

    async def work() -> None:
        reception = reception_of(Defective())
        with pytest.raises(KeyError):
            await reception.speak(ANYBODY, SpeechOrder("Hello."), door="http", request_id="a")
        visit = await reception.speak(ANYBODY, HELLO, door="http", request_id="b")
        with pytest.raises(KeyError):
            await heard(visit)
        for request_id in "ab":
            entry = reception.ledger.get(request_id, ANYBODY)
            assert (entry.reason, entry.error_code) == (FinishReason.ERROR, "stage_failed")
            assert "KeyError" in str(entry.error)
            assert "a defect" not in str(entry.error)
        assert reception.visits == 0

    asyncio.run(asyncio.wait_for(work(), 20))
