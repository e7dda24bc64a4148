"""What every language-model backend promises; each gives the ids that our own stage gives for the same seed."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace

import pytest
import torch

from tests.engine.engine_helpers import BOTH
from tests.engine.lm_stage.lm_talk import begin, finish, request, rows, run_of, speak, start
from tests.engine.lm_stage.test_lm_stage_text_in import interleaver, spoken
from tests.runtimes.runtimes import MergedNetwork, PlainRuntime, streamed, trtllm_package
from vivavoce.engine.lm_stage import DecodeRun, LMStage, StreamingPrompt
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.errors import InvalidRequest
from vivavoce_runtimes.streamed_lm import open_runtime
from vivavoce_runtimes.trtllm import TrtllmRuntime

SLOTS, CAPACITY = 4, 600
BACKENDS = ("torch", "plain", "pairs", "trtllm")


@pytest.fixture(autouse=True, scope="module")
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture
def eager(models):
    """Models that end speech as soon as they may."""
    config = models.config.lm
    lm = copy.deepcopy(models.lm)
    lm.speech_head = torch.nn.Linear(config.hidden_size, config.vocabulary.num_logits)
    lm.speech_head.weight.copy_(models.lm.speech_head.weight)
    lm.speech_head.bias.zero_()
    lm.speech_head.bias[config.vocabulary.eos] = 100.0
    return replace(models, lm=lm)


@pytest.fixture(params=BACKENDS)
def make(request, tmp_path, monkeypatch):
    """A backend's stage of these models."""
    opened = []

    def made(models):
        network = MergedNetwork(models, tmp_path)
        if request.param == "torch":
            return LMStage(models, slots=SLOTS, capacity=CAPACITY)
        if request.param == "trtllm":
            for package in trtllm_package(network):
                monkeypatch.setitem(sys.modules, package.__name__, package)
            memory = MemoryPlan(SLOTS, CAPACITY, 0, None)
            stage = open_runtime(
                TrtllmRuntime, replace(models, merged=tmp_path), EngineSettings(lm_backend="trtllm"), memory
            )
            opened.append(stage)
            return stage
        context = streamed(PlainRuntime(network, pair=request.param == "pairs"), models, SLOTS, CAPACITY)
        opened.append(context)
        return context.__enter__()

    yield made
    for one in opened:
        one.shutdown() if hasattr(one, "shutdown") else one.__exit__(None, None, None)


def reference(models):
    return LMStage(models, slots=SLOTS, capacity=CAPACITY)


@BOTH
def test_ids_are_our_own_stage_s_alone_and_in_company(models, make):
    # Seed 3 draws within rounding of the border between two ids: processors differ there.
    asked = [request(seed, small=True) for seed in (0, 1, 2, 4)]
    own = reference(models)
    wanted = []
    for one in asked:
        (slot,) = begin(own, models, [one])
        wanted.append(finish(own)[slot])
        own.close(slot)
    stage = make(models)
    slots = begin(stage, models, asked)
    together = finish(stage)
    assert [together[slot] for slot in slots] == wanted
    for slot in slots:
        stage.close(slot)
    (slot,) = begin(stage, models, asked[2:3])
    assert finish(stage)[slot] == wanted[2], "alone, and again"


@pytest.mark.parametrize("most", [0, 1, 7])
def test_a_run_ends_at_its_limit_by_the_forced_id(models, make, most):
    vocabulary = models.config.lm.vocabulary
    said = speak(make(models), DecodeRun(rows(3), (), most, vocabulary.fill))
    assert len(said) == most + 1
    assert said[-1] == vocabulary.fill
    assert all(one < vocabulary.num_speech_tokens for one in said[:-1])


@BOTH
def test_what_ends_a_run_and_when(eager, make):
    stage, vocabulary = make(eager), eager.config.lm.vocabulary
    eos, fill, stops = vocabulary.eos, vocabulary.fill, tuple(vocabulary.stop_ids)
    assert speak(stage, DecodeRun(rows(3), (eos,), 9, eos)) == [eos]
    assert len(speak(stage, DecodeRun(rows(3), (eos,), 9, eos, min_tokens=4, early_forbidden=stops))) == 5
    said = speak(stage, DecodeRun(rows(3), (fill,), 6, fill))
    assert eos not in said
    assert said[-1] == fill


def test_positions(models, make):
    stage, eos = make(models), models.config.lm.vocabulary.eos
    with pytest.raises(InvalidRequest, match="601 positions, a slot has 600"):
        stage.check(DecodeRun(rows(500), (), 100, eos))
    slot = start(stage, DecodeRun(rows(20), (), 9, eos))
    finish(stage)
    stage.check(DecodeRun(rows(570), (), 0, eos), slot)
    with pytest.raises(InvalidRequest, match="a slot has 600"):
        stage.prefill({slot: DecodeRun(rows(571), (), 0, eos)})


def test_a_closed_slot_is_free_at_once_and_its_ids_reach_nobody(models, make):
    stage, eos = make(models), models.config.lm.vocabulary.eos
    long, short = DecodeRun(rows(4), (), 200, eos), DecodeRun(rows(2), (), 3, eos)
    slots = [start(stage, long) for _ in range(SLOTS)]
    assert stage.free_slots == 0
    with pytest.raises(RuntimeError, match="no slot is free"):
        stage.open(SamplingParams(), 0)
    with pytest.raises(RuntimeError, match="has a run"):
        stage.prefill({slots[0]: short})
    for slot in slots:
        stage.close(slot)
    assert stage.free_slots == SLOTS
    assert start(stage, short) == slots[0]
    assert len(finish(stage)[slots[0]]) == 4


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("seed", range(2))
def test_text_that_arrives(models, make, seed):
    vocabulary = models.config.lm.vocabulary
    pieces = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14]]
    said = []
    for stage in (reference(models), make(models)):
        text = StreamingPrompt(interleaver(models, 7 * seed, 3.0, seed), vocabulary, capacity=CAPACITY)
        said.append(spoken(stage, text, pieces, seed))
        assert stage.free_slots == SLOTS
    assert said[0] == said[1]
    assert len(said[0]) > 15


def test_the_runs_of_requests_have_what_they_need(models):
    """The contract is tested with settings of many kinds."""
    params = [request(seed, small=True).sampling for seed in range(4)]
    assert len({(one.top_p, one.top_k, one.win_size, one.tau_r) for one in params}) == 4
    assert all(run_of(models, request(seed, small=True)).forced_at > 2 for seed in range(4))
