"""The loop's messages, with runners that never have anything to do."""

import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from tests.engine.engine_helpers import LOW_LATENCY, PATIENCE_S, FixedCosts, segment
from vivavoce.engine import loop as loop_module
from vivavoce.engine.admission import AdmissionController
from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.handle import Outbox
from vivavoce.engine.loop import Loop
from vivavoce.engine.request import InputMode, SpeechTokens
from vivavoce.engine.request_state import ChunkPlan, Phase, RequestState, SequenceState
from vivavoce.engine.scheduler import Limits, Scheduler
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.statistics import Statistics
from vivavoce.errors import EngineStopped, InvalidRequest, RequestCancelled, StageFailed
from vivavoce.rates import Rates

RATES = Rates(24_000, 480, 25)


class IdleRunner:
    """Takes no work."""

    heads = None

    busy, failed = False, ()

    def __init__(self):
        self.prepared, self.waited = [], 0
        self.queue = SimpleNamespace(open=False, due_at=inf)
        self.stage = SimpleNamespace(free_slots=1, slots=1, steps_in_flight=0)
        self.prepare, self.collect, self.running = self.prepared.append, list, lambda: ((), False)

    def wait(self):
        self.waited += 1

    def open(self, sequence): ...

    def release(self, sequence): ...


class Bench:
    """A loop, and requests for it."""

    def __init__(self, slots=1, **options):
        costs = FixedCosts()
        self.statistics, self.runners = Statistics(), (IdleRunner(), IdleRunner())
        self.admission = AdmissionController(costs, EngineSettings(), RATES, slots)
        self.scheduler = Scheduler(costs, Limits(), exclusive=True)
        self.loop = Loop(*self.runners, self.scheduler, self.admission, self.statistics, **options)

    def submit(self, number, sequences=1, policy=LOW_LATENCY, **fields):
        arrived = deque(SequenceState(segment()) for _ in range(sequences))
        request = RequestState(number, policy, 0.0, RATES, Outbox(), arrived, **fields)
        self.admission.check(policy is not None, request)
        self.loop.post(partial(self.loop.accept, request))
        return request

    def run_until(self, *drains):
        """The whole course of the loop's thread, which is told to stop, each time with `drain` or without."""
        for drain in drains:
            self.loop.post(partial(self.loop.stop, drain))
        self.loop.run()


def error_of(entry):
    assert entry.outbox.outcome is not None
    return type(entry.outbox.outcome.error)


def test_messages_about_no_request_change_nothing():
    bench = Bench()
    loop = bench.loop
    for message in (partial(loop.cancel, 9), partial(loop.take, 9, (1, 2)), partial(loop.take, 9, None)):
        loop.post(message)
    assert bench.loop.run_once()
    assert not bench.loop.run_once()


def test_a_waiting_request_can_be_cancelled_and_may_get_its_text():
    bench = Bench(slots=1)
    first, second = bench.submit(1), bench.submit(2, sequences=0, complete=False, arrival=InputMode.SEGMENTS)
    bench.loop.post(partial(bench.loop.take, 2, SequenceState(segment())))
    bench.loop.post(partial(bench.loop.take, 2, None))
    bench.loop.run_once()
    assert first.sequences
    assert not second.sequences
    assert second.complete
    bench.loop.post(partial(bench.loop.cancel, 1))
    bench.loop.run_once()
    assert len(second.sequences) == 1
    bench.loop.post(partial(bench.loop.cancel, 2))
    bench.loop.run_once()
    assert error_of(second) is RequestCancelled


def test_stages_are_prepared_in_the_loop_s_thread_and_the_caller_learns_how_it_went():
    bench, asked = Bench(), [Future() for _ in range(4)]
    for streams, done in zip((None, 3, 20), asked, strict=False):
        bench.loop.post(partial(bench.loop.call, partial(bench.loop.prepare, streams), done))
    bench.loop.run_once()
    assert [done.result(PATIENCE_S) for done in asked[:3]] == [None] * 3
    # Slots, and mel frames.
    assert [one.prepared for one in bench.runners] == [[None, 3, 20], [None, 1_024, 3_200]]
    bench.runners[1].prepare = lambda frames: 1 / 0
    bench.loop.post(partial(bench.loop.call, partial(bench.loop.prepare, None), asked[3]))
    bench.loop.run_once()
    assert isinstance(asked[3].exception(PATIENCE_S), ZeroDivisionError)


@pytest.mark.parametrize("drains", [(False,), (True, False, True)])
def test_a_stop_without_drain_ends_all_and_what_comes_later(drains):
    bench, late = Bench(), Future()
    entries = [bench.submit(number) for number in range(3)]
    bench.run_until(*drains)
    assert bench.loop.ended
    bench.loop.post(partial(bench.loop.cancel, 1))
    entries.append(bench.submit(3))
    bench.loop.post(partial(bench.loop.call, partial(bench.loop.prepare, None), late))
    assert [error_of(entry) for entry in entries] == [EngineStopped] * 4
    errors = {id(entry.outbox.outcome.error) for entry in entries}
    assert len(errors) == 4, "an error that several listeners raise collects all their frames"
    assert isinstance(late.exception(PATIENCE_S), EngineStopped)
    assert bench.admission.load().waiting == 0


def test_a_sequence_that_cannot_be_opened_fails_its_request_alone(caplog):
    def refuse(sequence):
        if sequence.request.id == 1:
            raise TypeError("a voice of strings")

    bench = Bench(slots=4)
    bench.runners[1].open = refuse
    entries = [bench.submit(number) for number in range(3)]
    bench.loop.run_once()
    assert [entry.outbox.outcome is None for entry in entries] == [True, False, True]
    assert error_of(entries[1]) is StageFailed
    assert "a voice of strings" in caplog.text


def test_draining_ends_speech_that_never_had_its_final_tokens():
    """Its sequence is not opened yet, and the missing tokens are found out before it is."""
    bench = Bench()
    entry = bench.submit(1, arrival=InputMode.SPEECH, complete=False)
    drained = threading.Thread(target=bench.run_until, args=(True,), daemon=True)
    drained.start()
    drained.join(PATIENCE_S)
    assert bench.loop.ended
    assert error_of(entry) is InvalidRequest
    assert bench.statistics.snapshot().requests.failed == 1


def test_draining_leaves_speech_alone_that_has_its_final_tokens():
    bench = Bench()
    entry = bench.submit(1, arrival=InputMode.SPEECH, complete=False)
    entry.arrived[0].pushed = deque()
    bench.loop.post(partial(bench.loop.take, 1, SpeechTokens((1, 2), 2, final=True)))
    bench.loop.run_once()
    bench.loop.post(partial(bench.loop.stop, True))
    bench.loop.run_once()
    assert entry.complete
    assert entry.outbox.outcome is None


def test_a_failing_plan_ends_a_loop_that_drains(monkeypatch, caplog):
    bench = Bench()
    entry = bench.submit(1)
    monkeypatch.setattr(bench.scheduler, "plan", lambda *_: 1 / 0)
    bench.run_until(True)
    assert bench.loop.ended
    assert error_of(entry) is EngineStopped
    assert "the engine's loop has failed" in caplog.text


def test_a_thread_that_cannot_be_prepared_ends_the_loop(caplog):
    @contextmanager
    def threads():
        raise RuntimeError("no threads are left")
        yield

    bench = Bench(threads=threads())
    early = bench.submit(1)
    bench.loop.start()
    bench.loop.thread.join(PATIENCE_S)
    assert not bench.loop.healthy
    assert [error_of(entry) for entry in (early, bench.submit(2))] == [EngineStopped] * 2
    assert "no threads are left" in caplog.text


def test_what_waits_behind_an_empty_sequence_is_sent():
    """Offline sequences end in any order; that the first one has nothing in it is known last."""
    bench = Bench(slots=4)
    entry = bench.submit(1, sequences=2, policy=None)
    bench.loop.run_once()
    empty, spoken = entry.sequences
    lm, synthesis = bench.runners
    spoken.phase, spoken.produced = Phase.DECODED, 5
    made = ChunkPlan(spoken, 5, True, AttentionMode.FULL, 5, 10, 0), np.ones(240, np.float32)
    synthesis.collect = lambda: [made]
    bench.loop.run_once()
    synthesis.collect = list
    assert entry.outbox.outcome is None
    empty.phase = Phase.DECODED
    lm.collect = lambda: [empty]
    bench.loop.run_once()
    assert entry.outbox.outcome is not None
    assert len(entry.outbox.get().samples) == 240


@pytest.mark.parametrize(
    ("states", "waits"),
    [
        (((True, 2.0), (True, 1.0)), [0, 1]),
        (((True, 1.0), (True, 2.0)), [1, 0]),
        (((True, 5.0), (False, 1.0)), [1, 0]),
        (((False, 1.0), (True, inf)), [0, 1]),
    ],
)
def test_the_loop_waits_for_the_queue_that_is_done_first(monkeypatch, states, waits):
    """By runner: whether it is busy, and when it is due."""
    bench = Bench()
    for runner, (busy, due_at) in zip(bench.runners, states, strict=True):
        runner.busy, runner.queue.due_at = busy, due_at

        def waited(runner=runner):
            runner.waited += 1
            bench.loop.post(partial(bench.loop.stop, False))

        runner.wait = waited
    bench.loop.run()
    assert [runner.waited for runner in bench.runners] == waits


def test_how_long_it_has_been_at_one_turn_is_seen_from_outside():
    """Waiting for messages is no turn; waiting for a device that does not answer is a long one."""
    bench, entered, answered = Bench(), threading.Event(), threading.Event()
    runner = bench.runners[0]

    def wait():
        entered.set()
        assert answered.wait(PATIENCE_S)
        runner.busy = False
        bench.loop.post(partial(bench.loop.stop, False))

    runner.queue.due_at, runner.wait, runner.busy = 0.0, wait, True
    assert bench.loop.busy_since == inf
    thread = threading.Thread(target=bench.loop.run)
    thread.start()
    assert entered.wait(PATIENCE_S)
    assert bench.loop.busy_since < inf
    answered.set()
    thread.join(PATIENCE_S)
    assert bench.loop.ended


class Stuck:
    """The device of a loop with one request that runs, one that waits and one that is not taken yet; it hangs."""

    def __init__(self, bench):
        self.bench, self.runner = bench, bench.runners[0]
        self.entered, self.answered = threading.Event(), threading.Event()
        self.runner.queue.due_at, self.runner.wait = 0.0, self._wait
        self.entries = [bench.submit(1), bench.submit(2)]
        bench.loop.post(partial(bench.loop.take, 1, None))
        self.runner.busy = True
        bench.loop.start()
        assert self.entered.wait(PATIENCE_S)
        self.entries.append(bench.submit(3))

    def _wait(self):
        self.entered.set()
        assert self.answered.wait(10 * PATIENCE_S)
        self.runner.busy = False


@pytest.mark.parametrize(("drain", "timeout_s"), [(True, 0.05), (True, None), (False, None), (False, 0.05)], ids=str)
def test_a_device_that_does_not_answer_holds_no_close(monkeypatch, caplog, drain, timeout_s):
    monkeypatch.setattr(loop_module, "STUCK_S", 0.2, raising=False)
    monkeypatch.setattr(loop_module, "LEAVE_S", 0.2, raising=False)
    stuck = Stuck(bench := Bench())
    closing = threading.Thread(target=bench.loop.close, kwargs={"drain": drain, "timeout_s": timeout_s}, daemon=True)
    closing.start()
    closing.join(PATIENCE_S / 10)
    assert not closing.is_alive()
    assert bench.loop.thread.is_alive()
    assert not bench.loop.healthy
    late, prepared = bench.submit(4), Future()
    bench.loop.post(partial(bench.loop.call, partial(bench.loop.prepare, None), prepared))
    assert [error_of(entry) for entry in (*stuck.entries, late)] == [EngineStopped] * 4
    assert isinstance(prepared.exception(PATIENCE_S), EngineStopped)
    assert "did not answer" in caplog.text
    assert bench.statistics.snapshot().requests.failed == 4
    assert bench.admission.load().waiting == 0
    stuck.answered.set()  # a device that comes back after all changes nothing
    bench.loop.thread.join(PATIENCE_S)
    assert not bench.loop.thread.is_alive()
    assert bench.statistics.snapshot().requests.failed == 4
    assert "the engine's loop has failed" not in caplog.text


def test_a_request_whose_end_the_device_holds_is_ended(monkeypatch):
    monkeypatch.setattr(loop_module, "LEAVE_S", 0.1, raising=False)
    bench, entered, answered = Bench(), threading.Event(), threading.Event()

    def release(sequence):
        entered.set()
        answered.wait(10 * PATIENCE_S)

    bench.runners[1].release = release
    entry = bench.submit(1)
    bench.loop.run_once()
    bench.loop.post(partial(bench.loop.cancel, 1))
    bench.loop.start()
    assert entered.wait(PATIENCE_S)
    closing = threading.Thread(target=bench.loop.close, kwargs={"drain": False, "timeout_s": None}, daemon=True)
    closing.start()
    closing.join(PATIENCE_S / 10)
    assert error_of(entry) is EngineStopped
    answered.set()
    bench.loop.thread.join(PATIENCE_S)
    assert bench.statistics.snapshot().requests.unfinished == 0


def test_a_drain_lasts_for_as_long_as_the_device_gets_on(caplog):
    """Five turns of 200 s each: far more together than one may take."""
    now = [0.0]
    bench = Bench(clock=lambda: now[0])
    runner, entry = bench.runners[0], bench.submit(1)

    def wait():
        time.sleep(0.15)
        now[0] += 200.0
        runner.busy = runner.waited < 4
        runner.waited += 1
        if not runner.busy:
            bench.loop.post(partial(bench.loop.cancel, 1))

    runner.queue.due_at, runner.wait, runner.busy = 0.0, wait, True
    bench.loop.start()
    bench.loop.close(drain=True, timeout_s=None)
    assert runner.waited == 5
    assert error_of(entry) is RequestCancelled
    assert "did not answer" not in caplog.text


def test_the_interpreter_s_end_does_not_wait_for_a_device_that_does_not_answer(monkeypatch, caplog):
    monkeypatch.setattr(loop_module, "STUCK_S", 0.2, raising=False)
    stuck = Stuck(bench := Bench())
    exiting = threading.Thread(target=loop_module._stop_at_exit, args=(weakref.ref(bench.loop),), daemon=True)
    exiting.start()
    exiting.join(PATIENCE_S / 10)
    assert not exiting.is_alive()
    assert "did not answer" in caplog.text
    stuck.answered.set()
    bench.loop.thread.join(PATIENCE_S)
