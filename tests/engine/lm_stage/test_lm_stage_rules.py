"""What ends a run, what a slot refuses, and what becomes of ids that come too late."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vivavoce.engine.lm_stage import LMStage, Run, Sampled, SamplingState, plain_run
from vivavoce.engine.request import Conditioning, SamplingParams, SynthesisRequest
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, RowKind

EOS, OTHER, FILL = 6561, 6562, 6563
STOP = (EOS, OTHER, FILL)
VOICE = Conditioning(embedding=torch.zeros(192))


class Says:
    """Slot by seed: an id as soon as that many were sampled and it may be, `count` as a speech token until then."""

    def __init__(self, after: int, control: int) -> None:
        self.after, self.control = after, control

    def __call__(self, scores: torch.Tensor, state: SamplingState) -> torch.Tensor:
        may = (state.counts >= self.after) & (scores[:, self.control] > float("-inf"))
        return torch.where(may, self.control, state.counts)


def rows(count: int) -> tuple[Row, ...]:
    return tuple(Row(RowKind.SPEECH, 10 + place) for place in range(count))


def text(size: int, **params: float) -> SynthesisRequest:
    return SynthesisRequest(VOICE, text=tuple(range(3, 3 + size)), sampling=SamplingParams(**params))


def speak(stage: LMStage, run: Run) -> list[int]:
    """All ids of a run in a slot of its own."""
    slot = stage.open(SamplingParams(), 0)
    stage.feed(slot, run)
    stage.prefill([slot])
    ids = drain(stage)
    stage.close(slot)
    return [one for sampled in ids for one in sampled.ids]


def drain(stage: LMStage) -> list[Sampled]:
    got = []
    while stage.decoding or stage.in_flight:
        stage.decode()
        got += stage.collect(wait=True)
    return got


@pytest.fixture
def stage_of(models):
    def make(after: int = 10**6, control: int = EOS, slots: int = 4, capacity: int = 64) -> LMStage:
        return LMStage(models, slots=slots, capacity=capacity, chooser=Says(after, control))

    with torch.inference_mode():
        yield make


def test_the_forced_id_ends_a_run(stage_of):
    assert speak(stage_of(), Run(rows(3), (EOS,), 5, FILL)) == [0, 1, 2, 3, 4, FILL]


def test_nothing_may_be_said_at_all(stage_of):
    assert speak(stage_of(), Run(rows(3), (EOS,), 0, EOS)) == [EOS]


@pytest.mark.parametrize("control", STOP)
def test_only_allowed_ids_end_a_run(stage_of, control):
    stage = stage_of(2, control)
    assert speak(stage, Run(rows(2), (control,), 6, EOS)) == [0, 1, control]
    others = tuple(one for one in STOP if one != control)
    assert speak(stage, Run(rows(2), others, 6, EOS)) == [0, 1, 2, 3, 4, 5, EOS]


@pytest.mark.parametrize("control", STOP)
@pytest.mark.parametrize("official", [False, True])
def test_speech_does_not_end_before_its_minimum(models, stage_of, control, official):
    run = plain_run(models.config.lm, text(3, min_ratio=2.0, max_ratio=4.0), official=official, room=None)
    early = official and control != EOS
    assert len(speak(stage_of(1, control), run)) - 1 == (1 if early else 6)


def test_lengths_of_a_plain_run(models):
    config = models.config.lm
    asked = text(10, min_ratio=1.5, max_ratio=4.0)
    run = plain_run(config, asked, official=False, room=None)
    assert (run.min_tokens, run.forced_at, run.forced, len(run.rows)) == (15, 40, EOS, 12)
    assert plain_run(config, asked, official=False, room=33).forced_at == 33
    tight = plain_run(config, asked, official=False, room=9)
    assert (tight.min_tokens, tight.forced_at) == (9, 9)
    silent = text(10, min_ratio=0.0)
    assert plain_run(config, silent, official=False, room=None).min_tokens == 1
    assert plain_run(config, silent, official=True, room=None).min_tokens == 0
    exact = plain_run(config, text(2, exact_tokens=77), official=False, room=None)
    assert (exact.min_tokens, exact.forced_at) == (77, 77)


def test_a_text_past_the_models_positions_is_refused(models):
    with pytest.raises(InvalidRequest, match="positions"):
        plain_run(models.config.lm, text(models.config.lm.max_positions), official=False, room=None)


def test_the_order_of_a_plain_runs_rows(models):
    vocabulary = models.config.lm.vocabulary
    voice = replace(VOICE, lm_prompt_text=(8, 9), lm_prompt_tokens=(100, 200))
    run = plain_run(models.config.lm, SynthesisRequest(voice, text=(5,)), official=False, room=None)
    kinds = [row.kind for row in run.rows]
    assert kinds == [RowKind.CONTROL, *[RowKind.TEXT] * 3, RowKind.CONTROL, *[RowKind.SPEECH] * 2]
    assert [row.id for row in run.rows] == [vocabulary.sos, 8, 9, 5, vocabulary.task, 100, 200]


def test_a_slot_goes_on_where_its_run_ended(stage_of):
    stage = stage_of()
    slot = stage.open(SamplingParams(), 0)
    for expected in ([0, 1, FILL], [3, 4, FILL]):  # counts go on, control ids included
        stage.feed(slot, Run(rows(2), (), 2, FILL))
        stage.prefill([slot])
        assert [one for sampled in drain(stage) for one in sampled.ids] == expected
        assert stage.decoding == 0


def test_what_fits_a_slot(stage_of):
    stage = stage_of(capacity=64)
    speak(stage, Run(rows(40), (), 23, EOS))
    with pytest.raises(InvalidRequest, match="65 positions, a slot has 64"):
        stage.check(Run(rows(40), (), 24, EOS))
    slot = stage.open(SamplingParams(), 0)
    stage.feed(slot, Run(rows(20), (), 10, FILL))
    stage.prefill([slot])
    drain(stage)
    with pytest.raises(InvalidRequest, match="positions"):
        stage.feed(slot, Run(rows(23), (), 11, EOS))
    stage.feed(slot, Run(rows(23), (), 10, EOS))
    stage.prefill([slot])
    assert len(drain(stage)) == 11


def test_a_closed_slots_ids_reach_nobody(stage_of):
    stage = stage_of()
    run = Run(rows(2), (), 20, EOS)
    old = stage.open(SamplingParams(), 0)
    stage.feed(old, run)
    stage.prefill([old])
    for _ in range(5):
        stage.decode()
    stage.close(old)
    new = stage.open(SamplingParams(), 0)
    assert new == old
    stage.feed(new, run)
    stage.prefill([new])
    got = [one for sampled in drain(stage) for one in sampled.ids]
    assert got == [*range(20), EOS]


def test_slots_are_counted(stage_of):
    stage = stage_of(slots=2)
    assert (stage.slots, stage.free_slots, stage.decoding, stage.in_flight) == (2, 2, 0, 0)
    first, second = stage.open(SamplingParams(), 0), stage.open(SamplingParams(), 0)
    assert (first, second, stage.free_slots) == (0, 1, 0)
    with pytest.raises(RuntimeError, match="no slot is free"):
        stage.open(SamplingParams(), 0)
    stage.feed(first, Run(rows(7), (), 1, EOS))
    assert (stage.waiting_rows(first), stage.waiting_rows(second), stage.decoding) == (7, 0, 0)
    with pytest.raises(RuntimeError, match="has a run"):
        stage.feed(first, Run(rows(7), (), 1, EOS))
    stage.prefill([first])
    assert (stage.waiting_rows(first), stage.decoding, stage.in_flight) == (0, 1, 1)
    stage.decode()
    stage.decode()  # one id and the forced one were asked for: there is nothing left to do
    assert (stage.decoding, stage.in_flight) == (0, 2)
    assert stage.collect(wait=True) == [Sampled(0, (0,), False), Sampled(0, (EOS,), True)]
    stage.close(first)
    assert stage.free_slots == 1


def test_slots_move_together_and_keep_their_numbers(stage_of):
    stage = stage_of(slots=4)
    slots = [stage.open(SamplingParams(), 0) for _ in range(4)]
    for slot in slots:
        stage.feed(slot, Run(rows(2), (), 12, EOS))
    stage.prefill(slots)
    stage.decode()
    for slot in slots[:3]:
        stage.close(slot)
    for _ in range(3):
        stage.decode()
    assert stage._table[3].place == 0
    assert [sampled for sampled in drain(stage) if sampled.slot != 3] == []
    stage.close(3)
    assert speak(stage, Run(rows(2), (), 3, EOS)) == [0, 1, 2, EOS]
