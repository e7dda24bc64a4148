"""Whole rows: the stage computes what the network does when it is asked for them at once."""

import pytest
import torch

from tests.engine.flow_stage.flow_oracle import mel_of, run, say, speech, voice
from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowStage, PromptWork
from vivavoce.errors import InvalidRequest
from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.models.flow.model import FlowItem

SHAPES = [(40, 30), (7, 0), (61, 2), (26, 53)]
"""(Speech tokens, prompt tokens)."""


@pytest.fixture(scope="module")
def stage(models):
    with torch.inference_mode():
        return FlowStage(models, state_bytes=0)


def item(conditioning, tokens, final):
    row = torch.cat((conditioning.flow_tokens, torch.tensor(tokens)))
    return FlowItem(row, conditioning.flow_mel, conditioning.embedding, final)


@torch.inference_mode()
def test_full_attention_of_whole_utterances(models, stage):
    voices, tokens = [voice(prompt) for _, prompt in SHAPES], [speech(count) for count, _ in SHAPES]
    chunks = [FlowChunk(stage.open(v), t, len(t), Attention.FULL) for v, t in zip(voices, tokens, strict=True)]
    for mel, v, t in zip(run(stage, chunks), voices, tokens, strict=True):
        assert mel.dtype == torch.float32
        torch.testing.assert_close(mel, models.flow([item(v, t, True)], False)[0], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_grid_attention_of_official_streams(models, stage):
    conditioning, tokens = voice(30), speech(70)
    stream = stage.open(conditioning)
    for hop, spoken in ((20, 0), (25, 20), (25, 45)):
        head = tokens[: spoken + hop + 3]
        if len(head) == spoken + hop + 3:
            mel = say(stage, stream, tokens[: spoken + hop + 9], hop, Attention.GRID)
            whole = models.flow([item(conditioning, head, False)], True)[0]
        else:
            mel = say(stage, stream, tokens, hop, Attention.FULL)
            whole = models.flow([item(conditioning, tokens, True)], False)[0]
        torch.testing.assert_close(mel, whole[2 * spoken : 2 * (spoken + hop)], atol=1e-4, rtol=0)
    assert stream.spoken == 70


@torch.inference_mode()
def test_grid_attention_of_rows_of_several_lengths(models, stage):
    voices = [voice(prompt) for _, prompt in SHAPES]
    rows = [speech(count + 3) for count, _ in SHAPES]
    chunks = [FlowChunk(stage.open(v), row, len(row) - 3, Attention.GRID) for v, row in zip(voices, rows, strict=True)]
    for mel, v, row in zip(run(stage, chunks), voices, rows, strict=True):
        torch.testing.assert_close(mel, models.flow([item(v, row, False)], True)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
@torch.inference_mode()
def test_what_the_lookahead_lacks_is_zeros(models, stage, ahead):
    conditioning, tokens = voice(4), speech(20)
    mel = say(stage, stage.open(conditioning), tokens[: 17 + ahead], 17, Attention.BLOCKS)
    torch.testing.assert_close(mel, mel_of(models, conditioning, tokens[: 17 + ahead], [17]), atol=1e-4, rtol=0)
    if ahead == 0:
        final = models.flow([item(conditioning, tokens[:17], True)], False)[0]
        torch.testing.assert_close(
            say(stage, stage.open(conditioning), tokens[:17], 17, Attention.FULL), final, atol=1e-4, rtol=0
        )
    else:
        less = say(stage, stage.open(conditioning), tokens[: 16 + ahead], 17, Attention.BLOCKS)
        assert not torch.allclose(mel, less, atol=1e-3)


@torch.inference_mode()
def test_frames_count_what_is_computed(models):
    stage = FlowStage(models, state_bytes=60 << 20)
    stream = stage.open(voice(30))
    chunk = FlowChunk(stream, speech(60), 10, Attention.BLOCKS)
    assert (chunk.frames, chunk.past_frames) == (80, 0)
    prompt = PromptWork(stream)
    assert (prompt.frames, prompt.past_frames) == (54, 0)
    assert run(stage, [prompt]) == [None]
    assert (chunk.frames, chunk.past_frames) == (26, 54)
    assert run(stage, [chunk])[0].shape == (20, 80)
    after = FlowChunk(stream, speech(60), 5, Attention.BLOCKS)
    assert (after.frames, after.past_frames) == (10, 80)
    assert FlowChunk(stream, speech(60), 5, Attention.FULL).frames == 90
    assert PromptWork(stage.open(voice(3))).frames == 0


@torch.inference_mode()
def test_rows_past_the_noise_are_refused(stage):
    stream = stage.open(voice(30))
    tokens = speech(MAX_FRAMES // 2)
    with pytest.raises(InvalidRequest, match=f"{len(tokens)} speech tokens with the voice's 30"):
        stage.start([FlowChunk(stream, tokens, len(tokens), Attention.FULL)])
    assert say(stage, stream, tokens, 4, Attention.FULL).shape == (8, 80)


@torch.inference_mode()
def test_work_that_makes_no_batch_is_refused(stage):
    one, other = stage.open(voice(4)), stage.open(voice(5))
    tokens = speech(9)
    full, grid = FlowChunk(one, tokens, 5, Attention.FULL), FlowChunk(other, tokens, 5, Attention.GRID)
    with pytest.raises(ValueError, match="one kind"):
        stage.start([full, grid])
    with pytest.raises(ValueError, match="one kind"):
        stage.start([])
    with pytest.raises(ValueError, match="once"):
        stage.start([full, full])
    with pytest.raises(ValueError, match="hop 10"):
        stage.start([FlowChunk(one, tokens, 10, Attention.FULL)])
    job = stage.start([full])
    with pytest.raises(ValueError, match="running batch"):
        stage.start([full])
    with pytest.raises(ValueError, match="steps left"):
        job.result()
    while job.steps_left:
        job.step()
    job.result()
    with pytest.raises(ValueError, match="no step left"):
        job.step()
    with pytest.raises(ValueError, match="has ended"):
        job.result()
    stage.close(one)
    with pytest.raises(ValueError, match="closed"):
        stage.start([FlowChunk(one, tokens, 2, Attention.FULL)])
