"""Where requests come in: a drain waits for all that came before it, and defects are told apart from cancellations."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from tests.server.fake_backend import FakeBackend, FakeStream
from vivavoce.errors import DeadlineExceeded, EngineStopped, InvalidText, Overloaded
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeechEvent, SpeechRequest
from vivavoce.logs import JsonFormatter
from vivavoce.server.dispatcher import SILENCE_S, ActiveRequest, RequestDispatcher
from vivavoce.server.rate_limiter import ANONYMOUS, Principal
from vivavoce.server.settings import RequestsSection

HELLO = SpeechRequest("Hello.", "anna")


@dataclass
class SlowToTake(FakeBackend):
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
    coming = asyncio.create_task(dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="r"))
    await speaker.asked.wait()
    draining = asyncio.create_task(dispatcher.drain(60.0))
    for _ in range(5):
        await asyncio.sleep(0)  # a drain that does not wait ends in these turns of the loop
    assert not draining.done()
    with pytest.raises(EngineStopped, match="shutting down"):
        await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="late")
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
    coming = asyncio.create_task(dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="r"))
    await speaker.asked.wait()
    coming.cancel()
    await asyncio.wait({coming})
    await asyncio.wait_for(dispatcher.drain(60.0), 10)


async def test_an_unexpected_failure_is_not_a_cancellation() -> None:
    """Neither before a request is taken nor after, or an operator would look for impatient clients."""

    class Defective(FakeBackend):
        async def speak(self, order: SpeechRequest) -> FakeStream:
            if not order.voice:
                raise KeyError("a defect")
            return DefectiveStream(order, None)

    class DefectiveStream(FakeStream):
        async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
            yield SegmentText(0, 0, 1)
            raise KeyError("a defect")

    dispatcher = RequestDispatcher(Defective())
    with pytest.raises(KeyError):
        await dispatcher.speak(ANONYMOUS, SpeechRequest("Hello."), protocol="http", request_id="a")
    active = await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="b")
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

    dispatcher = RequestDispatcher(FakeBackend(), clock=lambda: next(moments))
    active = await dispatcher.speak(ANONYMOUS, SpeechRequest("a" * 30 + "."), protocol="http", request_id="r")
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


async def test_what_is_no_speech_takes_a_place_and_counts() -> None:
    dispatcher, principal = RequestDispatcher(FakeBackend()), Principal("anna", requests_per_minute=2, concurrent=1)
    async with dispatcher.permitted(principal):
        with pytest.raises(Overloaded, match="limit at once"):
            await dispatcher.speak(principal, HELLO, protocol="http", request_id="a")
        with pytest.raises(Overloaded, match="limit at once"):
            await dispatcher.permitted(principal).__aenter__()
    with pytest.raises(KeyError):
        async with dispatcher.permitted(principal):
            raise KeyError("whatever happens, its place is free again")
    with pytest.raises(Overloaded, match="2 in a minute"):
        await dispatcher.permitted(principal).__aenter__()


async def test_a_drain_waits_for_what_is_no_speech_and_lets_no_more_in() -> None:
    dispatcher = RequestDispatcher(FakeBackend())
    async with dispatcher.permitted(ANONYMOUS):
        async with await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="a"):
            draining = asyncio.create_task(dispatcher.drain(60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped, match="shutting down"):
            await dispatcher.permitted(ANONYMOUS).__aenter__()
        await asyncio.sleep(0)
        assert not draining.done()
    await asyncio.wait_for(draining, 10)


def refused(dispatcher: RequestDispatcher, code: str) -> float | None:
    return dispatcher.metrics.registry.get_sample_value("vivavoce_refused_total", {"door": "http", "code": code})


async def test_a_request_whose_time_is_over_reaches_no_speaker() -> None:
    speaker, limited = FakeBackend(), Principal("anna", requests_per_minute=1)
    dispatcher = RequestDispatcher(speaker, clock=lambda: 100.0)
    for _ in range(2):  # it costs nothing
        with pytest.raises(DeadlineExceeded, match="was over before the request was accepted"):
            await dispatcher.speak(limited, HELLO, protocol="http", request_id=f"a{_}", deadline=100.0)
    assert speaker.orders == []
    assert refused(dispatcher, "deadline_exceeded") == 2


async def test_a_request_that_waits_to_be_taken_is_given_up_at_its_deadline() -> None:
    speaker, left = SlowToTake(), asyncio.Event()

    async def take(order: SpeechRequest) -> FakeStream:
        try:
            return await SlowToTake.speak(speaker, order)
        finally:
            left.set()

    speaker.speak = take  # type: ignore[method-assign]
    dispatcher = RequestDispatcher(speaker)
    with pytest.raises(DeadlineExceeded):
        await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="a", deadline=dispatcher.clock() + 0.05)
    assert left.is_set()
    assert (refused(dispatcher, "deadline_exceeded"), dispatcher.request_log.running) == (1, 0)


async def test_speech_that_is_not_whole_at_its_deadline_is_given_up() -> None:
    speaker = FakeBackend(gate=asyncio.Event())
    dispatcher = RequestDispatcher(speaker)
    active = await dispatcher.speak(
        ANONYMOUS, HELLO, protocol="http", request_id="a", deadline=dispatcher.clock() + 0.05
    )
    with pytest.raises(DeadlineExceeded, match="before its speech was complete"):
        await asyncio.wait_for(reason_of(active), 10)
    assert speaker.streams[0].cancelled.is_set()
    record = dispatcher.request_log.get("a", ANONYMOUS)
    assert (record.reason, record.error_code, dispatcher.active) == (FinishReason.ERROR, "deadline_exceeded", 0)


async def test_speech_in_time_ends_as_ever() -> None:
    dispatcher = RequestDispatcher(FakeBackend())
    deadline = dispatcher.clock() + 3_600
    active = await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="a", deadline=deadline)
    assert await reason_of(active) is FinishReason.STOP
    async with await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="b", deadline=deadline) as left:
        pass
    assert left.verdict is not None
    assert left.verdict.reason is FinishReason.CANCELLED  # its client left long before


async def test_an_arriving_text_with_nothing_to_say_is_silent_and_whole() -> None:
    class Wordless(FakeStream):
        async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
            async for _ in self._texts():
                pass
            raise InvalidText("text: all pieces are empty; send some text", nothing_to_say=True)
            yield  # which makes it an iterator

    class Silent(FakeBackend):
        async def speak(self, order: SpeechRequest) -> FakeStream:
            return Wordless(order, None)

    arriving = SpeechRequest(None, "anna")
    for empty_text in ("silence", "refuse"):
        dispatcher = RequestDispatcher(Silent(), rules=RequestsSection(empty_text=empty_text))
        active = await dispatcher.speak(ANONYMOUS, arriving, protocol="http", request_id="a")
        await active.push("\N{GRINNING FACE}")
        await active.end()
        if empty_text == "refuse":
            with pytest.raises(InvalidText, match="all pieces are empty"):
                await reason_of(active)
            continue
        events = [event async for event in active]
        assert events[0] == SegmentText(0, 0, 1)
        assert active.whole().audio_s == SILENCE_S
        assert dispatcher.request_log.get("a", ANONYMOUS).segments_spoken == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_backends_generator_is_closed_when_a_request_ends_early(leaves: bool) -> None:
    """Either its listener leaves, or the server ends it while the listener has a piece."""
    closed: list[str] = []

    class Watched(FakeStream):
        async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
            try:
                yield SegmentText(0, 0, 6)
                yield SegmentText(1, 6, 12)
            finally:
                await asyncio.sleep(0)  # only `aclose` waits for this; a collection would leave it to a later task
                closed.append(self.order.text or "")

    class Watching(FakeBackend):
        async def speak(self, order: SpeechRequest) -> FakeStream:
            return Watched(order, None)

    dispatcher = RequestDispatcher(Watching())
    active = await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="a")
    if leaves:
        async with active:
            async for _ in active:
                break
    else:

        async def listen() -> None:
            async for _ in active:
                await dispatcher.drain(0.0)

        with pytest.raises(EngineStopped, match="not finished"):
            await listen()
    assert closed == ["Hello."]


async def test_a_stream_that_failed_is_cancelled_too() -> None:
    """It may hold requests and tasks that only its cancelling ends."""

    class Broken(FakeStream):
        async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
            raise RuntimeError("an answer that cannot be read")
            yield  # which makes it an iterator

    class Breaking(FakeBackend):
        async def speak(self, order: SpeechRequest) -> FakeStream:
            self.stream = Broken(order, None)
            return self.stream

    backend = Breaking()
    active = await RequestDispatcher(backend).speak(ANONYMOUS, HELLO, protocol="http", request_id="a")

    async def listen() -> None:
        async with active:
            async for _ in active:
                pass

    with pytest.raises(RuntimeError):
        await listen()
    assert backend.stream.cancelled.is_set()
    assert active.verdict is not None
    assert active.verdict.reason is FinishReason.ERROR


async def test_who_leaves_at_its_deadline_has_been_too_late() -> None:
    """Its own clock may be a little ahead of the server's."""
    now = [0.0]
    dispatcher = RequestDispatcher(FakeBackend(gate=asyncio.Event()), clock=lambda: now[0])
    async with await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="a", deadline=1_000.0) as active:
        now[0] = 999.9
    assert active.verdict is not None
    assert (active.verdict.reason, active.verdict.error_code) == (FinishReason.ERROR, "deadline_exceeded")


async def test_why_there_is_no_room_is_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vivavoce")
    caplog.handler.setFormatter(JsonFormatter())
    dispatcher = RequestDispatcher(FakeBackend(refuses_with=Overloaded("server: it is busy", 3.0, "streams: 2 of 1")))
    with pytest.raises(Overloaded, match="server: it is busy"):
        await dispatcher.speak(ANONYMOUS, HELLO, protocol="http", request_id="a")
    line = json.loads(caplog.text)
    assert (line["event"], line["figures"], line["error"]) == (
        "speech refused",
        "streams: 2 of 1",
        "server: it is busy",
    )


@pytest.mark.parametrize(("of_key", "asked", "spoken"), [("live", "batch", "batch"), ("batch", "live", "batch")])
async def test_a_key_for_batch_work_makes_no_live_requests(of_key: str, asked: str, spoken: str) -> None:
    speaker = FakeBackend()
    request, principal = SpeechRequest("Hello.", "anna", priority=asked), Principal("team", priority=of_key)
    async with await RequestDispatcher(speaker).speak(principal, request, protocol="http", request_id="r"):
        pass
    assert [order.priority for order in speaker.orders] == [spoken]
