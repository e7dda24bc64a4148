"""The engine's counters, and its histograms against the values themselves."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

from vivavoce.engine.cost_model import Stage
from vivavoce.engine.statistics import SECONDS, SIZES, Histogram, Statistics, StatisticsSnapshot, log_bounds
from vivavoce_fleet.engine_group import summed


def test_batches_count_for_their_stage_alone() -> None:
    statistics = Statistics()
    assert [(entry.stage, entry.batches, entry.rows) for entry in statistics.snapshot().stages] == [
        (stage, 0, 0) for stage in Stage
    ]
    statistics.batch(Stage.FLOW, 3, 0.2, [0.01, 0.02, 0.5])
    statistics.batch(Stage.FLOW, 1, 0.1, [0.0])
    statistics.batch(Stage.DECODE, 64, 0.005, batches=4)
    flow, decode = statistics.snapshot().stage(Stage.FLOW), statistics.snapshot().stage(Stage.DECODE)
    assert (flow.batches, flow.rows, flow.batch_size.maximum) == (2, 4, 3)
    assert flow.busy_s.total == pytest.approx(0.3)
    assert (flow.queued_s.count, flow.queued_s.maximum) == (4, 0.5)
    assert flow.queued_s.total == pytest.approx(0.53)
    assert (decode.batches, decode.rows, decode.busy_s.total, decode.queued_s.count) == (4, 256, 0.02, 0)
    assert statistics.snapshot().stage(Stage.VOCODER).batches == 0


def test_a_snapshot_stays_as_it_was_and_crosses_processes() -> None:
    statistics = Statistics()
    statistics.batch(Stage.FLOW, 3, 0.2, [0.1])
    statistics.now.requests.accepted += 2
    before = statistics.snapshot(waiting=1)
    statistics.batch(Stage.FLOW, 3, 0.2, [0.1])
    statistics.now.requests.finished += 1
    assert (before.stage(Stage.FLOW).batches, before.requests.unfinished, before.waiting) == (1, 2, 1)
    assert statistics.snapshot().requests.unfinished == 1
    again: StatisticsSnapshot = pickle.loads(pickle.dumps(before))
    assert again == before
    assert again.stage(Stage.FLOW).rows == 3


def test_snapshots_from_another_thread_are_of_one_moment() -> None:
    statistics = Statistics()

    def work() -> None:
        for _ in range(500):
            statistics.batch(Stage.VOCODER, 2, 0.25, [0.5, 0.5])

    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(lambda: [statistics.snapshot() for _ in range(200)])
        writing = [pool.submit(work) for _ in range(2)]
        snapshots = reading.result()
        for each in writing:
            each.result()
    for entry in (snapshot.stage(Stage.VOCODER) for snapshot in snapshots):
        assert entry.rows == entry.queued_s.count == 2 * entry.batches
        assert entry.busy_s.total == 0.25 * entry.batches
    assert statistics.snapshot().stage(Stage.VOCODER).batches == 1000


def test_bounds_are_logarithmic_and_reach_from_low_to_high() -> None:
    assert log_bounds(0.1, 10.0, 1) == pytest.approx((0.1, 1.0, 10.0))
    assert len(SECONDS) == 8 * 5 + 1
    assert (SECONDS[0], SECONDS[-1]) == pytest.approx((1e-5, 1e3))
    assert (SIZES[0], SIZES[-1]) == (1.0, 4096.0)


def test_a_bound_belongs_to_its_bucket_and_the_last_bucket_is_open() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 1e9):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.maximum, histogram.total) == (5, 1e9, 4.5 + 1e9)


def test_engines_together_are_the_sum_of_each() -> None:
    one, other = Statistics(), Statistics()
    one.batch(Stage.FLOW, 3, 0.2, [0.01, 0.5])
    other.batch(Stage.FLOW, 4, 0.1, [0.02])
    one.now.slots.total, other.now.slots.total, one.now.audio_s, other.now.audio_s = 8, 16, 1.5, 2.5
    one.now.streams.lateness_s.observe(0.3)
    both = summed([one.snapshot(waiting=2), other.snapshot()])
    assert (both.waiting, both.slots.total, both.audio_s, both.streams.underruns) == (2, 24, 4.0, 1)
    flow = both.stage(Stage.FLOW)
    assert (flow.batches, flow.rows, flow.batch_size.maximum, flow.queued_s.count) == (2, 7, 4, 3)
    assert flow.busy_s.bounds == SECONDS
    assert flow.busy_s.total == pytest.approx(0.3)
    assert summed([]) == StatisticsSnapshot()


def test_a_collection_while_something_is_counted_may_count_itself() -> None:
    """A handle that is collected then cancels its request, which counts it in the same thread."""
    statistics = Statistics()

    def count() -> None:
        with statistics.lock:
            statistics.batch(Stage.DECODE, rows=1, busy_s=0.1)

    counting = Thread(target=count, daemon=True)
    counting.start()
    counting.join(5.0)
    assert not counting.is_alive()
    assert statistics.snapshot().stage(Stage.DECODE).batches == 1
