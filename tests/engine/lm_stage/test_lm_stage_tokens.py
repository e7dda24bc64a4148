"""Tokens of the stage: they are those of the plain definition, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from benchmarks.plain import plain_tokens
from vivavoce.engine.lm_stage import LMStage, Run, plain_run
from vivavoce.engine.request import Conditioning, SamplingParams, SynthesisRequest
from vivavoce.models.build import Models


def request(seed: int, **sampling: float) -> SynthesisRequest:
    """A random text, prompt and settings."""
    rng = random.Random(seed)
    voice = Conditioning(
        embedding=torch.zeros(192),
        lm_prompt_text=tuple(rng.randrange(250) for _ in range(rng.choice([0, 3, 9]))),
        lm_prompt_tokens=tuple(rng.randrange(6561) for _ in range(rng.choice([0, 5, 40, 130]))),
    )
    params = SamplingParams(
        top_p=rng.choice([None, 0.5, 0.95]),
        top_k=rng.choice([None, 1, 5, 60]),
        win_size=rng.choice([None, 1, 30]),
        tau_r=rng.choice([None, 0.0, 0.5]),
        max_ratio=rng.choice([3.0, 6.0]),
    )
    text = tuple(rng.randrange(250) for _ in range(rng.randrange(1, 9)))
    return SynthesisRequest(voice, text=text, sampling=replace(params, **sampling), seed=seed)


def run_of(models: Models, asked: SynthesisRequest) -> Run:
    return plain_run(models.config.lm, asked, official=False, room=None)


def begin(stage: LMStage, models: Models, asked: Sequence[SynthesisRequest]) -> list[int]:
    slots = [stage.open(one.sampling, one.seed) for one in asked]
    for slot, one in zip(slots, asked, strict=True):
        stage.feed(slot, run_of(models, one))
    stage.prefill(slots)
    return slots


def finish(stage: LMStage, spoken: dict[int, list[int]], ahead: int = 1) -> None:
    """Decode until nothing runs; `ahead` launches are left in flight before ids are collected."""
    while stage.decoding or stage.in_flight:
        stage.decode()
        while stage.in_flight > (ahead if stage.decoding else 0):
            for one in stage.collect(wait=True):
                spoken.setdefault(one.slot, []).extend(one.ids[:-1] if one.ended else one.ids)


@torch.inference_mode()
def alone(models: Models, asked: SynthesisRequest, ahead: int = 1) -> list[int]:
    stage = LMStage(models, slots=2, capacity=300)
    (slot,) = begin(stage, models, [asked])
    spoken: dict[int, list[int]] = {}
    finish(stage, spoken, ahead)
    stage.close(slot)
    return spoken[slot]


@pytest.mark.parametrize("seed", range(12))
def test_tokens_are_those_of_the_simple_decode(models, seed):
    assert alone(models, request(seed)) == plain_tokens(models, request(seed))


@torch.inference_mode()
def recomputed(models: Models, asked: SynthesisRequest) -> list[int]:
    """Greedy speech, every id from a pass over the whole sequence."""
    lm, run = models.lm, run_of(models, asked)
    tables = {"CONTROL": lm.control_embedding, "TEXT": lm.text_embedding, "SPEECH": lm.speech_embedding}
    rows = [tables[row.kind.name](torch.tensor([row.id])) for row in run.rows]
    spoken: list[int] = []
    while len(spoken) < run.forced_at:
        scores = lm.speech_head(lm(torch.cat(rows)[None])[0, -1])
        if len(spoken) < run.min_tokens:
            scores[list(run.early_forbidden)] = float("-inf")
        token = int(scores.argmax())
        if token >= 6561:
            break
        spoken.append(token)
        rows.append(lm.speech_embedding(torch.tensor([token])))
    return spoken


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_greedy_tokens_are_those_of_a_loop_without_caches(models, seed):
    asked = request(seed, top_k=1, win_size=1, tau_r=1.0)
    one_candidate = replace(asked, sampling=replace(asked.sampling, win_size=200))
    assert alone(models, one_candidate) == recomputed(models, one_candidate)


@dataclass
class Crowd:
    """A stage in which requests come, speak and go in a random but fixed order."""

    models: Models
    stage: LMStage
    rng: random.Random
    queue: Iterator[SynthesisRequest]
    running: dict[int, SynthesisRequest] = field(default_factory=dict)
    spoken: dict[int, list[int]] = field(default_factory=dict)
    finished: list[tuple[SynthesisRequest, list[int]]] = field(default_factory=list)

    def turn(self) -> None:
        self._join()
        self.stage.decode()
        if self.running and self.rng.random() < 0.05:
            self._leave(self.rng.choice(list(self.running)))
        if self.rng.random() < 0.5:
            self._collect()

    def _join(self) -> None:
        new = []
        while self.stage.free_slots and self.rng.random() < 0.4:
            asked = next(self.queue, None)
            if asked is None:
                break
            slot = self.stage.open(asked.sampling, asked.seed)
            self.stage.feed(slot, run_of(self.models, asked))
            self.running[slot], self.spoken[slot] = asked, []
            new.append(slot)
        self.stage.prefill(new)

    def _leave(self, slot: int) -> None:
        self.stage.close(slot)
        del self.running[slot], self.spoken[slot]

    def _collect(self) -> None:
        for one in self.stage.collect(wait=True):
            self.spoken[one.slot].extend(one.ids[:-1] if one.ended else one.ids)
            if one.ended:
                self.finished.append((self.running[one.slot], self.spoken[one.slot]))
                self._leave(one.slot)


@pytest.mark.parametrize("seed", [0, 1])
@torch.inference_mode()
def test_tokens_do_not_depend_on_who_joins_and_leaves(models, seed):
    rng = random.Random(seed)
    # Late in the queue the crowd thins out: slots are compacted.
    asked = [request(1000 * seed + place) for place in range(60)]
    crowd = Crowd(models, LMStage(models, slots=31, capacity=300), rng, iter(asked))
    for _ in range(200):
        crowd.turn()
    assert not crowd.stage.decoding
    assert len(crowd.finished) > 20
    for one, spoken in rng.sample(crowd.finished, 8):
        assert alone(models, one) == spoken


@pytest.mark.parametrize("ahead", [2, 7])
@torch.inference_mode()
def test_ids_that_are_collected_late_are_the_same(models, ahead):
    asked = [request(seed) for seed in range(5)]
    results = []
    for launches in (0, ahead):
        stage, spoken = LMStage(models, slots=5, capacity=300), {}
        begin(stage, models, asked)
        finish(stage, spoken, launches)
        results.append(spoken)
    assert results[0] == results[1]
