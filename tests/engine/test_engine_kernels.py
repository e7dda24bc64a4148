"""The whole engine on kernels of our own speaks as it does without them."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.engine.engine_helpers import offline, running, segment, stream
from tests.fast_flow import coarse_cuts, quick_interpreter, with_small_flow
from tests.small_vocoder import with_small_vocoder
from vivavoce.engine.settings import EngineSettings
from vivavoce_kernels.lm_attention import SplitK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter(), coarse_cuts(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("vivavoce.models.lm.fused.split_k_for", lambda _: SplitK(64, 1, 1, 2))
        patch.setattr("vivavoce.engine.lm_stage.graphed.ROWS", (48, 96, 144))
        yield


@pytest.fixture(scope="module")
def small(models):
    return with_small_vocoder(with_small_flow(models))


ASKED = [stream(segment(19, seed=1)), offline(segment(4, seed=2)), stream(segment(4, seed=3))]


def spoken(models, asked, **settings):
    with running(models, settings=EngineSettings(slots=3, state_bytes=4 << 20, **settings)) as engine:
        handles = [engine.submit(one) for one in asked]
        results = [handle.result() for handle in handles]
    return results


@pytest.fixture(scope="module")
def plain(small):
    return spoken(small, ASKED, kernels=False)


def check(made, plain):
    for fast, expected in zip(made, plain, strict=True):
        assert fast.tokens == expected.tokens
        assert len(fast.samples) == len(expected.samples)
        assert np.abs(fast.samples - expected.samples).max() < 5e-3 * np.abs(expected.samples).max()


def test_kernels_speak_the_same(small, plain):
    check(spoken(small, ASKED[:2], kernels=True), plain[:2])


@pytest.mark.long
def test_the_deterministic_mode_speaks_too(small, plain):
    check(spoken(small, ASKED[1:], deterministic=True), plain[1:])
