"""What ends a run, what a slot refuses, and what becomes of ids that come too late."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.engine.lm_stage.lm_talk import EOS, FILL, OTHER, Says, finish, rows, run_of, speak, start
from vivavoce.engine.lm_stage import DecodeRun, LMStage, Sampled, plain_run
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, RowKind

STOP = (EOS, OTHER, FILL)
VOICE = Conditioning(embedding=torch.zeros(192))


def text(size: int, **params: float) -> SegmentRequest:
    return SegmentRequest(VOICE, text=tuple(range(3, 3 + size)), sampling=SamplingParams(**params))


@pytest.fixture
def stage_of(models):
    def make(after: int = 10**6, control: int = EOS, slots: int = 4, capacity: int = 64) -> LMStage:
        return LMStage(models, slots=slots, capacity=capacity, chooser=Says(after, control))

    return make


@pytest.mark.parametrize(("most", "forced"), [(5, FILL), (0, EOS)])
def test_the_forced_id_ends_a_run(stage_of, most, forced):
    assert speak(stage_of(), DecodeRun(rows(3), (EOS,), most, forced)) == [*range(most), forced]


@pytest.mark.parametrize("control", STOP)
def test_only_allowed_ids_end_a_run(stage_of, control):
    stage = stage_of(2, control)
    assert speak(stage, DecodeRun(rows(2), (control,), 6, EOS)) == [0, 1, control]
    others = tuple(one for one in STOP if one != control)
    assert speak(stage, DecodeRun(rows(2), others, 6, EOS)) == [0, 1, 2, 3, 4, 5, EOS]


@pytest.mark.parametrize(
    ("generation", "control"),
    [*(("models", one) for one in STOP), *(("models_v3", one) for one in (6561, 6562, 6564, 6760))],
)
@pytest.mark.parametrize("official", [False, True])
def test_speech_does_not_end_before_its_minimum(generation, control, official, request):
    """Officially only the first id after speech is held back, which is the end in CosyVoice2 alone."""
    owner = request.getfixturevalue(generation)
    run = plain_run(owner.config.lm, text(3, min_ratio=2.0, max_ratio=4.0), official=official, room=None)
    stage = LMStage(owner, slots=4, capacity=64, chooser=Says(1, control))
    assert len(speak(stage, run)) - 1 == (1 if official and control != 6561 else 6)


@pytest.mark.parametrize(
    ("asked", "official", "room", "least", "most"),
    [
        (text(10, min_ratio=1.5, max_ratio=4.0), False, None, 15, 40),
        (text(10, min_ratio=1.5, max_ratio=4.0), False, 33, 15, 33),
        (text(10, min_ratio=1.5, max_ratio=4.0), False, 9, 9, 9),
        (text(10, min_ratio=0.0), False, None, 1, 200),
        (text(10, min_ratio=0.0), True, None, 0, 200),
        (text(2, exact_tokens=77), False, None, 77, 77),
    ],
)
def test_lengths_of_a_plain_run(models, asked, official, room, least, most):
    run = plain_run(models.config.lm, asked, official=official, room=room)
    assert (run.min_tokens, run.forced_at, run.forced, len(run.rows)) == (least, most, EOS, 2 + len(asked.text))


def test_a_text_past_the_models_positions_is_refused(models):
    with pytest.raises(InvalidRequest, match="positions"):
        plain_run(models.config.lm, text(models.config.lm.max_positions), official=False, room=None)


def test_the_order_of_a_plain_runs_rows(models):
    vocabulary = models.config.lm.vocabulary
    voice = replace(VOICE, lm_prompt_text=(8, 9), lm_prompt_tokens=(100, 200), lm_system_text=(7,))
    kinds = [RowKind.CONTROL, *[RowKind.TEXT] * 4, RowKind.CONTROL, *[RowKind.SPEECH] * 2]
    ids = [vocabulary.sos, 7, 8, 9, 5, vocabulary.task, 100, 200]
    run = run_of(models, SegmentRequest(voice, text=(5,)))
    assert run.rows == tuple(map(Row, kinds, ids))
    assert run.forced_at == 20 * len((5,))  # what stands before the text is not counted


def test_a_slot_goes_on_where_its_run_ended(stage_of):
    stage = stage_of()
    slot = start(stage, DecodeRun(rows(2), (), 2, FILL))
    assert finish(stage) == {slot: [0, 1, FILL]}
    start(stage, DecodeRun(rows(2), (), 2, FILL), slot)
    assert finish(stage) == {slot: [3, 4, FILL]}  # counts go on, control ids included
    assert stage.decoding == 0


def test_what_fits_a_slot(stage_of):
    stage = stage_of(capacity=64)
    speak(stage, DecodeRun(rows(40), (), 23, EOS))
    with pytest.raises(InvalidRequest, match="65 positions, a slot has 64"):
        stage.check(DecodeRun(rows(40), (), 24, EOS))
    slot = start(stage, DecodeRun(rows(20), (), 10, FILL))
    finish(stage)
    with pytest.raises(InvalidRequest, match="positions"):
        stage.prefill({slot: DecodeRun(rows(23), (), 11, EOS)})
    start(stage, DecodeRun(rows(23), (), 10, EOS), slot)
    assert len(finish(stage)[slot]) == 11


def test_a_closed_slots_ids_reach_nobody(stage_of):
    stage, run = stage_of(), DecodeRun(rows(2), (), 20, EOS)
    old = start(stage, run)
    for _ in range(5):
        stage.decode()
    stage.close(old)
    assert start(stage, run) == old
    assert finish(stage) == {old: [*range(20), EOS]}


def test_slots_are_counted(stage_of):
    stage = stage_of(slots=2)
    assert (stage.slots, stage.free_slots, stage.decoding, stage.in_flight) == (2, 2, 0, 0)
    first, second = stage.open(SamplingParams(), 0), stage.open(SamplingParams(), 0)
    assert (first, second, stage.free_slots) == (0, 1, 0)
    with pytest.raises(RuntimeError, match="no slot is free"):
        stage.open(SamplingParams(), 0)
    start(stage, DecodeRun(rows(7), (), 1, EOS), first)
    assert (stage.decoding, stage.in_flight) == (1, 1)
    with pytest.raises(RuntimeError, match="has a run"):
        start(stage, DecodeRun(rows(7), (), 1, EOS), first)
    stage.decode()
    stage.decode()  # one id and the forced one were asked for: there is nothing left to do
    assert (stage.decoding, stage.in_flight) == (0, 2)
    assert stage.collect(wait=True) == [Sampled(0, (0,), False), Sampled(0, (EOS,), True)]
    stage.close(first)
    assert stage.free_slots == 1


def test_slots_move_together_and_keep_their_numbers(stage_of):
    stage = stage_of(slots=4)
    slots = [stage.open(SamplingParams(), 0) for _ in range(4)]
    stage.prefill(dict.fromkeys(slots, DecodeRun(rows(2), (), 12, EOS)))
    stage.decode()
    for slot in slots[:3]:
        stage.close(slot)
    for _ in range(3):
        stage.decode()
    assert stage._open[3].place == 0
    assert finish(stage) == {3: [*range(12), EOS]}
    stage.close(3)
    assert speak(stage, DecodeRun(rows(2), (), 3, EOS)) == [0, 1, 2, EOS]
