"""Queues of a device: what they measure, and how few events they take; what garbage collections pass over."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from functools import partial
from math import inf
from threading import current_thread

import pytest
import torch

from vivavoce.engine.device import DeviceQueue, GcFreeze, HostThreads
from vivavoce.engine.engine import Engine
from vivavoce.engine.settings import EngineSettings


class Device:
    """A CUDA device of one stream whose work is done when measured; its clock counts milliseconds."""

    def __init__(self) -> None:
        self.now = self.done = self.made = 0
        self.clock = 100.0
        self.measured: list[float] = []
        self.queue: DeviceQueue

    def do(self, ms: int) -> None:
        """A piece of work that takes so long."""
        self.queue.launch(partial(self.work, ms), self.measured.append)

    def work(self, ms: int, fails: bool = False) -> None:
        self.now += ms
        if fails:
            raise RuntimeError

    def end(self) -> None:
        """All of it is done, and the queue looks."""
        self.done = self.now
        self.queue.settle()


@pytest.fixture
def device(monkeypatch):
    device = Device()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            device.made += 1

        def record(self, stream):
            self.at = device.now

        def query(self):
            return self.at <= device.done

        def synchronize(self):
            device.done = max(device.done, self.at)

        def elapsed_time(self, later):
            return later.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: object())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    device.queue = DeviceQueue(torch.device("cuda"), clock=lambda: device.clock)
    return device


def test_pieces_are_measured_when_they_are_done(device):
    device.do(5)
    device.do(3)
    assert not device.queue.open
    device.queue.settle()
    assert device.measured == []
    device.done = 5
    device.queue.settle()
    assert device.measured == [0.005]
    device.queue.settle(wait=True)
    assert device.measured == [0.005, 0.003]
    assert not device.queue.busy


def idle(device):
    device.done, device.now = 5, 50


def untimed(device):
    with device.queue.entered():
        device.now += 7


def failing(device):
    with pytest.raises(RuntimeError):
        device.queue.launch(partial(device.work, 7, fails=True), device.measured.append)


@pytest.mark.parametrize(
    ("between", "events"),
    [(lambda _: None, 3), (idle, 4), (untimed, 4), (failing, 5)],
    ids=["nothing", "idle", "untimed", "failing"],
)
def test_a_piece_is_measured_without_what_was_before_it(device, between, events):
    device.do(5)
    between(device)
    device.do(3)
    assert device.made <= events
    device.end()
    assert device.measured == [0.005, 0.003]


def test_events_are_used_again(device):
    for _ in range(50):
        device.do(2)
        device.do(1)
        device.end()
    assert device.measured == [0.002, 0.001] * 50
    assert device.made <= 4


def test_an_event_is_not_used_again_while_its_mark_is_held(device):
    mark = device.queue.mark()
    for _ in range(5):
        device.do(2)
        device.done = device.now - 1
        device.queue.settle(wait=True)
    device.now += 1
    assert mark.seconds_until(device.queue.mark()) == 0.011


def test_a_queue_is_due_when_its_oldest_piece_has_had_the_time_of_the_last(device):
    assert device.queue.due_at == inf
    device.do(5)
    device.end()
    assert device.queue.due_at == inf
    device.do(3)
    device.clock = 101.0
    device.do(3)
    assert device.queue.due_at == pytest.approx(100.005)
    device.done = 8
    device.queue.settle()
    assert device.queue.due_at == pytest.approx(101.003)


SMALL = EngineSettings(slots=4, state_bytes=16 << 20)


class Cycle:
    """Only a collection frees it."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_frozen():
    gc.unfreeze()
    yield
    assert gc.get_freeze_count() == 0


def test_collections_pass_over_what_lived_when_it_was_frozen():
    dead, living = Cycle(), Cycle()
    seen_dead, seen_living = weakref.ref(dead), weakref.ref(living)
    freeze = GcFreeze()
    del dead
    freeze.begin()
    assert seen_dead() is None
    del living
    later = weakref.ref(Cycle())
    gc.collect()
    assert seen_living() is not None
    assert later() is None
    freeze.end()
    gc.collect()
    assert seen_living() is None


def test_the_last_one_that_wishes_it_ends_it():
    first, second, idle = GcFreeze(), GcFreeze(), GcFreeze()
    for freeze in (first, first, second):
        freeze.begin()
    for freeze in (idle, first, first):
        freeze.end()
        assert gc.get_freeze_count() > 0
    second.end()
    assert gc.get_freeze_count() == 0


def test_a_warm_engine_has_it_until_it_is_closed(models):
    with Engine(models, SMALL) as engine:
        assert gc.get_freeze_count() == 0
        engine.warm_up(seconds=0)
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_a_warm_engine_that_is_not_used_any_more_leaves_no_memory(models):
    engine = Engine(models, SMALL)
    engine.warm_up(seconds=0)
    loop, thread = weakref.ref(engine._loop), engine._loop.thread
    del engine
    assert gc.get_freeze_count() == 0
    thread.join(60)
    gc.collect()
    assert loop() is None


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_of_either_is_raised_once_both_have_ended(bad):
    threads, ended = HostThreads(2), []

    def work(number):
        ended.append(number)
        if number in (bad, bad + 2):
            raise ValueError(number)
        return torch.tensor(number)

    with pytest.raises(ValueError, match=str(min(one for one in (1, 2) if one in (bad, bad + 2)))):
        threads(partial(work, 1), partial(work, 2))
    assert sorted(ended) == [1, 2]


def test_one_thread_works_alone():
    names = []
    HostThreads(1)(*[lambda: names.append(current_thread().name) or torch.zeros(1)] * 2)
    assert names == [current_thread().name] * 2
