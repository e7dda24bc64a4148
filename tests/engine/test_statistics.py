"""The engine's counters."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest

from vivavoce.engine.cost_model import Stage
from vivavoce.engine.statistics import RequestEvent, SlotStatistics, Statistics, StatisticsSnapshot


def test_an_engine_that_did_nothing_shows_zeros_for_every_stage() -> None:
    snapshot = Statistics().snapshot()
    assert [entry.stage for entry in snapshot.stages] == list(Stage)
    assert all(entry.batches == entry.rows == 0 for entry in snapshot.stages)
    assert snapshot.requests.unfinished == 0
    assert snapshot.streams.chunks == snapshot.streams.underruns == 0
    assert snapshot.slots == SlotStatistics(0, 0, 0)


def test_batches_count_for_their_stage_alone() -> None:
    statistics = Statistics()
    statistics.batch(Stage.FLOW, 3, 0.2, [0.01, 0.02, 0.5])
    statistics.batch(Stage.FLOW, 1, 0.1, [0.0])
    statistics.batch(Stage.DECODE, 64, 0.005)
    flow, decode = statistics.snapshot().stage(Stage.FLOW), statistics.snapshot().stage(Stage.DECODE)
    assert (flow.batches, flow.rows, flow.batch_size.maximum) == (2, 4, 3)
    assert flow.busy_s.total == pytest.approx(0.3)
    assert (flow.queued_s.count, flow.queued_s.maximum) == (4, 0.5)
    assert flow.queued_s.total == pytest.approx(0.53)
    assert (decode.batches, decode.rows, decode.queued_s.count) == (1, 64, 0)
    assert statistics.snapshot().stage(Stage.VOCODER).batches == 0


def test_requests_are_counted_by_their_end() -> None:
    statistics = Statistics()
    counts = {"refused": 2, "accepted": 9, "finished": 4, "cancelled": 3, "failed": 1}
    for name, number in counts.items():
        for _ in range(number):
            statistics.request(RequestEvent(name))
    requests = statistics.snapshot().requests
    assert asdict(requests) == counts
    assert requests.unfinished == 1
    assert (statistics.snapshot().waiting, statistics.snapshot(waiting=3).waiting) == (0, 3)


def test_a_chunk_after_its_deadline_is_an_underrun_one_in_time_is_not() -> None:
    statistics = Statistics()
    statistics.first_chunk(0.3)
    for lateness_s in (-0.5, 0.0, 0.25):
        statistics.chunk(lateness_s)
    streams = statistics.snapshot().streams
    assert (streams.chunks, streams.underruns, streams.lateness_s.maximum) == (4, 1, 0.25)
    assert (streams.first_chunk_s.count, streams.first_chunk_s.total) == (1, 0.3)


def test_slots_show_now_and_their_peak() -> None:
    statistics = Statistics()
    for used in (3, 9, 2):
        statistics.slots(used, 16)
    assert statistics.snapshot().slots == SlotStatistics(used=2, peak=9, total=16)


def test_prompt_cache_and_audio_add_up() -> None:
    statistics = Statistics()
    for hit in (True, False, True):
        statistics.prompt_cache(hit)
    statistics.audio(1.5)
    statistics.audio(2.0)
    snapshot = statistics.snapshot()
    assert (snapshot.prompt_cache_hits, snapshot.prompt_cache_misses, snapshot.audio_s) == (2, 1, 3.5)


def test_a_snapshot_stays_as_it_was_and_crosses_processes() -> None:
    statistics = Statistics()
    statistics.batch(Stage.FLOW, 3, 0.2, [0.1])
    before = statistics.snapshot()
    statistics.batch(Stage.FLOW, 3, 0.2, [0.1])
    assert before.stage(Stage.FLOW).batches == 1
    again: StatisticsSnapshot = pickle.loads(pickle.dumps(before))
    assert again == before
    assert again.stage(Stage.FLOW).rows == 3


def test_snapshots_from_another_thread_are_of_one_moment() -> None:
    statistics = Statistics()

    def work() -> None:
        for _ in range(500):
            statistics.batch(Stage.VOCODER, 2, 0.25, [0.5, 0.5])

    def read() -> list[StatisticsSnapshot]:
        return [statistics.snapshot() for _ in range(200)]

    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(read)
        writing = [pool.submit(work) for _ in range(2)]
        snapshots = reading.result()
        for each in writing:
            each.result()
    for entry in (snapshot.stage(Stage.VOCODER) for snapshot in snapshots):
        assert entry.rows == entry.queued_s.count == 2 * entry.batches
        assert entry.busy_s.total == 0.25 * entry.batches
    assert statistics.snapshot().stage(Stage.VOCODER).batches == 1000
