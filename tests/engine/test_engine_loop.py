"""The loop's messages, with stages that never have anything to do."""

import threading
from collections import deque
from concurrent.futures import Future
from math import inf
from queue import SimpleQueue

import numpy as np
import pytest

from tests.engine.engine_helpers import PATIENCE_S, FixedCosts, offline, segment, stream
from vivavoce.engine.books import Books
from vivavoce.engine.flow_batches import FlowItem
from vivavoce.engine.handle import Outbox
from vivavoce.engine.loop import Loop
from vivavoce.engine.messages import Cancelled, Prepare, Stop, Submitted, TextArrived
from vivavoce.engine.scheduler import Limits, Plan, Scheduler
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.stream import Cut, Kind, Phase, Segment, Stream
from vivavoce.engine.ticket import Arrived, Made, Ticket, Track
from vivavoce.errors import EngineStopped, RequestCancelled, StageFailed
from vivavoce.rates import Rates

RATES = Rates(24_000, 480, 25)


class IdleLane:
    """A lane that is never open."""

    open = busy = batches_open = False
    slots_free = slots_total = 1
    steps_in_flight = 0

    def __init__(self):
        self.released, self.prepared = [], []
        self.waited = 0

    def prepare(self, size):
        self.prepared.append(size)

    def wait(self):
        self.waited += 1

    def collect(self):
        return []

    def running(self):
        return ()

    def release(self, track):
        self.released.append(track)


class Bench:
    """A loop, and requests for it."""

    def __init__(self, slots=1, open_track=None):
        costs = FixedCosts()
        self.statistics, self.lanes = Statistics(), (IdleLane(), IdleLane())
        self.books = Books(EngineSettings(), costs, RATES, slots)
        scheduler = Scheduler(costs, Limits(), exclusive=True)
        opener = open_track or self.open_track
        self.loop = Loop(*self.lanes, scheduler, self.statistics, 24_000, self.books, opener)

    def open_track(self, ticket, arrived):
        part = Segment(ticket.stream, len(ticket.stream.segments), 1, 0, Phase.WAITING)
        return Track(ticket, part, arrived.request, flow=None, wave=None, work=None, run=None)

    def submit(self, number, arrived=1):
        one = segment()
        entry = Ticket(
            Stream(number, stream(one).policy, 0.0, RATES), stream(one), Outbox(), deque([Arrived(one, None)] * arrived)
        )
        self.books.admit(entry)
        self.loop.post(Submitted(entry))
        return entry

    def run_until(self, *messages):
        """The whole course of the loop's thread."""
        for message in messages:
            self.loop.post(message)
        self.loop.run()


def error_of(entry):
    assert entry.outbox.outcome is not None
    return type(entry.outbox.outcome.error)


def test_a_cancelled_request_is_released_and_counted():
    bench = Bench()
    entry = bench.submit(1)
    bench.loop.run_once()
    (track,) = entry.tracks
    bench.loop.post(Cancelled(1))
    bench.loop.post(Cancelled(1))
    bench.loop.run_once()
    assert error_of(entry) is RequestCancelled
    assert [lane.released for lane in bench.lanes] == [[track], [track]]
    assert entry.tracks == []
    assert bench.statistics.snapshot().requests.cancelled == 1
    assert bench.books.load().streams == 0


def test_messages_about_nobody_change_nothing():
    bench = Bench()
    for message in (Cancelled(9), TextArrived(9, (1, 2)), TextArrived(9, None)):
        bench.loop.post(message)
    assert bench.loop.run_once()
    assert not bench.loop.run_once()


def test_a_waiting_request_can_be_cancelled_and_may_get_its_text():
    bench = Bench(slots=1)
    first, second = bench.submit(1), bench.submit(2, arrived=0)
    second.stream.complete = False
    bench.loop.post(TextArrived(2, Arrived(segment(), None)))
    bench.loop.post(TextArrived(2, None))
    bench.loop.run_once()
    assert first.tracks
    assert not second.tracks
    assert second.stream.complete
    bench.loop.post(Cancelled(1))
    bench.loop.run_once()
    assert len(second.tracks) == 1
    bench.loop.post(Cancelled(2))
    bench.loop.run_once()
    assert error_of(second) is RequestCancelled


def test_stopping_tells_all_who_listen():
    bench = Bench()
    entries = [bench.submit(number) for number in range(3)]
    bench.run_until(Stop(drain=False))
    assert [error_of(entry) for entry in entries] == [EngineStopped] * 3
    errors = {id(entry.outbox.outcome.error) for entry in entries}
    assert len(errors) == 3, "an error that several listeners raise collects all their frames"
    assert bench.loop.ended


def test_stages_are_prepared_in_the_loop_s_thread_and_whoever_asked_hears_how_it_went():
    bench = Bench()
    well, badly = Future(), Future()
    bench.loop.post(Prepare(None, well))
    bench.loop.run_once()
    assert well.result(PATIENCE_S) is None
    for streams in (3, 20):
        bench.loop.post(Prepare(streams, Future()))
    bench.loop.run_once()
    # Slots, and mel frames.
    assert [lane.prepared for lane in bench.lanes] == [[None, 3, 20], [None, 1_024, 3_200]]
    bench.lanes[1].prepare = lambda frames: 1 / 0
    bench.loop.post(Prepare(None, badly))
    bench.loop.run_once()
    assert isinstance(badly.exception(PATIENCE_S), ZeroDivisionError)


def test_nobody_waits_for_a_loop_that_has_ended_to_prepare():
    bench = Bench()
    bench.run_until(Stop(drain=False))
    late = Future()
    bench.loop.post(Prepare(None, late))
    assert isinstance(late.exception(PATIENCE_S), EngineStopped)


def test_draining_waits_for_the_last_request():
    bench = Bench()
    entry = bench.submit(1)
    thread = threading.Thread(target=bench.run_until, args=(Stop(drain=True),))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    bench.loop.post(Cancelled(1))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert error_of(entry) is RequestCancelled


def test_who_wants_to_stop_at_once_is_not_overruled():
    bench = Bench()
    entry = bench.submit(1)
    bench.run_until(Stop(drain=True), Stop(drain=False), Stop(drain=True))
    assert error_of(entry) is EngineStopped


def test_who_comes_after_the_end_is_told():
    bench = Bench()
    bench.run_until(Stop(drain=True))
    late = bench.submit(1)
    assert error_of(late) is EngineStopped
    bench.loop.post(Cancelled(1))
    assert bench.books.load().waiting == 0


def test_a_segment_that_cannot_be_opened_fails_its_request_alone(caplog):
    def open_track(ticket, arrived):
        if ticket.stream.id == 1:
            raise TypeError("a voice of strings")
        return Bench.open_track(bench, ticket, arrived)

    bench = Bench(slots=4, open_track=open_track)
    entries = [bench.submit(number) for number in range(3)]
    bench.loop.run_once()
    assert [entry.outbox.outcome is None for entry in entries] == [True, False, True]
    assert error_of(entries[1]) is StageFailed
    assert "a voice of strings" in caplog.text


def test_what_fails_in_one_lane_is_not_begun_in_the_other(monkeypatch):
    """Both lanes were planned for the same request; the language model failed it first."""
    bench = Bench()
    entry = bench.submit(1)
    bench.loop.run_once()
    (track,) = entry.tracks
    begun = []
    language, synthesis = bench.lanes
    language.prefill = lambda tracks: bench.loop.fail(tracks, RuntimeError("no"))
    synthesis.begin = begun.extend
    plan = Plan(prefill=(track.segment,), start=(FlowItem(track.segment, None),))
    monkeypatch.setattr(bench.loop._scheduler, "plan", lambda *_: plan)
    bench.loop.run_once()
    assert error_of(entry) is StageFailed
    assert begun == []


@pytest.mark.parametrize("stop", [True, False])
def test_a_failing_plan_ends_the_loop(monkeypatch, caplog, stop):
    def fail(*_):
        raise ZeroDivisionError

    bench = Bench()
    entry = bench.submit(1)
    monkeypatch.setattr(bench.loop._scheduler, "plan", fail)
    bench.run_until(*([Stop(drain=True)] if stop else []))
    assert bench.loop.ended
    assert error_of(entry) is EngineStopped
    assert "the engine's loop has failed" in caplog.text


def test_what_waits_behind_an_empty_segment_is_sent():
    """Offline segments end in any order; that the first one has nothing in it is known last."""
    bench, request = Bench(slots=4), offline(segment(), segment())
    entry = Ticket(
        Stream(1, None, 0.0, RATES), request, Outbox(), deque(Arrived(one, None) for one in request.segments)
    )
    bench.books.admit(entry)
    bench.loop.post(Submitted(entry))
    bench.loop.run_once()
    empty, spoken = entry.tracks
    language, synthesis = bench.lanes
    spoken.segment.phase, spoken.segment.produced = Phase.DECODED, 5
    made = Made(spoken, Cut(5, True, Kind.WHOLE), np.ones(240, np.float32))
    synthesis.collect = lambda: [made]
    bench.loop.run_once()
    synthesis.collect = list
    assert entry.outbox.outcome is None
    empty.segment.phase = Phase.DECODED
    language.collect = lambda: [empty]
    bench.loop.run_once()
    assert entry.outbox.outcome is not None
    assert len(entry.outbox.get().samples) == 240


def test_the_loop_waits_for_the_lane_that_is_done_first():
    """Lane by lane: whether it is busy, and when it is due."""
    for states, waits in (
        (((True, 2.0), (True, 1.0)), [0, 1]),
        (((True, 1.0), (True, 2.0)), [1, 0]),
        (((True, 5.0), (False, 1.0)), [1, 0]),
        (((False, 1.0), (True, float("inf"))), [0, 1]),
    ):
        bench = Bench()
        for lane, (busy, due_at) in zip(bench.lanes, states, strict=True):
            lane.busy, lane.due_at = busy, due_at
        bench.loop._wait()
        assert [lane.waited for lane in bench.lanes] == waits


class Inbox:
    """Notes how long the loop says it has been busy whenever it waits for a message."""

    def __init__(self, loop):
        self._loop, self._messages, self.waits = loop, SimpleQueue(), []

    def get(self):
        self.waits.append(self._loop.busy_since)
        return self._messages.get()

    def get_nowait(self):
        return self._messages.get_nowait()

    def put(self, message):
        self._messages.put(message)


def test_how_long_it_has_been_at_one_turn_is_seen_from_outside():
    """Waiting for messages is no turn; waiting for a device that does not answer is a long one."""
    bench, entered, answered = Bench(), threading.Event(), threading.Event()
    inbox = bench.loop._inbox = Inbox(bench.loop)

    def wait():
        entered.set()
        assert answered.wait(PATIENCE_S)
        lane.busy = False

    lane = bench.lanes[0]
    lane.due_at, lane.wait = 0.0, wait
    assert bench.loop.busy_since == inf
    lane.busy = True
    runner = threading.Thread(target=bench.loop.run)
    runner.start()
    assert entered.wait(PATIENCE_S)
    assert bench.loop.busy_since < inf
    assert inbox.waits == []
    answered.set()
    bench.loop.post(Stop(drain=False))
    runner.join(PATIENCE_S)
    assert bench.loop.ended
    assert set(inbox.waits) <= {inf}
    bench = Bench()
    inbox = bench.loop._inbox = Inbox(bench.loop)
    bench.loop.post(Stop(drain=True))
    bench.loop._wait()
    assert inbox.waits == [inf]
