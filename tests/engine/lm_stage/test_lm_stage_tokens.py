"""Tokens of the stage: they are those of the plain definition, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch

from benchmarks.plain import plain_tokens
from tests.engine.lm_stage.lm_talk import EOS, begin, finish, request, run_of
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.request import SegmentRequest
from vivavoce.models.build import Models


def alone(models: Models, asked: SegmentRequest) -> list[int]:
    stage = LMStage(models, slots=2, capacity=300)
    (slot,) = begin(stage, models, [asked])
    return [one for one in finish(stage, ahead=1)[slot] if one < EOS]


@pytest.mark.parametrize("seed", range(12))
def test_tokens_are_those_of_the_simple_decode(models, seed):
    assert alone(models, request(seed)) == plain_tokens(models, request(seed))


def recomputed(models: Models, asked: SegmentRequest) -> list[int]:
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
    queue: Iterator[SegmentRequest]
    running: dict[int, SegmentRequest] = field(default_factory=dict)
    spoken: dict[int, list[int]] = field(default_factory=dict)
    finished: list[tuple[SegmentRequest, list[int]]] = field(default_factory=list)

    def turn(self) -> None:
        self._join()
        self.stage.decode()
        if self.running and self.rng.random() < 0.05:
            self._leave(self.rng.choice(list(self.running)))
        if self.rng.random() < 0.5:
            self._collect()

    def _join(self) -> None:
        new = {}
        while self.stage.free_slots and self.rng.random() < 0.4:
            asked = next(self.queue, None)
            if asked is None:
                break
            slot = self.stage.open(asked.sampling, asked.seed)
            self.running[slot], self.spoken[slot], new[slot] = asked, [], run_of(self.models, asked)
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
