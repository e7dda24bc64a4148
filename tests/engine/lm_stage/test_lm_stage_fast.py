"""The stage with kernels of our own gives the ids of the plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from tests.engine.lm_stage.lm_talk import EOS, Ids, begin, collect, finish, request, run_of, speak
from tests.fast_flow import quick_interpreter
from vivavoce.engine.lm_stage import DecodeRun, LMStage, StreamingPrompt
from vivavoce.engine.lm_stage.graphed import SEQUENCES, SLOTS, GraphedSteps, fitting
from vivavoce.engine.request import SamplingParams, SegmentRequest
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import TextInterleaver
from vivavoce.models.lm.text_attention import TextHeads
from vivavoce_kernels.lm_attention import SplitK

pytestmark = pytest.mark.slow

CAPACITY = 96


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@pytest.fixture
def small(monkeypatch):
    """Sizes that an interpreter gets through: whole lengths in one program, prefills of few rows."""
    monkeypatch.setattr("vivavoce.models.lm.fused.split_k_for", lambda _: SplitK(32, 1, 1, 2))
    monkeypatch.setattr("vivavoce.engine.lm_stage.graphed.ROWS", (16, 32, 48, 96))


def both(models: Models, tell: Callable[[LMStage], Any], slots: int = 2) -> Any:
    """What a stage with kernels tells, which is what the plain one does."""
    plain, fast = (tell(LMStage(models, slots=slots, capacity=CAPACITY, kernels=kernels)) for kernels in (False, True))
    assert plain == fast
    return fast


def few(seed: int, **sampling: float) -> SegmentRequest:
    return request(seed, small=True, **sampling)


@pytest.mark.parametrize("owner", ["models", "models_v3"])
def test_ids_are_the_plain_stages(owner, small, request):
    """Requests that speak together and leave; those that stay are moved, and another one joins."""
    models = request.getfixturevalue(owner)

    def tell(stage: LMStage) -> list[Ids]:
        first: Ids = {}
        slots = begin(stage, models, [few(seed, max_ratio=5.0) for seed in (0, 4, 5)])
        stage.decode()
        for slot in slots[:2]:
            stage.close(slot)
        stage.decode()
        while stage.in_flight:
            collect(stage, first)
        begin(stage, models, [few(10)])
        return [first, finish(stage, ahead=2)]

    _, second = both(models, tell, slots=4)
    assert sum(map(len, second.values())) > 10


def test_a_slot_that_wants_many_candidates_is_served_too(models, small):
    def tell(stage: LMStage) -> Ids:
        begin(stage, models, [few(20, top_k=500, top_p=0.99, max_ratio=2.0), few(21, max_ratio=2.0)])
        return finish(stage, ahead=2)

    both(models, tell)


def test_texts_that_arrive_have_the_plain_stages_ids(models, small):
    """Two texts that come in pieces: several runs in each slot, begun together and apart."""
    config = models.config.lm

    def tell(stage: LMStage) -> list[list[int]]:
        by_slot = {}
        for seed, count in ((1, 7), (2, 5)):
            interleaver = TextInterleaver(config.vocabulary, (config.mix_text, config.mix_speech), (), (), 2.0)
            text = StreamingPrompt(interleaver, config.vocabulary, capacity=CAPACITY)
            text.push(range(3, 3 + count))
            by_slot[stage.open(SamplingParams(), seed)] = text
        tokens: Ids = {slot: [] for slot in by_slot}
        while not all(text.done for text in by_slot.values()):
            runs = {slot: run for slot, text in by_slot.items() if (run := text.next_run()) is not None}
            stage.prefill(runs)
            if not runs and not stage.decoding and not stage.in_flight:
                for text in by_slot.values():
                    text.close()
            stage.decode()
            for one in stage.collect(wait=True) if stage.in_flight else ():
                tokens[one.slot] += by_slot[one.slot].accept(one.ids)
        return list(tokens.values())

    assert min(map(len, both(models, tell))) > 10


def test_what_is_recorded_leaves_running_slots_alone(models, small, monkeypatch):
    """A recording runs its work: here, as on a device, once before its launches."""
    monkeypatch.setattr("vivavoce.engine.device.Graphs.capture", lambda _, work: (work(), work)[1])

    def tell(stage: LMStage) -> Ids:
        begin(stage, models, [few(30, max_ratio=2.0)])
        stage.decode()
        begin(stage, models, [few(31, max_ratio=2.0), few(32, top_k=200, max_ratio=2.0)])
        return finish(stage, ahead=2)

    both(models, tell, slots=3)


def test_everything_usual_is_recorded_ahead(models, small, monkeypatch):
    recorded = []
    monkeypatch.setattr("vivavoce.engine.device.Graphs.capture", lambda _, work: recorded.append(work) or work)
    stage = LMStage(models, slots=20, capacity=CAPACITY, kernels=True)
    stage.prepare(8)
    assert len(recorded) == len({1, 8}) + 4 * len(SEQUENCES)
    stage.prepare()
    assert len(recorded) == len({1, 8, 16, 20}) + 4 * len(SEQUENCES)
    begin(stage, models, [few(1), few(2, top_k=1)])
    stage.decode()
    assert len(recorded) == len({1, 8, 16, 20}) + 4 * len(SEQUENCES)


def test_a_step_that_torch_samples_is_not_taken_for_a_recorded_one(models, small):
    stage = LMStage(models, slots=20, capacity=CAPACITY, kernels=True)
    begin(stage, models, [few(1, top_k=500)])
    stage.decode()
    assert [key for key in stage._steps.captured if isinstance(key[0], int)] == [(1, False, False, False)]
    stage.prepare(1)
    assert (1, True, False, False) in stage._steps.captured


def test_a_deterministic_stages_shapes_do_not_depend_on_company(models, small, monkeypatch):
    shapes, collected = [], []
    decode, prefill = GraphedSteps.decode, GraphedSteps.prefill

    def counted_prefill(self, begun, most):
        shapes.append(("prefill", len(begun)))
        return prefill(self, begun, most)

    def counted_decode(self, held, most, steps, watched=False):
        for ids in decode(self, held, most, steps, watched):
            shapes.append(("decode", len(ids)))
            yield ids

    monkeypatch.setattr(GraphedSteps, "decode", counted_decode)
    monkeypatch.setattr(GraphedSteps, "prefill", counted_prefill)
    for kernels in (True, False):
        stage, ids = LMStage(models, slots=5, capacity=CAPACITY, kernels=kernels, deterministic=True), {}
        begin(stage, models, [few(1), few(2)])
        stage.decode()
        while stage.in_flight:
            collect(stage, ids)
        collected.append(ids)
    assert shapes == [("prefill", 1), ("prefill", 1), ("decode", 5)]
    assert collected[0] == collected[1]


def test_steps_of_one_launch_give_the_ids_of_single_ones(models, small):
    """One slot has its ids chosen by torch while it is there: both ways overwrite the ids of the step before."""
    results = []
    for steps in (1, 3):
        stage, spoken = LMStage(models, slots=2, capacity=CAPACITY, kernels=True), {}
        begin(stage, models, [few(40, exact_tokens=7), few(41, top_k=500, exact_tokens=4)])
        while stage.decoding or stage.in_flight:
            stage.decode(steps)
            collect(stage, spoken)
            if len(spoken.get(1, ())) == 5 and stage._open.get(1):
                stage.close(1)
        results.append(spoken)
    assert results[0] == results[1]
    assert min(len(ids) for ids in results[0].values()) > 3


def test_sizes_are_the_smallest_that_fit():
    assert [fitting(SLOTS, one) for one in (1, 2, 9, 512, 513)] == [1, 8, 16, 512, None]


def test_a_run_of_nothing_but_its_end(models, small):
    run = run_of(models, few(3))
    stage = LMStage(models, slots=1, capacity=CAPACITY, kernels=True)
    assert speak(stage, DecodeRun(run.rows, run.allowed, 0, run.forced)) == [EOS]


def test_what_is_read_of_the_attention_is_the_plain_stages(models, small):
    """Two slots, of which one is watched, in steps of two slots; then the step of a single slot."""

    def tell(stage: LMStage) -> tuple[Ids, list[np.ndarray]]:
        stage.watch(TextHeads(((0, 1), (1, 0), (1, 3)), 2.0))
        seen: list[np.ndarray] = []
        ids: Ids = {}
        watched = replace(few(40, max_ratio=2.0), text=(5, 9, 17), watched=True)
        begin(stage, models, [watched, few(41, max_ratio=2.0)])
        while stage.decoding or stage.in_flight:
            stage.decode(2)
            for one in stage.collect(wait=True):
                ids.setdefault(one.slot, []).extend(one.ids)
                seen += [] if one.attention is None else list(one.attention)
        return ids, seen

    (plain, wanted), (fast, got) = (
        tell(LMStage(models, slots=2, capacity=CAPACITY, kernels=kernels)) for kernels in (False, True)
    )
    assert plain == fast
    assert len(wanted) > 3
    np.testing.assert_allclose(np.array(got), np.array(wanted), atol=1e-4)
