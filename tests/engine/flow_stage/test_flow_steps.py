"""Fast steps are the midpoint method, chunk by chunk, beside official steps; a distilled flow keeps its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.engine.engine_helpers import BOTH, offline, running, segment
from tests.engine.engine_helpers import voice as voice_of
from tests.engine.flow_stage.flow_oracle import check, mel_of, say, speak, speech, stage_of, voice
from tests.fast_flow import coarse_cuts, quick_interpreter, with_small_flow
from vivavoce.engine.flow_stage import FlowRow
from vivavoce.engine.request import FlowSteps
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import build_models
from vivavoce.models.flow import model as flow_model

TOKENS = speech(80)
HOPS = [12, 30]


@pytest.fixture
def models(models):
    """Of the official number of steps."""
    return replace(models, config=replace(models.config, flow=replace(models.config.flow, num_steps=10)))


@BOTH
@torch.inference_mode()
def test_chunks_are_those_of_the_midpoint_method(models):
    stage = stage_of(models, 40)
    fast, official = stage.open(voice(30), FlowSteps.FAST), stage.open(voice(30))
    made = [say(stage, one, TOKENS[:15], 12) for one in (fast, official)]
    made = [
        torch.cat((first, speak(stage, one, TOKENS, HOPS[1:])))
        for first, one in zip(made, (fast, official), strict=True)
    ]
    for mel, steps in zip(made, (FlowSteps.FAST, FlowSteps.OFFICIAL), strict=True):
        check(mel, mel_of(models, voice(30), TOKENS[: sum(HOPS) + 3], HOPS, steps))
    assert not torch.allclose(*made, atol=1e-3)


def test_a_batch_has_one_kind_of_steps(models):
    stage = stage_of(models, 40)
    rows = [FlowRow(stage.open(voice(30), steps), TOKENS[:15], 12) for steps in FlowSteps]
    with pytest.raises(ValueError, match="one kind of attention and of steps"):
        stage.start(rows)


def test_a_distilled_flow_keeps_its_own_steps(models):
    few = replace(models, config=replace(models.config, flow=replace(models.config.flow, num_steps=4)))
    stage = stage_of(few, 4)
    assert {steps: len(schedule) for steps, schedule in stage.schedules.items()} == dict.fromkeys(FlowSteps, 4)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter")
@BOTH
@torch.inference_mode()
def test_kernels_take_fast_steps_beside_official_ones(models, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(flow_model, "FAST_STEPS", 1)
    small = with_small_flow(models, num_steps=3)
    with quick_interpreter(), coarse_cuts():
        made = []
        for kernels in (True, False):
            stage = stage_of(small, 20, kernels=kernels)
            streams = [stage.open(voice(30), steps) for steps in FlowSteps]
            mels = []
            for hop in (4, 3):
                jobs = [stage.start([FlowRow(one, TOKENS[: one.spoken + hop + 3], hop)]) for one in streams]
                while any(job.steps_left for job in jobs):
                    for job in jobs:
                        if job.steps_left:
                            job.step()
                mels += [mel for job in jobs for mel in job.result()]
            made.append(mels)
    for fast, expected in zip(*made, strict=True):
        check(fast, expected)
    assert not torch.allclose(made[0][0], made[0][1], atol=1e-3)


def test_an_engine_mixes_requests_of_both_kinds(models):
    with running(models, source_noise=False) as engine:

        def samples(*steps):
            texts = [replace(segment(40, seed=1), flow_steps=one) for one in steps]
            handles = [engine.submit(offline(one)) for one in texts]
            return [torch.from_numpy(handle.result().samples) for handle in handles]

        fast, official, default = samples(FlowSteps.FAST, FlowSteps.OFFICIAL, None)
        alone = samples(FlowSteps.FAST)[0]
    torch.testing.assert_close(official, default, atol=1e-4, rtol=0)
    torch.testing.assert_close(fast, alone, atol=1e-4, rtol=0)
    assert (fast - official).abs().max() > 1e-3


def test_cosyvoice_1_has_official_steps_only(babble_v1):
    models = build_models(babble_v1, torch.device("cpu"))
    text = replace(segment(10, voice=voice_of(2, 12, 4096)), flow_steps=FlowSteps.FAST)
    with running(models) as engine, pytest.raises(InvalidRequest, match="flow_steps: CosyVoice 1 has only official"):
        engine.submit(offline(text))
