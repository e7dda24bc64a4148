"""The listener's end, without an engine."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.engine.engine_helpers import PATIENCE_S, segment
from vivavoce.engine.handle import Handle, Outbox, Outcome, RequestTimings, check_arrival
from vivavoce.engine.request import Arrival, AudioChunk
from vivavoce.errors import InvalidRequest, RequestCancelled, StageFailed

DONE = Outcome(None, ((1, 2),), RequestTimings(finished_s=1.0))


class Desk:
    """A handle, what it was told, and the outbox behind it."""

    def __init__(self, push=None):
        self.outbox, self.cancels, self.pushed = Outbox(), 0, []
        self.handle = Handle(self.outbox, self.cancel, push or self.pushed.append)

    def cancel(self):
        self.cancels += 1

    def put(self, *values):
        for value in values:
            self.outbox.put(chunk(value))


def chunk(value):
    return AudioChunk(np.full(2, value, np.float32), 24_000, int(value), False)


def heard(chunks):
    return [int(one.samples[0]) for one in chunks]


def blocked_in(function):
    """Run in a thread; returns its future once the thread has begun."""
    begun = threading.Event()

    def call():
        begun.set()
        return function()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    assert begun.wait(PATIENCE_S)
    pool.shutdown(wait=False)
    return future


def test_chunks_come_in_order_and_then_the_end():
    desk = Desk()
    desk.put(0, 1)
    desk.outbox.end(DONE)
    assert heard(desk.handle) == [0, 1]
    assert heard(desk.handle) == []
    assert desk.handle.done
    assert desk.handle.timings.finished_s == 1.0
    assert desk.cancels == 0


def test_result_joins_what_was_made():
    desk = Desk()
    desk.put(3, 4)
    desk.outbox.end(DONE)
    spoken = desk.handle.result()
    assert spoken.samples.tolist() == [3, 3, 4, 4]
    assert spoken.tokens == ((1, 2),)
    assert len(desk.handle.result().samples) == 0


def test_the_first_outcome_stands():
    desk = Desk()
    desk.outbox.end(DONE)
    desk.outbox.end(Outcome(StageFailed("late"), (), RequestTimings()))
    assert heard(desk.handle) == []


def test_what_was_made_is_heard_before_the_error():
    desk = Desk()
    desk.put(7)
    desk.outbox.end(Outcome(StageFailed("stage"), (), RequestTimings()))
    chunks = iter(desk.handle)
    assert heard([next(chunks)]) == [7]
    with pytest.raises(StageFailed):
        next(chunks)
    with pytest.raises(StageFailed):
        desk.handle.result()


def test_a_blocked_listener_is_woken_by_a_cancel_elsewhere():
    desk = Desk()
    future = blocked_in(desk.handle.result)
    desk.handle.cancel()
    with pytest.raises(RequestCancelled):
        future.result(PATIENCE_S)
    desk.handle.cancel()
    assert desk.cancels == 1


def test_leaving_the_iteration_cancels():
    desk = Desk()
    desk.put(0, 1)
    for _ in desk.handle:
        break
    gc.collect()
    assert desk.cancels == 1
    assert desk.handle.done


def test_dropping_the_handle_cancels():
    desk = Desk()
    desk.handle = None
    gc.collect()
    assert desk.cancels == 1


def test_dropping_a_finished_handle_does_nothing():
    desk = Desk()
    desk.outbox.end(DONE)
    desk.handle = None
    gc.collect()
    assert desk.cancels == 0


def test_an_event_loop_is_not_blocked():
    async def listen():
        desk = Desk()
        task = asyncio.create_task(desk.handle.result_async())
        await asyncio.sleep(0)
        desk.put(5)
        await asyncio.sleep(0)
        threading.Thread(target=desk.outbox.end, args=(DONE,)).start()
        return (await asyncio.wait_for(task, PATIENCE_S)).samples.tolist()

    assert asyncio.run(listen()) == [5, 5]


def test_a_cancelled_task_leaves_the_request():
    async def listen():
        desk = Desk()
        task = asyncio.create_task(desk.handle.result_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.get_running_loop().shutdown_asyncgens()
        return desk

    desk = asyncio.run(listen())
    assert desk.cancels == 1
    desk.put(1)  # nobody waits any more


def test_a_closed_event_loop_does_not_matter():
    desk = Desk()

    async def wait_once():
        asyncio.ensure_future(desk.outbox.get_async()).cancel()
        waiting = asyncio.ensure_future(desk.outbox.get_async())
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(wait_once())
    desk.put(2)
    desk.outbox.end(DONE)
    assert heard(desk.handle) == [2]


def test_text_is_wanted_once_what_was_sent_is_read():
    desk = Desk()
    desk.outbox.want_text(True)
    assert desk.handle.text.wait_until_wanted()
    desk.handle.text.push([1, 2])
    desk.outbox.want_text(True)  # said by a loop that has not seen it yet
    future = blocked_in(desk.handle.text.wait_until_wanted)
    assert not future.done()
    assert desk.pushed == [(1, 2)]
    desk.outbox.text_read()
    assert future.result(PATIENCE_S)
    desk.outbox.end(DONE)
    assert not desk.handle.text.wait_until_wanted()


def test_text_that_was_refused_is_not_waited_for():
    def refuse(more):
        raise InvalidRequest("text: no")

    desk = Desk(refuse)
    desk.outbox.want_text(True)
    with pytest.raises(InvalidRequest):
        desk.handle.text.push([1])
    assert desk.handle.text.wait_until_wanted()


def test_an_end_wakes_who_waits_to_be_asked_for_text():
    desk = Desk()
    future = blocked_in(desk.handle.text.wait_until_wanted)
    desk.handle.cancel()
    assert future.result(PATIENCE_S) is False


@pytest.mark.parametrize(
    ("more", "arrival", "fits"),
    [
        ((1,), Arrival.TOKENS, True),
        ((1,), Arrival.SEGMENTS, False),
        ((1,), Arrival.WHOLE, False),
        (segment(), Arrival.SEGMENTS, True),
        (segment(), Arrival.TOKENS, False),
        (segment(), Arrival.WHOLE, False),
        (None, Arrival.WHOLE, True),
        (ValueError(), Arrival.TOKENS, True),
    ],
)
def test_text_of_the_wrong_form_is_refused(more, arrival, fits):
    if fits:
        check_arrival(more, arrival)
    else:
        with pytest.raises(InvalidRequest, match="pushed to a request"):
            check_arrival(more, arrival)
