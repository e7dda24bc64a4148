"""On a CUDA device: the same numbers in float32, and close to them in 16 bit."""

import numpy as np
import pytest
import torch

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.pipeline import Pipeline
from vivavoce.engine.request import SamplingParams, StreamRequest, SynthesisRequest
from vivavoce.models.build import build_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TEXTS = [tuple(range(65, 65 + size)) for size in (3, 12, 5, 1, 9, 20, 7, 4)]


def requests(conditioning):
    params = SamplingParams(max_ratio=4.0)
    return [SynthesisRequest(conditioning, text=text, seed=s, sampling=params) for s, text in enumerate(TEXTS)]


@pytest.fixture(autouse=True)
def exact_products():
    """float32 products in float32: TF32 keeps ten bits of the mantissa."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def test_float32_equals_the_cpu(babble, models, conditioning):
    cuda = build_models(babble, torch.device("cuda"))
    ours = Pipeline(cuda, source_noise=False).run(requests(conditioning)).utterances
    theirs = Pipeline(models, source_noise=False).run(requests(conditioning)).utterances
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens == other.tokens
        torch.testing.assert_close(one.mel, other.mel, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_is_near(babble, models, conditioning, dtype):
    cuda = build_models(babble, torch.device("cuda"), dtype)
    given = tuple(torch.randint(0, 6561, (120,), generator=torch.Generator().manual_seed(1)).tolist())
    request = SynthesisRequest(conditioning, speech_tokens=given)
    (one,), (other,) = (Pipeline(m).run([request]).utterances for m in (cuda, models))
    error = (one.mel - other.mel).square().mean().sqrt() / other.mel.square().mean().sqrt()
    assert error < 0.05
    assert np.isfinite(one.samples).all()


def test_streams_run(babble, conditioning):
    cuda = build_models(babble, torch.device("cuda"), torch.bfloat16)
    request = SynthesisRequest(conditioning, text=TEXTS[5])
    chunks = list(Pipeline(cuda).stream(StreamRequest(request, ChunkPolicy.seamless())))
    assert chunks[-1].final
    assert all(np.isfinite(chunk.samples).all() for chunk in chunks)
