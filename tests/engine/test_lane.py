"""Marks of a lane: what they measure, and how few of a device's events they take."""

from __future__ import annotations

from contextlib import nullcontext
from math import inf

import pytest
import torch

from vivavoce.engine.lane import Lane


class Device:
    """A CUDA device of one stream whose work is done when told; its clock counts milliseconds."""

    def __init__(self) -> None:
        self.now = self.done = self.made = 0


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
    return device


@pytest.fixture
def lane(device):
    return Lane(torch.device("cuda"))


def do(lane, device, ms, told):
    """A piece of work that takes so long."""
    with lane.work(told.append):
        device.now += ms


def fail(lane, device, ms, told):
    with lane.work(told.append):
        device.now += ms
        raise RuntimeError


def test_pieces_are_told_when_they_are_done(lane, device):
    told: list[float] = []
    do(lane, device, 5, told)
    do(lane, device, 3, told)
    assert not lane.open
    lane.settle()
    assert told == []
    device.done = 5
    lane.settle()
    assert told == [0.005]
    lane.settle(wait=True)
    assert told == [0.005, 0.003]
    assert not lane.busy


def test_a_piece_that_queues_behind_another_begins_at_its_end(lane, device):
    told: list[float] = []
    do(lane, device, 5, told)
    do(lane, device, 3, told)
    assert device.made == 3
    device.done = device.now
    lane.settle()
    assert told == [0.005, 0.003]


def test_idle_time_is_not_work(lane, device):
    told: list[float] = []
    do(lane, device, 5, told)
    device.done, device.now = 5, 50
    do(lane, device, 3, told)
    device.done = device.now
    lane.settle()
    assert told == [0.005, 0.003]


def test_what_is_not_timed_is_nobodys(lane, device):
    told: list[float] = []
    do(lane, device, 5, told)
    with lane.entered():
        device.now += 7
    do(lane, device, 3, told)
    device.done = device.now
    lane.settle()
    assert told == [0.005, 0.003]


def test_work_that_fails_is_not_told_and_no_part_of_the_next(lane, device):
    told: list[float] = []
    do(lane, device, 5, told)
    with pytest.raises(RuntimeError):
        fail(lane, device, 7, told)
    do(lane, device, 3, told)
    device.done = device.now
    lane.settle()
    assert told == [0.005, 0.003]


def test_events_are_used_again(lane, device):
    told: list[float] = []
    for _ in range(50):
        do(lane, device, 2, told)
        do(lane, device, 1, told)
        device.done = device.now
        lane.settle()
    assert told == [0.002, 0.001] * 50
    assert device.made <= 4


def test_an_event_is_not_used_again_while_its_mark_is_held(lane, device):
    mark = lane.mark()
    for _ in range(5):
        do(lane, device, 2, [])
        device.done = device.now - 1
        lane.settle(wait=True)
    device.now += 1
    later = lane.mark()
    assert later.since(mark) == pytest.approx(0.011)


def test_a_lane_is_due_when_its_oldest_piece_has_had_the_time_of_the_last(lane, device, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert lane.due_at == inf
    do(lane, device, 5, [])
    device.done = 5
    lane.settle()
    assert lane.due_at == inf
    do(lane, device, 3, [])
    clock[0] = 101.0
    do(lane, device, 3, [])
    assert lane.due_at == pytest.approx(100.005)
    device.done = 8
    lane.settle()
    assert lane.due_at == pytest.approx(101.003)
