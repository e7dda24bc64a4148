"""A runtime's requests end one by one, its death ends all, and nothing of it keeps the engine's thread waiting."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.engine.engine_helpers import (
    MUTE,
    PATIENCE_S,
    FixedCosts,
    arriving,
    catch_up,
    feed,
    offline,
    running,
    same,
    segment,
    stream,
)
from tests.engine.lm_stage.lm_talk import rows, start
from tests.runtimes.runtimes import MergedNetwork, PlainRuntime, streamed
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.engine import build_stages
from vivavoce.engine.lm_stage import DecodeRun
from vivavoce.engine.request import InputMode, TokenRequest
from vivavoce.engine.settings import EngineSettings, plan_memory
from vivavoce.errors import CheckpointError, EngineStopped, InvalidRequest, RequestCancelled, StageFailed
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce_runtimes.merged_vocabulary import EMBEDDING_BIAS
from vivavoce_runtimes.sampling_rng import speech_bias
from vivavoce_runtimes.streamed_lm import StreamedLM, open_runtime

SETTINGS = EngineSettings(slots=4, state_bytes=64 << 20)
BAD = 7_777
"""Whose requests the runtime fails."""


@pytest.fixture
def network(models, tmp_path):
    return MergedNetwork(models, tmp_path)


@pytest.fixture
def runtime(network):
    return PlainRuntime(network)


@pytest.fixture
def engine(models, runtime):
    plan = plan_memory(models, SETTINGS)
    with streamed(runtime, models, plan.slots, plan.capacity) as lm:
        stages = replace(build_stages(models, SETTINGS, plan), lm=lm)
        with running(models, settings=SETTINGS, stages=stages) as engine:
            yield engine
    assert runtime.closed


@pytest.fixture(scope="module")
def ours(models):
    with running(models, settings=SETTINGS) as engine:
        yield engine


def test_the_engine_speaks_as_with_its_own_stage(engine, ours, runtime):
    asked = [offline(segment(12, seed=1), segment(None, seed=2)), stream(segment(30, seed=3))]
    for one, other in zip([engine.submit(one) for one in asked], [ours.submit(one) for one in asked], strict=True):
        spoken, wanted = one.result(), other.result()
        assert spoken.tokens == wanted.tokens
        same(spoken.samples, wanted.samples)
        assert spoken.timings.lm_s > 0
    assert runtime.finished == 3
    counted = engine.statistics
    assert 1 <= counted.stage(Stage.PREFILL).batches <= 3
    assert counted.stage(Stage.DECODE).batches > 1


def test_text_that_arrives_goes_on_in_one_slot(engine, ours, runtime):
    said = []
    for one in (engine, ours):
        handle = one.submit(arriving(segment(None, text=(65, 66), seed=4), InputMode.TOKENS))
        feed(handle.text, iter([(67, 68, 69), (70, 71, 72, 73, 74, 75)]))
        said.append(handle.result().tokens)
    assert said[0] == said[1]
    prompts = [ask.prompt for ask in runtime.asked]
    assert len(prompts) > 1
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before, "what the runtime has read is found in its cache"


def test_one_that_fails_fails_alone(engine, ours, runtime, caplog):
    caplog.set_level(logging.CRITICAL, logger="vivavoce")
    runtime.failing = lambda ask, said: RuntimeError("no") if ask.draws.seed == BAD and said == 3 else None
    neighbour = engine.submit(offline(segment(20, seed=1)))
    bad = engine.submit(offline(segment(20, seed=BAD)))
    with pytest.raises(StageFailed, match="RuntimeError"):
        bad.result()
    assert neighbour.result().tokens == ours.submit(offline(segment(20, seed=1))).result().tokens
    assert engine.submit(offline(segment(5))).result().tokens, "its slot is free"


def test_an_early_end_and_an_id_that_is_no_speech_are_failures(engine, runtime, monkeypatch):
    async def short(ask):
        yield [runtime.network.vocabulary.speech(5)]

    async def text(ask):
        yield [5]

    for wrong, words in ((short, "ended a request after 1 of 20 ids"), (text, "which is not a speech token; use")):
        monkeypatch.setattr(runtime, "generate", wrong)
        with pytest.raises(StageFailed, match=words):
            engine.submit(offline(segment(20))).result()


def test_a_runtime_that_dies_ends_all_and_the_engine(engine, runtime, caplog):
    caplog.set_level(logging.CRITICAL, logger="vivavoce")
    runtime.failing = lambda ask, said: EngineStopped("runtime: has died; start it again") if said == 5 else None
    handles = [engine.submit(offline(segment(20, seed=seed))) for seed in range(3)]
    for handle in handles:
        with pytest.raises(EngineStopped):
            handle.result()
    engine._loop.thread.join(PATIENCE_S)
    assert not engine.healthy
    with pytest.raises(EngineStopped):
        engine.submit(offline(segment(20)))


def test_a_runtime_that_dies_while_it_has_nothing_to_do_is_told_by_the_engine(engine, runtime):
    assert engine.submit(offline(segment(3))).result()
    assert engine.healthy
    runtime.healthy = False
    assert not engine.healthy, "whoever serves it starts it again"
    runtime.healthy = True


def test_who_leaves_is_aborted_while_the_runtime_hangs(engine, runtime):
    runtime.hold = asyncio.Event()
    handle = engine.submit(stream(segment(20, voice=MUTE)))
    for _ in range(1_000):
        catch_up(engine)
        if runtime.asked:
            break
    handle.cancel()
    with pytest.raises(RequestCancelled):
        handle.result()
    catch_up(engine)
    lm = engine.stages.lm
    assert (lm.free_slots, lm.in_flight) == (4, 0)
    aborted = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, lambda: runtime.aborted), lm._loop).result(PATIENCE_S)
    assert aborted() == 1


def test_what_steps_take_is_learnt(models, runtime):
    costs = FixedCosts()
    seen = []
    costs.observe = lambda stage, size, seconds: seen.append((stage, size.rows))
    plan = plan_memory(models, SETTINGS)
    with streamed(runtime, models, plan.slots, plan.capacity) as lm:
        stages = replace(build_stages(models, SETTINGS, plan), lm=lm)
        with running(models, settings=SETTINGS, stages=stages, costs=costs) as engine:
            for handle in [engine.submit(offline(segment(9, seed=seed))) for seed in range(2)]:
                handle.result()
    stages = [stage for stage, _ in seen]
    assert 1 <= stages.count(Stage.PREFILL) <= 2
    assert 1 <= stages.count(Stage.DECODE) <= 16
    assert (Stage.DECODE, 2) in seen


def test_a_stage_that_nobody_holds_ends_its_thread_and_runtime(models, runtime):
    stage = StreamedLM(lambda: runtime, runtime.network.vocabulary, models.config.lm.sampling, slots=1, capacity=99)
    (thread,) = [one for one in threading.enumerate() if one.name == "vivavoce-lm-runtime"]
    gone = weakref.ref(stage)
    del stage
    gc.collect()
    assert gone() is None
    thread.join(PATIENCE_S)
    assert runtime.closed
    assert not thread.is_alive()


def test_a_runtime_that_cannot_start_says_so_and_leaves_nothing(models, runtime):
    def start():
        raise StageFailed("runtime: no")

    with pytest.raises(StageFailed, match="runtime: no"):
        StreamedLM(start, runtime.network.vocabulary, models.config.lm.sampling, slots=1, capacity=99)
    assert not [one for one in threading.enumerate() if one.name == "vivavoce-lm-runtime"]


def test_shutting_down_ends_what_runs(models, runtime):
    runtime.hold = asyncio.Event()
    with streamed(runtime, models, 1, 99) as stage:
        start(stage, DecodeRun(rows(3), (), 20, 6561))
    assert (runtime.closed, runtime.aborted, stage._loop.is_closed()) == (True, len(runtime.asked), True)


def test_shutting_down_does_not_wait_for_a_runtime_that_hangs(models, runtime, monkeypatch, caplog):
    monkeypatch.setattr("vivavoce_runtimes.streamed_lm._STOP_S", 0.1)
    answered = threading.Event()
    monkeypatch.setattr(runtime, "close", lambda: answered.wait(PATIENCE_S))
    before = time.monotonic()
    with streamed(runtime, models, 1, 99) as stage:
        (thread,) = [one for one in threading.enumerate() if one.name == "vivavoce-lm-runtime"]
    assert time.monotonic() - before < PATIENCE_S / 2
    assert "runtime did not end" in caplog.text
    answered.set()
    thread.join(PATIENCE_S)
    stage._loop.close()


def test_the_merged_folder_must_be_there_and_whole(models, tmp_path):
    memory = plan_memory(models, EngineSettings())
    with pytest.raises(InvalidRequest, match="load a merged folder, and none was given"):
        open_runtime(PlainRuntime, models, EngineSettings(lm_backend="vllm"), memory)
    with pytest.raises(CheckpointError, match="cannot be read; make the folder with `vivavoce export hf`"):
        speech_bias(tmp_path)
    np.save(tmp_path / EMBEDDING_BIAS, np.full(9, -np.inf, np.float32))
    with pytest.raises(CheckpointError, match="cannot be read"):
        speech_bias(tmp_path)


def test_a_text_id_of_no_token_is_refused(models, runtime):
    """In the merged table it would be speech."""
    with streamed(runtime, models) as stage:
        with pytest.raises(InvalidRequest, match=r"text: id .* is outside of 0"):
            start(stage, DecodeRun((Row(RowKind.TEXT, models.config.lm.text_vocab_size),), (), 3, 6561))
        assert stage.in_flight == 0


def test_tokens_alone(network, models, runtime):
    """An engine of a language model alone, as benchmarks and Triton use it."""
    with streamed(runtime, models, 4, 600) as lm:
        stages = replace(build_stages(models, SETTINGS, plan_memory(models, SETTINGS)), lm=lm)
        with running(models, settings=SETTINGS, stages=stages) as engine:
            handle = engine.submit(TokenRequest(rows(3), 9, ends=()))
            assert len(handle.result().tokens[0]) == 9
