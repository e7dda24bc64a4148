"""Listening to an engine: threads, event loops, leaving early, and what is left afterwards."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.engine.engine_helpers import (
    LOW_LATENCY,
    PATIENCE_S,
    assert_clean,
    at_rest,
    catch_up,
    given,
    offline,
    running,
    segment,
    stream,
)
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.engine import Engine
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import EngineStopped, InvalidRequest, RequestCancelled

LONG = stream(segment(300))
SMALL = EngineSettings(slots=4, state_bytes=16 << 20)


def engine_threads():
    return [thread for thread in threading.enumerate() if thread.name == "vivavoce-engine"]


def test_timings_are_consistent(engine):
    timings = engine.submit(stream(segment(25))).result().timings
    assert 0 <= timings.started_s <= timings.first_token_s <= timings.first_chunk_s <= timings.finished_s
    assert 0 < timings.lm_s + timings.flow_s + timings.vocoder_s <= timings.finished_s
    assert min(timings.lm_s, timings.flow_s, timings.vocoder_s) > 0


def test_many_listeners_in_one_event_loop(engine):
    async def listen(seed):
        chunks = [chunk async for chunk in engine.submit(stream(segment(22, seed=seed)))]
        return np.concatenate([chunk.samples for chunk in chunks])

    async def all_of_them():
        return await asyncio.wait_for(asyncio.gather(*(listen(seed) for seed in range(4))), PATIENCE_S)

    for samples in asyncio.run(all_of_them()):
        assert len(samples) == 22 * 960
    assert_clean(engine)


def test_a_cancel_from_another_thread_ends_a_blocked_listener(engine):
    handle = engine.submit(LONG)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(handle.result)
        handle.cancel()
        with pytest.raises(RequestCancelled):
            future.result(PATIENCE_S)
    assert_clean(engine)
    assert engine.statistics.requests.cancelled > 0


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_dropped_handle_frees_its_places(engine, chunks):
    handle = engine.submit(LONG)
    listener = iter(handle)
    for _ in range(chunks):
        next(listener)
    del listener, handle
    gc.collect()
    assert_clean(engine)


def test_finished_requests_leave_no_tensors(engine):
    """A request and its sequences know one another; nothing of them waits for the garbage collector."""
    handle = engine.submit(stream(segment(5)))
    catch_up(engine)
    requests = [weakref.ref(request) for request in engine._loop._requests.values()]
    sequences = [weakref.ref(sequence) for request in requests for sequence in request().sequences]
    flows = [weakref.ref(sequence().flow) for sequence in sequences]
    gc.disable()
    try:
        handle.result()
        at_rest(engine)
        after = engine.submit(stream(given(1))).result()  # the loop's own variables look elsewhere now
        at_rest(engine)
        assert [one() for one in (*requests, *sequences, *flows)] == [None] * 3
    finally:
        gc.enable()
    assert len(after.samples) == 960


def test_draining_finishes_what_was_accepted(models):
    with running(models, settings=SMALL) as engine:
        handles = [engine.submit(kind(segment(20, seed=seed))) for seed, kind in enumerate((stream, offline, stream))]
        engine.close(drain=True)
        assert all(handle.done for handle in handles)
        assert [len(handle.result().samples) for handle in handles] == [20 * 960] * 3
        assert not engine.healthy


@pytest.mark.parametrize("how", [{"drain": False}, {"drain": True, "timeout_s": 0}])
def test_closing_without_draining_or_time_for_it_ends_all(models, how):
    with running(models, settings=SMALL) as engine:
        handles = [engine.submit(LONG) for _ in range(6)]
        engine.close(**how)
        for handle in handles:
            with pytest.raises(EngineStopped):
                handle.result()
        assert engine.statistics.requests.unfinished == 0


def test_a_stopped_engine_takes_nothing(models):
    engine = Engine(models, SMALL)
    engine.close()
    engine.close(drain=False)
    with pytest.raises(EngineStopped):
        engine.submit(LONG)
    with pytest.raises(EngineStopped):
        engine.warm_up(0.1)


def test_a_request_that_meets_the_end_is_refused_not_lost(models, monkeypatch):
    """Submitted while the engine was healthy, posted when nobody reads any more."""
    with running(models, settings=SMALL) as engine:
        check = engine._admission.check

        def close_and_check(*given):
            engine.close(drain=False)
            check(*given)

        monkeypatch.setattr(engine._admission, "check", close_and_check)
        handle = engine.submit(LONG)
        with pytest.raises(EngineStopped):
            handle.result()
        assert engine.statistics.requests.unfinished == 0


def test_an_engine_nobody_uses_stops_its_thread(models):
    before = set(engine_threads())
    engine = Engine(models, SMALL)
    engine.submit(offline(segment(2))).result()
    (thread,) = set(engine_threads()) - before
    seen = weakref.ref(engine)
    del engine
    gc.collect()
    assert seen() is None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_handle_keeps_its_engine(models):
    handle = Engine(models, SMALL).submit(stream(segment(20)))
    gc.collect()
    assert len(handle.result().samples) == 20 * 960


@pytest.mark.slow
def test_the_program_may_end_while_it_speaks(babble):
    script = f"""
import torch
from pathlib import Path
from tests.engine.engine_helpers import LOW_LATENCY, segment, stream
from vivavoce.engine.engine import Engine
from vivavoce.models.build import build_models

torch.set_num_threads(1)
engine = Engine(build_models(Path({str(babble)!r}), torch.device("cpu")))
handle = engine.submit(stream(segment(2000)))
next(iter(handle))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_warming_up_measures_and_is_no_request(models):
    with Engine(models, SMALL) as engine:
        engine.warm_up(0.001)
        snapshot = engine.statistics
    assert snapshot.requests.accepted == snapshot.requests.finished == 0
    assert all(stage.batches > 0 for stage in snapshot.stages if stage.stage is not Stage.SHORT_FLOW)


def test_warming_up_for_a_few_asks_for_no_more_at_once(models):
    with Engine(models, SMALL) as engine:
        with pytest.raises(InvalidRequest, match="streams: 0"):
            engine.warm_up(streams=0)
        engine.warm_up(60.0, streams=1)  # an end, though not of the time
        stages = engine.statistics.stages
    assert all(stage.batch_size.total == stage.batches for stage in stages)


def test_statistics_count_what_happened(models):
    with running(models, settings=SMALL) as engine:
        chunks = list(engine.submit(stream(segment(25), policy=LOW_LATENCY)))
        engine.submit(offline(segment(5))).result()
        snapshot = engine.statistics
        assert snapshot.requests.accepted == snapshot.requests.finished == 2
        assert snapshot.streams.chunks == len(chunks) == 2
        assert snapshot.audio_s == pytest.approx(30 / 25)
        assert (snapshot.slots.used, snapshot.slots.peak, snapshot.slots.total) == (0, 1, 4)
        assert_clean(engine)


@pytest.mark.slow
def test_the_engine_can_be_imported_without_triton():
    """It exists on Linux only; without it the plain path works."""
    script = "import sys; sys.modules['triton'] = None; import vivavoce.api, vivavoce.engine.engine"
    subprocess.run([sys.executable, "-c", script], check=True)
