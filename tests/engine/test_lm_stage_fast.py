"""The stage with kernels of our own gives the ids of the plain one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from vivavoce.engine.lm_stage import LMStage, Run, TextIn, plain_run
from vivavoce.engine.lm_stage.buckets import SEQUENCES, SLOTS, fitting
from vivavoce.engine.lm_stage.recorded_steps import RecordedSteps
from vivavoce.engine.request import Conditioning, SamplingParams, SynthesisRequest
from vivavoce.models.build import Models
from vivavoce.models.kernels.lm_decode_attention import Dealing
from vivavoce.models.lm.interleave import TextInterleaver

CAPACITY = 96


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


def request(seed: int, **sampling: float) -> SynthesisRequest:
    rng = random.Random(seed)
    voice = Conditioning(
        embedding=torch.zeros(192),
        lm_prompt_text=tuple(rng.randrange(250) for _ in range(rng.choice([0, 3]))),
        lm_prompt_tokens=tuple(rng.randrange(6561) for _ in range(rng.choice([0, 5, 19]))),
    )
    params = SamplingParams(
        top_p=rng.choice([None, 0.5, 0.95]),
        top_k=rng.choice([None, 1, 5, 60]),
        win_size=rng.choice([None, 1, 30]),
        tau_r=rng.choice([None, 0.0, 0.5]),
        max_ratio=rng.choice([3.0, 5.0]),
    )
    text = tuple(rng.randrange(250) for _ in range(rng.randrange(1, 4)))
    return SynthesisRequest(voice, text=text, sampling=replace(params, **sampling), seed=seed)


def begin(stage: LMStage, models: Models, asked: Sequence[SynthesisRequest]) -> list[int]:
    slots = [stage.open(one.sampling, one.seed) for one in asked]
    for slot, one in zip(slots, asked, strict=True):
        stage.feed(slot, plain_run(models.config.lm, one, official=False, room=None))
    stage.prefill(slots)
    return slots


def collect(stage: LMStage, spoken: dict[int, list[int]]) -> None:
    for one in stage.collect(wait=True):
        spoken.setdefault(one.slot, []).extend(one.ids)


def finish(stage: LMStage, spoken: dict[int, list[int]], ahead: int = 2) -> None:
    while stage.decoding or stage.in_flight:
        stage.decode()
        while stage.in_flight > (ahead if stage.decoding else 0):
            collect(stage, spoken)


@pytest.fixture
def small(monkeypatch):
    """Sizes that an interpreter gets through: whole lengths in one program, prefills of few rows."""
    monkeypatch.setattr("vivavoce.models.lm.fused.dealing_for", lambda _: Dealing(32, 1, 1, 2))
    monkeypatch.setattr("vivavoce.engine.lm_stage.recorded_steps.ROWS", (16, 32, 48, 96))


def in_company(stage: LMStage, models: Models) -> list[dict[int, list[int]]]:
    """Requests that speak together and leave; whoever is left is moved, and another one joins."""
    first: dict[int, list[int]] = {}
    second: dict[int, list[int]] = {}
    slots = begin(stage, models, [request(seed, max_ratio=5.0) for seed in (0, 4, 5)])
    stage.decode()
    for slot in slots[:2]:
        stage.close(slot)
    stage.decode()
    while stage.in_flight:
        collect(stage, first)
    begin(stage, models, [request(10)])
    finish(stage, second)
    return [first, second]


@torch.inference_mode()
def test_ids_are_the_plain_stages(models, small):
    results = [
        in_company(LMStage(models, slots=4, capacity=CAPACITY, kernels=kernels), models) for kernels in (False, True)
    ]
    assert sum(len(ids) for ids in results[0][1].values()) > 10
    assert results[0] == results[1]


@torch.inference_mode()
def test_a_slot_that_wants_many_candidates_is_served_too(models, small):
    asked = [request(20, top_k=500, top_p=0.99, max_ratio=2.0), request(21, max_ratio=2.0)]
    results = []
    for kernels in (False, True):
        stage, spoken = LMStage(models, slots=2, capacity=CAPACITY, kernels=kernels), {}
        begin(stage, models, asked)
        finish(stage, spoken)
        results.append(spoken)
    assert results[0] == results[1]


def arriving(stage: LMStage, models: Models) -> list[list[int]]:
    """Two texts that come in pieces: several runs in each slot, begun together and apart."""
    config = models.config.lm
    mix = (config.mix_text, config.mix_speech)
    texts = [TextIn(TextInterleaver(config.vocabulary, mix, (), (), 2.0), config.vocabulary, None, 96) for _ in "ab"]
    slots = [stage.open(SamplingParams(), seed) for seed in (1, 2)]
    by_slot = dict(zip(slots, texts, strict=True))
    tokens: dict[int, list[int]] = {slot: [] for slot in slots}
    for text, count in zip(texts, (7, 5), strict=True):
        text.push(range(3, 3 + count))
    while not all(text.done for text in texts):
        fed = []
        for slot, text in by_slot.items():
            run = text.next_run()
            if run is not None:
                stage.feed(slot, run)
                fed.append(slot)
        stage.prefill(fed)
        if not fed and not stage.decoding and not stage.in_flight:
            for text in texts:
                text.close()
        stage.decode()
        for one in stage.collect(wait=True) if stage.in_flight else ():
            tokens[one.slot] += by_slot[one.slot].accept(one.ids)
    return list(tokens.values())


@torch.inference_mode()
def test_texts_that_arrive_have_the_plain_stages_ids(models, small):
    results = [arriving(LMStage(models, slots=2, capacity=CAPACITY, kernels=kernels), models) for kernels in (0, 1)]
    assert all(len(tokens) > 10 for tokens in results[0])
    assert results[0] == results[1]


@torch.inference_mode()
def test_what_is_recorded_leaves_running_slots_alone(models, small, monkeypatch):
    """A recording runs its work: here, as on a device, once before its launches."""

    def capture(self, work):
        work()
        return work

    results = []
    for recorded in (False, True):
        if recorded:
            monkeypatch.setattr("vivavoce.engine.graphs.Graphs.capture", capture)
        stage, spoken = LMStage(models, slots=3, capacity=CAPACITY, kernels=recorded), {}
        begin(stage, models, [request(30, max_ratio=2.0)])
        stage.decode()
        begin(stage, models, [request(31, max_ratio=2.0), request(32, top_k=200, max_ratio=2.0)])
        finish(stage, spoken)
        results.append(spoken)
    assert results[0] == results[1]


@torch.inference_mode()
def test_everything_usual_is_recorded_ahead(models, small, monkeypatch):
    recorded = []
    monkeypatch.setattr("vivavoce.engine.graphs.Graphs.capture", lambda _, work: recorded.append(work) or work)
    stage = LMStage(models, slots=20, capacity=CAPACITY, kernels=True)
    stage.prepare(8)
    assert len(recorded) == len({1, 8}) + 4 * len(SEQUENCES)
    stage.prepare()
    assert len(recorded) == len({1, 8, 16, 20}) + 4 * len(SEQUENCES)
    begin(stage, models, [request(1), request(2, top_k=1)])
    stage.decode()
    assert len(recorded) == len({1, 8, 16, 20}) + 4 * len(SEQUENCES)


@torch.inference_mode()
def test_a_step_that_torch_samples_is_not_taken_for_a_recorded_one(models, small):
    stage = LMStage(models, slots=20, capacity=CAPACITY, kernels=True)
    begin(stage, models, [request(1, top_k=500)])
    stage.decode()
    assert list(stage._steps._decodes) == [(1, False)]
    stage.prepare(1)
    assert (1, True) in stage._steps._decodes


@torch.inference_mode()
def test_a_deterministic_stages_shapes_do_not_depend_on_company(models, small, monkeypatch):
    shapes = []
    decode, prefill = RecordedSteps.decode, RecordedSteps.prefill

    def counted_prefill(self, held, most):
        shapes.append(("prefill", len(held)))
        return prefill(self, held, most)

    def counted_decode(self, held, most, steps):
        for ids in decode(self, held, most, steps):
            shapes.append(("decode", len(ids)))
            yield ids

    monkeypatch.setattr(RecordedSteps, "decode", counted_decode)
    monkeypatch.setattr(RecordedSteps, "prefill", counted_prefill)
    stage = LMStage(models, slots=5, capacity=CAPACITY, kernels=True, deterministic=True)
    begin(stage, models, [request(1), request(2)])
    stage.decode()
    assert shapes == [("prefill", 1), ("prefill", 1), ("decode", 5)]
    collected: list[dict[int, list[int]]] = [{}, {}]
    plain = LMStage(models, slots=5, capacity=CAPACITY, deterministic=True)
    begin(plain, models, [request(1), request(2)])
    plain.decode()
    for one, ids in zip((stage, plain), collected, strict=True):
        while one.in_flight:
            collect(one, ids)
    assert collected[0] == collected[1]


@torch.inference_mode()
def test_steps_of_one_launch_give_the_ids_of_single_ones(models, small):
    """One slot has its ids chosen by torch while it is there: both ways overwrite the ids of the step before."""
    results = []
    for steps in (1, 3):
        stage, spoken = LMStage(models, slots=2, capacity=CAPACITY, kernels=True), {}
        begin(stage, models, [request(40, exact_tokens=7), request(41, top_k=500, exact_tokens=4)])
        while stage.decoding or stage.in_flight:
            stage.decode(steps)
            collect(stage, spoken)
            if len(spoken.get(1, ())) == 5 and stage._table._open.get(1):
                stage.close(1)
        results.append(spoken)
    assert results[0] == results[1]
    assert min(len(ids) for ids in results[0].values()) > 3


def test_sizes_are_the_smallest_that_fit():
    assert [fitting(SLOTS, one) for one in (1, 2, 9, 512, 513)] == [1, 8, 16, 512, None]


def test_a_run_of_nothing_but_its_end(models, small):
    with torch.inference_mode():
        stage, spoken = LMStage(models, slots=1, capacity=CAPACITY, kernels=True), {}
        slot = stage.open(SamplingParams(), 0)
        run = plain_run(models.config.lm, request(3), official=False, room=None)
        stage.feed(slot, Run(run.rows, run.allowed, 0, run.forced))
        stage.prefill([slot])
        finish(stage, spoken)
    assert spoken == {0: [6561]}
