"""Decode steps that read where the voice is in the text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.lm_stage.lm_talk import request, run_of
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.lm_stage.head_search import SpokenSample, embedded, find_heads
from vivavoce.engine.text_cursor import TextCursor
from vivavoce.models.lm.text_attention import TextHeads, text_attention

HEADS = TextHeads(((0, 1), (1, 0)), 2.5)
CAPACITY = 256


def spoken(stage: LMStage, models, requests, ahead=1):
    """The ids and attention rows of each request, by its seed."""
    slots = {}
    for one in requests:
        slots[stage.open(one.sampling, one.seed)] = one
    stage.prefill({slot: run_of(models, one) for slot, one in slots.items()})
    ids = {one.seed: [] for one in requests}
    rows = {one.seed: [] for one in requests}
    while slots:
        stage.decode(ahead)
        for found in stage.collect(wait=True):
            if found.slot not in slots:
                continue
            seed = slots[found.slot].seed
            ids[seed] += found.ids
            if found.attention is not None:
                rows[seed] += list(found.attention)
            if found.ended:
                del slots[found.slot]
                stage.close(found.slot)
    return ids, rows


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_attention_is_that_of_the_whole_sequence(models, ahead):
    stage = LMStage(models, slots=4, capacity=CAPACITY)
    stage.watch(HEADS)
    asked = [replace(request(seed, small=True), watched=seed != 2) for seed in (1, 2, 3)]
    ids, rows = spoken(stage, models, asked, ahead)
    assert not rows[2]
    for one in (asked[0], asked[2]):
        run, speech = run_of(models, one), ids[one.seed][:-1]
        sample = SpokenSample(run.rows, slice(run.watched[0], run.watched[-1] + 1), (0,), tuple(speech))
        wanted = text_attention(models.lm, embedded(models.lm, sample.rows), sample.text, slice(len(run.rows), None))
        wanted = torch.stack([wanted[layer, head] for layer, head in HEADS.heads]).mean(0)
        np.testing.assert_allclose(np.array(rows[one.seed]), wanted.numpy(), atol=1e-4)


def test_watching_changes_no_id(models):
    asked = [request(seed, small=True) for seed in range(3)]
    plain, watching = (LMStage(models, slots=3, capacity=CAPACITY) for _ in range(2))
    watching.watch(HEADS)
    ids, _ = spoken(plain, models, asked)
    watched, rows = spoken(watching, models, [replace(one, watched=True) for one in asked])
    assert ids == watched
    assert all(rows.values())


def test_a_guarded_text_is_read_with_the_prompts_text_before_it(models):
    one = replace(request(4, small=True), watched=True)
    one = replace(one, conditioning=replace(one.conditioning, lm_prompt_text=(7, 11, 13), lm_system_text=(5,)))
    guarded = replace(one, guarded=(0,))
    plain, whole = LMStage(models, slots=1, capacity=CAPACITY), LMStage(models, slots=1, capacity=CAPACITY)
    for stage in (plain, whole):
        stage.watch(HEADS)
    ids, own = spoken(plain, models, [one])
    guarded_ids, both = spoken(whole, models, [guarded])
    assert guarded_ids == ids
    assert run_of(models, one).unspoken == 0
    cursor = TextCursor()
    cursor.add(len(both[4]), np.array(both[4]), -run_of(models, guarded).unspoken)
    assert run_of(models, guarded).unspoken == 4
    np.testing.assert_allclose(cursor.astray, np.array(both[4])[:, :4].sum(axis=1), rtol=1e-5)
    assert 0.01 < min(cursor.astray) <= max(cursor.astray) < 0.99
    np.testing.assert_allclose(cursor.attended(len(one.text)), np.array(own[4]).sum(axis=0), rtol=1e-4)
    assert cursor.kept(2).astray == cursor.astray[:2]


def test_without_heads_nothing_is_read(models):
    stage = LMStage(models, slots=2, capacity=CAPACITY)
    _, rows = spoken(stage, models, [replace(request(1, small=True), watched=True)])
    assert not rows[1]


def test_slots_that_move_are_still_followed(models):
    stage = LMStage(models, slots=24, capacity=CAPACITY)
    stage.watch(HEADS)
    one = replace(request(5, small=True), watched=True)
    _, wanted = spoken(stage, models, [one])
    held = [stage.open(one.sampling, 0) for _ in range(20)]
    slot = stage.open(one.sampling, one.seed)
    for other in held:
        stage.close(other)
    stage.prefill({slot: run_of(models, one)})
    rows, ended = [], False
    while not ended:
        stage.decode(1)
        for found in stage.collect(wait=True):
            rows += [] if found.attention is None else list(found.attention)
            ended = found.ended
    np.testing.assert_allclose(np.array(rows), np.array(wanted[5]), atol=1e-5)


def test_a_model_with_random_weights_has_no_heads_that_follow(models):
    samples = []
    for seed in range(5):
        run = run_of(models, request(seed))
        text = slice(1, 1 + 12)
        prompt = (run.rows[0], *(row for row in [run.rows[1]] * 12), run.rows[0])
        samples.append(SpokenSample(prompt, text, (0, 4, 8), tuple(range(seed, seed + 30))))
    assert find_heads(models.lm, samples) is None
