"""What the tests of the language-model stage share: requests, slots that speak, and their ids."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import torch

from vivavoce.engine.lm_stage import DecodeRun, plain_run
from vivavoce.engine.lm_stage.slots import SamplingState
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest
from vivavoce.engine.stages import LMInterface
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import Row, RowKind

EOS, OTHER, FILL = 6561, 6562, 6563
Ids = dict[int, list[int]]
"""All ids of each slot, control ids included."""


class Says:
    """Slot by seed: an id as soon as that many were sampled and it may be, `count` as a speech token until then."""

    def __init__(self, after: int = 10**6, control: int = EOS) -> None:
        self.after, self.control = after, control

    def __call__(self, scores: torch.Tensor, state: SamplingState) -> torch.Tensor:
        may = (state.counts >= self.after) & (scores[:, self.control] > float("-inf"))
        return torch.where(may, self.control, state.counts)


def request(seed: int, small: bool = False, **sampling: float) -> SegmentRequest:
    """A random text, prompt and settings; small: an interpreter gets through it."""
    rng = random.Random(seed)
    voice = Conditioning(
        embedding=torch.zeros(192),
        lm_prompt_text=tuple(rng.randrange(250) for _ in range(rng.choice([0, 3] if small else [0, 3, 9]))),
        lm_prompt_tokens=tuple(
            rng.randrange(6561) for _ in range(rng.choice([0, 5, 19] if small else [0, 5, 40, 130]))
        ),
    )
    params = SamplingParams(
        top_p=rng.choice([None, 0.5, 0.95]),
        top_k=rng.choice([None, 1, 5, 60]),
        win_size=rng.choice([None, 1, 30]),
        tau_r=rng.choice([None, 0.0, 0.5]),
        max_ratio=rng.choice([3.0, 5.0] if small else [3.0, 6.0]),
    )
    text = tuple(rng.randrange(250) for _ in range(rng.randrange(1, 4 if small else 9)))
    return SegmentRequest(voice, text=text, sampling=replace(params, **sampling), seed=seed)


def run_of(models: Models, asked: SegmentRequest) -> DecodeRun:
    return plain_run(models.config.lm, asked, official=False, room=None)


def rows(count: int) -> tuple[Row, ...]:
    return tuple(Row(RowKind.SPEECH, 10 + place) for place in range(count))


def start(stage: LMInterface, run: DecodeRun, slot: int | None = None) -> int:
    """Begin a run; in a slot of its own where none is given."""
    slot = stage.open(SamplingParams(), 0) if slot is None else slot
    stage.prefill({slot: run})
    return slot


def begin(stage: LMInterface, models: Models, asked: Sequence[SegmentRequest]) -> list[int]:
    """Begin several requests together."""
    runs = {stage.open(one.sampling, one.seed): run_of(models, one) for one in asked}
    stage.prefill(runs)
    return list(runs)


def collect(stage: LMInterface, ids: Ids) -> None:
    """Wait for the ids of the oldest launches."""
    for one in stage.collect(wait=True):
        if one.error is not None:
            raise one.error
        ids.setdefault(one.slot, []).extend(one.ids)


def finish(stage: LMInterface, steps: Iterator[int] = repeat(1), ahead: int = 0) -> Ids:
    """Decode until nothing runs. steps: of each launch; ahead: launches in flight while ids are not collected."""
    ids: Ids = {}
    while stage.decoding or stage.in_flight:
        stage.decode(next(steps))
        while stage.in_flight > (ahead if stage.decoding else 0):
            collect(stage, ids)
    return ids


def speak(stage: LMInterface, run: DecodeRun) -> list[int]:
    """All ids of a run in a slot of its own."""
    slot = start(stage, run)
    ids = finish(stage)[slot]
    stage.close(slot)
    return ids
