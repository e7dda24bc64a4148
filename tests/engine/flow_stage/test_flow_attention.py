"""Whole rows: the stage computes what the network does when it is asked for them at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plain.flow import FlowInput, whole_mels
from tests.engine.engine_helpers import BOTH
from tests.engine.flow_stage.flow_oracle import check, mel_of, run, say, speech, voice
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.flow_stage.planning import Block, block_ends, grid_ends, near_equal
from vivavoce.errors import InvalidRequest
from vivavoce.models.flow.model import MAX_FRAMES
from vivavoce_training.whole_rows import visible_keys

SHAPES = [(40, 30), (7, 0), (61, 2), (26, 53)]
"""(Speech tokens, prompt tokens)."""


@pytest.fixture(scope="module")
def stage(models):
    return FlowStage(models, state_bytes=0)


def item(conditioning, tokens, final):
    row = torch.cat((conditioning.flow_tokens, torch.tensor(tokens)))
    return FlowInput(row, conditioning.flow_mel, conditioning.embedding, final)


@BOTH
def test_full_attention_of_whole_utterances(models, stage):
    voices, tokens = [voice(prompt) for _, prompt in SHAPES], [speech(count) for count, _ in SHAPES]
    chunks = [FlowRow(stage.open(v), t, len(t), AttentionMode.FULL) for v, t in zip(voices, tokens, strict=True)]
    for mel, v, t in zip(run(stage, chunks), voices, tokens, strict=True):
        assert mel.dtype == torch.float32
        check(mel, whole_mels(models.flow, [item(v, t, True)], False)[0])


@BOTH
def test_grid_attention_of_official_streams(models, stage):
    conditioning, tokens = voice(30), speech(70)
    stream = stage.open(conditioning)
    for hop, spoken in ((20, 0), (25, 20), (25, 45)):
        head = tokens[: spoken + hop + 3]
        if len(head) == spoken + hop + 3:
            mel = say(stage, stream, tokens[: spoken + hop + 9], hop, AttentionMode.GRID)
            whole = whole_mels(models.flow, [item(conditioning, head, False)], True)[0]
        else:
            mel = say(stage, stream, tokens, hop, AttentionMode.FULL)
            whole = whole_mels(models.flow, [item(conditioning, tokens, True)], False)[0]
        check(mel, whole[2 * spoken : 2 * (spoken + hop)])
    assert stream.spoken == 70


@BOTH
def test_grid_attention_of_rows_of_several_lengths(models, stage):
    voices = [voice(prompt) for _, prompt in SHAPES]
    rows = [speech(count + 3) for count, _ in SHAPES]
    chunks = [
        FlowRow(stage.open(v), row, len(row) - 3, AttentionMode.GRID) for v, row in zip(voices, rows, strict=True)
    ]
    for mel, v, row in zip(run(stage, chunks), voices, rows, strict=True):
        check(mel, whole_mels(models.flow, [item(v, row, False)], True)[0])


@BOTH
@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_what_the_lookahead_lacks_is_zeros(models, stage, ahead):
    conditioning, tokens = voice(4), speech(20)
    mel = say(stage, stage.open(conditioning), tokens[: 17 + ahead], 17, AttentionMode.BLOCKS)
    check(mel, mel_of(models, conditioning, tokens[: 17 + ahead], [17]))
    if ahead == 0:
        final = whole_mels(models.flow, [item(conditioning, tokens[:17], True)], False)[0]
        check(say(stage, stage.open(conditioning), tokens[:17], 17, AttentionMode.FULL), final)
    else:
        less = say(stage, stage.open(conditioning), tokens[: 16 + ahead], 17, AttentionMode.BLOCKS)
        assert not torch.allclose(mel, less, atol=1e-3)


@BOTH
def test_frames_count_what_is_computed(models):
    stage = FlowStage(models, state_bytes=60 << 20)
    stream = stage.open(voice(30))
    chunk, prompt = FlowRow(stream, speech(60), 10, AttentionMode.BLOCKS), FlowRow(stream)
    stage.start([chunk]).abandon()
    assert (chunk.frames, chunk.past_frames) == (80, 0)
    assert run(stage, [prompt]) == [None]
    assert (prompt.frames, prompt.past_frames) == (54, 0)
    assert run(stage, [chunk])[0].shape == (20, 80)
    assert (chunk.frames, chunk.past_frames) == (26, 54)
    after, full = (FlowRow(stream, speech(60), 5, mode) for mode in (AttentionMode.BLOCKS, AttentionMode.FULL))
    stage.start([after]).abandon()
    assert (after.frames, after.past_frames) == (10, 80)
    stage.start([full]).abandon()
    assert full.frames == 90
    short = FlowRow(stage.open(voice(3)))
    assert run(stage, [short]) == [None]
    assert short.frames == 0


def test_rows_past_the_noise_are_refused(stage):
    stream = stage.open(voice(30))
    tokens = speech(MAX_FRAMES // 2)
    with pytest.raises(InvalidRequest, match=f"{len(tokens)} speech tokens with the voice's 30"):
        stage.start([FlowRow(stream, tokens, len(tokens), AttentionMode.FULL)])
    assert say(stage, stream, tokens, 4, AttentionMode.FULL).shape == (8, 80)


def test_work_that_makes_no_batch_is_refused(stage):
    one, other, tokens = stage.open(voice(4)), stage.open(voice(5)), speech(9)
    full, grid = FlowRow(one, tokens, 5, AttentionMode.FULL), FlowRow(other, tokens, 5, AttentionMode.GRID)

    def refused(message, work, *given):
        with pytest.raises(ValueError, match=message):
            work(*given)

    refused("one kind", stage.start, [full, grid])
    refused("one kind", stage.start, [])
    refused("once", stage.start, [full, full])
    refused("hop 10", stage.start, [FlowRow(one, tokens, 10, AttentionMode.FULL)])
    job = stage.start([full])
    refused("running batch", stage.start, [full])
    refused("steps left", job.result)
    while job.steps_left:
        job.step()
    job.result()
    refused("no step left", job.step)
    refused("has ended", job.result)
    stage.close(one)
    refused("closed", stage.start, [FlowRow(one, tokens, 2, AttentionMode.FULL)])


@given(start=st.integers(0, 200), size=st.integers(0, 300), most=st.integers(1, 60))
def test_blocks_are_few_and_near_equal(start, size, most):
    bounds = near_equal(start, start + size, most)
    sizes = np.diff([start, *bounds])
    assert sum(sizes) == size
    assert len(bounds) == -(-size // most)
    assert size == 0 or (sizes.max() <= most and sizes.max() - sizes.min() <= 1)


def test_a_position_sees_to_the_end_of_its_block():
    blocks = (Block(2, 3), Block(5, 5), Block(6, 9))
    ends, known = block_ends(blocks, 0, 6)
    assert ends.tolist() == [2, 2, 5, 5, 5, 6]
    assert known.tolist() == [3, 3, 5, 5, 5, 9]
    ends, known = block_ends(blocks, 2, 6)
    assert ends.tolist() == [5, 5, 5, 6]
    assert known.tolist() == [5, 5, 5, 9]


@given(size=st.integers(1, 40), chunk=st.integers(1, 12))
def test_the_grid_is_that_of_the_network(size, chunk):
    mask = visible_keys(torch.tensor([size]), size, chunk)[0, 0]
    assert grid_ends(0, size, chunk).tolist() == mask.sum(-1).tolist()
