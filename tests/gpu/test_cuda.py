"""On a CUDA device: the same tokens in float32 as on a CPU and in any company, near in 16 bit, and no waiting."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.plain.flow import stream_mel, stream_units
from benchmarks.plain.vocoder import whole
from tests.parity.stages import stage_mel
from vivavoce.engine.chunk_policy import ChunkPolicy, CrossfadeMode
from vivavoce.engine.engine import Engine
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.lm_stage import LMStage, plain_run
from vivavoce.engine.request import Conditioning, EngineRequest, FlowSteps, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.vocoder_stage import VocoderRow, VocoderStage
from vivavoce.models.build import Models, build_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
SETTINGS = EngineSettings(slots=32, state_bytes=256 << 20)
POLICY = ChunkPolicy.low_latency()
TEXTS = [tuple(range(65, 65 + size)) for size in (3, 12, 5, 1, 9, 20, 7, 4)]
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """float32 products in float32: TF32 keeps ten bits of the mantissa."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module", params=["babble", "babble_v3"])
def folder(request: pytest.FixtureRequest) -> Path:
    """Each generation's."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def cuda(folder) -> Models:
    return build_models(folder, CUDA)


@pytest.fixture(scope="module")
def models(folder) -> Models:
    return build_models(folder, torch.device("cpu"))


def texts(conditioning: Conditioning) -> list[SegmentRequest]:
    sampling = SamplingParams(max_ratio=4.0)
    return [SegmentRequest(conditioning, text=text, seed=s, sampling=sampling) for s, text in enumerate(TEXTS)]


def given(conditioning: Conditioning, count: int) -> SegmentRequest:
    tokens = torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(1)).tolist()
    return SegmentRequest(conditioning, speech_tokens=tuple(tokens))


def spoken(models: Models, requests: Sequence[SegmentRequest]) -> list[tuple[int, ...]]:
    """Tokens of streams that run together."""
    with Engine(models, SETTINGS) as engine:
        handles = [engine.submit(EngineRequest((request,), POLICY)) for request in requests]
        return [handle.result().tokens[0] for handle in handles]


def test_a_closed_engine_gives_its_memory_back(cuda):
    room = torch.cuda.memory_reserved() + (4 << 30)
    settings = EngineSettings(slots=8, memory_bytes=room)
    for _ in range(3):  # one engine's memory is all that may be taken
        with Engine(cuda, settings) as engine:
            assert engine.memory.state_bytes > 1 << 30
        del engine


def test_float32_says_what_the_cpu_says(cuda, models, conditioning):
    assert spoken(cuda, texts(conditioning)) == spoken(models, texts(conditioning))


def test_company_changes_no_token(cuda, conditioning):
    first, *others = texts(conditioning)
    neighbours = [
        SegmentRequest(conditioning, text=other.text, seed=100 + number, sampling=other.sampling)
        for number, other in enumerate((others * 5)[:31])
    ]
    (alone,) = spoken(cuda, [first])
    assert spoken(cuda, [*neighbours, first])[-1] == alone


@pytest.mark.parametrize("attention", [AttentionMode.FULL, AttentionMode.GRID])
@torch.inference_mode()
def test_float32_mel_equals_the_cpu(cuda, models, conditioning, attention):
    tokens, chunked = given(conditioning, 120).speech_tokens, attention is AttentionMode.GRID
    ours, theirs = (stage_mel(one, conditioning, tokens, True, chunked) for one in (cuda, models))
    torch.testing.assert_close(ours.cpu(), theirs, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype", HALVES)
@torch.inference_mode()
def test_sixteen_bit_mel_is_near(folder, models, conditioning, dtype):
    tokens = given(conditioning, 120).speech_tokens
    halved = build_models(folder, CUDA, dtype)
    ours, theirs = (stage_mel(one, conditioning, tokens, True, False).cpu() for one in (halved, models))
    assert (ours - theirs).square().mean().sqrt() < 0.05 * theirs.square().mean().sqrt()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("policy", [None, POLICY, ChunkPolicy.official()])
def test_sixteen_bit_speaks(folder, conditioning, dtype, policy):
    request = given(conditioning, 75)
    with Engine(build_models(folder, CUDA, dtype), SETTINGS) as engine:
        chunks = list(engine.submit(EngineRequest((request,), policy)))
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert chunks[-1].final
    assert len(samples) == 75 * 960
    assert np.isfinite(samples).all()
    assert samples.std() > 1e-3


@pytest.mark.parametrize("steps", FlowSteps)
@torch.inference_mode()
def test_chunks_by_kernels_are_near_those_of_the_cpu(folder, models, conditioning, steps):
    tokens = given(conditioning, 60).speech_tokens

    def mel(stage: FlowStage) -> Tensor:
        stream = stage.open(conditioning, steps)
        run(stage, FlowRow(stream))
        chunks = [run(stage, FlowRow(stream, tokens[: stream.spoken + hop + 3], hop)) for hop in (15, 25)]
        return torch.cat([one for (one,) in chunks if one is not None]).float().cpu()

    halved = build_models(folder, CUDA, torch.float16)
    with torch.cuda.stream(torch.cuda.Stream()):  # launches are not recorded on the default stream
        ours = mel(FlowStage(halved, state_bytes=256 << 20, kernels=True))
    theirs = mel(FlowStage(models, state_bytes=64 << 20))
    assert (ours - theirs).square().mean().sqrt() < 0.05 * theirs.square().mean().sqrt()


@torch.inference_mode()
def test_a_stream_equals_its_whole(cuda, conditioning):
    """Chunks that continue a state, against all mel computed and vocoded at once."""
    request = given(conditioning, 75)
    with Engine(cuda, SETTINGS) as engine:
        chunks = list(engine.submit(EngineRequest((request,), POLICY)))
    hops = [15, 15, 25, 20]
    reach = cuda.config.flow.encoder.lookahead
    units = stream_units(len(conditioning.flow_tokens), hops, 75, POLICY.lookahead, reach)
    mel = stream_mel(cuda, conditioning, request.speech_tokens, units)
    one_piece = whole(cuda.vocoder, mel, request.seed)
    streamed = np.concatenate([chunk.samples for chunk in chunks])
    assert len(chunks) == len(hops)
    assert streamed.shape == one_piece.shape
    assert np.sqrt(np.square(streamed - one_piece).mean() / np.square(one_piece).mean()) < 0.1


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says of itself that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def test_decode_steps_do_not_wait(cuda, conditioning):
    stage = LMStage(cuda, slots=8, capacity=512)
    stage.prefill(
        {
            stage.open(request.sampling, request.seed): plain_run(cuda.config.lm, request, official=False, room=None)
            for request in texts(conditioning)[:3]
        }
    )
    stage.decode()  # what is made once is made
    with no_waiting():
        for _ in range(4):
            stage.decode()
            stage.collect(wait=False)
    while stage.in_flight:
        stage.collect(wait=True)


@torch.inference_mode()
def test_flow_and_vocoder_do_not_wait(cuda, conditioning):
    flow, vocoder, tokens = FlowStage(cuda, state_bytes=256 << 20), VocoderStage(cuda), given(conditioning, 60)
    stream, voice = flow.open(conditioning), vocoder.open(1, 1.0, CrossfadeMode.SEAMLESS)

    def chunk(first: int, hop: int) -> list[Tensor]:
        (mel,) = run(flow, FlowRow(stream, tokens.speech_tokens[: first + hop + 3], hop, AttentionMode.BLOCKS))
        return vocoder.run([VocoderRow(voice, mel, final=False)])

    run(flow, FlowRow(stream))
    chunk(0, 15)
    with no_waiting():
        samples = chunk(15, 25)
    assert len(samples[0]) == 25 * 960


def run(flow: FlowStage, work: FlowRow) -> list[Tensor | None]:
    """One batch from its start to its mel."""
    job = flow.start([work])
    while job.steps_left:
        job.step()
    return job.result()
