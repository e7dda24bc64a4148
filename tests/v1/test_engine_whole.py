"""CosyVoice 1 in the engine: a request is spoken among neighbours, faults and leavers as it is alone."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.plain.flow import whole_mels_v1
from tests.engine.engine_helpers import arriving, given, inject, offline, running, segment, stream, voice
from tests.v1.conformer_prompt import conformer_rows
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.generations import STAGES
from vivavoce.engine.lm_stage import LMStage, plain_run
from vivavoce.engine.request import InputMode
from vivavoce.errors import InvalidRequest, StageFailed
from vivavoce_v1.flow import WholeInput
from vivavoce_v1.flow_stage import SolverV1

IDS, OFFICIAL = 4096, ChunkPolicy.overlapping()


@pytest.fixture(scope="module")
def models(models_v1):
    return models_v1


def whole_voice(seed, prompt):
    """A voice whose mel and tokens are of no common length."""
    given = voice(seed, prompt, IDS)
    return replace(
        given, flow_mel=given.flow_mel[: max(0, 2 * prompt - 3)], lm_embedding=given.embedding if prompt else None
    )


PROMPTED, OTHER, MUTE = whole_voice(1, 30), whole_voice(2, 12), whole_voice(3, 0)


def spoken(count, seed=3, speed=1.0, voice=PROMPTED):
    return given(count, seed, speed, voice, IDS)


FREE = segment(None, text=tuple(range(65, 90)), seed=5, voice=PROMPTED)
WATCHED = {
    "offline": offline(FREE, segment(35, seed=21, voice=MUTE)),
    "stream": stream(segment(125, seed=8, voice=OTHER), segment(30, seed=9, voice=OTHER), policy=OFFICIAL),
    "conversion": stream(spoken(230), policy=OFFICIAL),
    "faster": stream(spoken(125, speed=1.4), policy=OFFICIAL),
}


@pytest.fixture(scope="module")
def alone(models):
    with running(models) as engine:
        return {name: engine.submit(request).result() for name, request in WATCHED.items()}


@pytest.mark.slow
def test_alone_and_in_company(models, alone):
    chance = random.Random(1)
    with running(models) as engine:
        company = []
        for seed in range(31):
            part = segment(chance.randint(2, 125), seed=seed, voice=chance.choice((PROMPTED, OTHER, MUTE)))
            company.append(engine.submit(chance.choice((offline(part), stream(part, policy=OFFICIAL)))))
        handles = {name: engine.submit(request) for name, request in WATCHED.items()}
        for one in company[::2]:
            one.cancel()
        for name, handle in handles.items():
            result = handle.result()
            assert result.tokens == alone[name].tokens, name
            assert np.array_equal(result.samples, alone[name].samples), name


def test_a_stream_is_cut_as_officially_and_its_state_is_bounded(models, alone):
    kept = []
    with running(models) as engine:
        opened, flow = [], engine.stages.flow
        start = flow.start
        flow.open, first = (lambda *given: opened.append(first(*given)) or opened[-1]), flow.open
        flow.start = lambda work: kept.extend(len(one.kept) for one in opened if one.kept is not None) or start(work)
        chunks = [len(chunk.samples) for chunk in engine.submit(WATCHED["conversion"])]
        assert opened[0].kept is None
    # 172 new frames for 100 tokens, of which 20 wait for the next piece.
    assert chunks == [(172 - 20) * 256, 172 * 256, (models.config.rates.frames_of(30) + 20) * 256]
    assert set(kept) == {len(PROMPTED.flow_mel) + 34}
    assert len(alone["faster"].samples) < 0.75 * 125 / 50 * 22_050


@pytest.mark.parametrize(
    "fault",
    [
        lambda engine: (SolverV1, "step", lambda n, solver, number: number == 3 and victim(solver.rows)),
        lambda engine: (engine.stages.vocoder, "run", lambda n, pieces: any(one.stream.seed == 77 for one in pieces)),
    ],
    ids=["step", "vocoder"],
)
def test_a_failing_batch_hurts_its_own(models, alone, monkeypatch, fault):
    with running(models) as engine:
        owner, name, when = fault(engine)
        where = inject(monkeypatch, owner, name, RuntimeError("no"), when)
        neighbour = engine.submit(WATCHED["conversion"])
        failing = engine.submit(stream(spoken(130, seed=77, voice=OTHER), policy=OFFICIAL))
        with pytest.raises(StageFailed):
            failing.result()
        assert np.array_equal(neighbour.result().samples, alone["conversion"].samples)
        assert where.raised


def victim(rows):
    return any(row.stream.prompt is OTHER.flow_tokens for row in rows)


def test_text_arrives_sentence_by_sentence(models):
    with running(models) as engine:
        handle = engine.submit(arriving(None, InputMode.SEGMENTS, OFFICIAL))
        handle.text.push(segment(20, voice=PROMPTED))
        handle.text.close()
        assert len(handle.result().samples) == models.config.rates.frames_of(20) * 256
        with pytest.raises(InvalidRequest, match="whole sentences"):
            engine.submit(arriving(segment(20, voice=PROMPTED), InputMode.TOKENS, OFFICIAL))


def test_there_are_no_kernels_of_its_own(models):
    builders = STAGES[Generation.V1]
    with pytest.raises(ValueError, match="run without kernels"):
        builders.flow(models, kernels=True)
    with pytest.raises(ValueError, match="run without kernels"):
        builders.lm(models, slots=2, capacity=64, kernels=True)


@torch.inference_mode()
def test_rows_that_are_padded_come_out_as_alone(models):
    """As on a GPU, where calls of any lengths make one batch: padding is in no norm, convolution or attention."""
    flow = models.flow
    items = [
        WholeInput(voice.flow_tokens, torch.arange(count), voice.flow_mel.reshape(-1, 80), torch.randn(80))
        for voice, count in ((PROMPTED, 50), (OTHER, 45), (MUTE, 21))
    ]
    for item, mel in zip(items, whole_mels_v1(flow, items), strict=True):
        torch.testing.assert_close(mel, whole_mels_v1(flow, [item])[0], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_slots_read_what_the_network_reads(models):
    """Rows of a speaker, of encoded texts and of speech, packed with other sequences', against the whole network."""
    lm, seen = models.lm, []

    def greedy(scores, state):
        seen.append(scores.clone())
        return scores[:, :IDS].argmax(-1)

    stage, config = LMStage(models, slots=4, capacity=256, chooser=greedy), models.config.lm
    said = (((70, 71, 72, 73), PROMPTED), ((80,), OTHER), (tuple(range(90, 120)), MUTE))
    asked = [segment(3, text=text, voice=who) for text, who in said]
    stage.prefill({stage.open(one.sampling, 0): plain_run(config, one, official=False, room=None) for one in asked})
    for place, (text, who) in enumerate(said):
        rows = conformer_rows(lm, who.lm_prompt_text + text, who.lm_prompt_tokens, who.lm_embedding)
        whole = lm.speech_head(lm(rows[None]))[0, -1].log_softmax(-1)
        torch.testing.assert_close(seen[0][place, :IDS], whole[:IDS], atol=1e-4, rtol=0)
