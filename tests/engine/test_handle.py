"""The listener's end, without an engine."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.engine.engine_helpers import PATIENCE_S
from vivavoce.engine.handle import Handle, Outbox, RequestResult, RequestTimings
from vivavoce.engine.request import AudioChunk
from vivavoce.errors import InvalidRequest, RequestCancelled, StageFailed

DONE = RequestResult(tokens=((1, 2),), timings=RequestTimings(finished_s=1.0))


class End:
    """A handle, what it was told, and the outbox behind it."""

    def __init__(self, *values, push=None, outcome=None):
        self.outbox, self.cancels, self.pushed = Outbox(), 0, []
        self.handle = Handle(self.outbox, self.cancel, push or self.pushed.append)
        self.put(*values)
        if outcome:
            self.outbox.end(outcome)

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


def test_chunks_come_in_order_and_then_the_first_outcome():
    end = End(0, 1, outcome=DONE)
    end.outbox.end(RequestResult(StageFailed("late")))
    assert heard(end.handle) == [0, 1]
    assert heard(end.handle) == []
    assert end.handle.done
    assert end.handle.outcome.timings.finished_s == 1.0
    assert end.cancels == 0


def test_result_joins_what_was_made():
    end = End(3, 4, outcome=DONE)
    spoken = end.handle.result()
    assert (spoken.samples.tolist(), spoken.tokens) == ([3, 3, 4, 4], ((1, 2),))
    assert len(end.handle.result().samples) == 0


def test_what_was_made_is_heard_before_the_error():
    end = End(7, outcome=RequestResult(StageFailed("stage")))
    chunks = iter(end.handle)
    assert heard([next(chunks)]) == [7]
    with pytest.raises(StageFailed):
        next(chunks)
    with pytest.raises(StageFailed):
        end.handle.result()


def test_a_blocked_listener_is_woken_by_a_cancel_elsewhere():
    end = End()
    future = blocked_in(end.handle.result)
    end.handle.cancel()
    with pytest.raises(RequestCancelled):
        future.result(PATIENCE_S)
    end.handle.cancel()
    assert end.cancels == 1


def test_leaving_the_iteration_cancels():
    end = End(0, 1)
    for _ in end.handle:
        break
    gc.collect()
    assert end.cancels == 1
    assert end.handle.done


@pytest.mark.parametrize("finished", [True, False])
def test_dropping_the_handle_cancels_what_is_not_finished(finished):
    end = End(outcome=DONE if finished else None)
    end.handle = None
    gc.collect()
    assert end.cancels == (not finished)


def test_an_event_loop_is_not_blocked():
    async def listen():
        end = End()
        task = asyncio.create_task(end.handle.result_async())
        await asyncio.sleep(0)
        end.put(5)
        await asyncio.sleep(0)
        threading.Thread(target=end.outbox.end, args=(DONE,)).start()
        return (await asyncio.wait_for(task, PATIENCE_S)).samples.tolist()

    assert asyncio.run(listen()) == [5, 5]


def test_a_cancelled_task_leaves_the_request():
    async def listen():
        end = End()
        task = asyncio.create_task(end.handle.result_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.get_running_loop().shutdown_asyncgens()
        return end

    end = asyncio.run(listen())
    assert end.cancels == 1
    end.put(1)  # nobody waits any more


def test_a_closed_event_loop_does_not_matter():
    end = End()

    async def wait_once():
        asyncio.ensure_future(end.outbox.get_async()).cancel()
        waiting = asyncio.ensure_future(end.outbox.get_async())
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(wait_once())
    end.put(2)
    end.outbox.end(DONE)
    assert heard(end.handle) == [2]


def test_text_is_wanted_once_what_was_sent_is_read():
    end = End()
    end.outbox.want_text(True)
    assert end.handle.text.wait_until_wanted()
    end.handle.text.push([1, 2])
    end.outbox.want_text(True)  # said by a loop that has not seen it yet
    future = blocked_in(end.handle.text.wait_until_wanted)
    assert not future.done()
    assert end.pushed == [(1, 2)]
    end.outbox.text_sent(-1)
    assert future.result(PATIENCE_S)
    end.outbox.end(DONE)
    assert not end.handle.text.wait_until_wanted()


def test_text_that_was_refused_is_not_waited_for():
    def refuse(more):
        raise InvalidRequest("text: no")

    end = End(push=refuse)
    end.outbox.want_text(True)
    with pytest.raises(InvalidRequest):
        end.handle.text.push([1])
    assert end.handle.text.wait_until_wanted()


def test_an_end_wakes_who_waits_to_be_asked_for_text():
    end = End()
    future = blocked_in(end.handle.text.wait_until_wanted)
    end.handle.cancel()
    assert future.result(PATIENCE_S) is False


def test_a_slow_listener_gets_waiting_tokens_in_one_list():
    end = End()
    for tokens in ([1], [2, 3]):
        end.outbox.put(tokens)
    listener = iter(end.handle)
    assert next(listener) == [1, 2, 3]
    end.outbox.put([4])
    end.outbox.end(DONE)
    assert list(listener) == [[4]]
    assert end.handle.result().tokens == ((1, 2),)
