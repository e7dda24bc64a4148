"""How token2wav's batches are put together, and of which networks."""

import numpy as np
import pytest
import torch

from tests.doors.triton.token2wav_helpers import BARE, VOICE, asked, drawn, engine_wave, hops_of, made, steps, waves
from tests.engine.engine_helpers import relative_error
from vivavoce.doors.triton.models.synthesis import batches_within
from vivavoce.doors.triton.models.synthesis_networks import load_networks, plan_share
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import build_models


@pytest.mark.parametrize(
    ("frames", "padded", "batches"),
    [
        ([], True, []),
        ([10, 10, 10], True, [[0, 1, 2]]),
        ([50, 10, 50, 10], True, [[1, 3], [0, 2]]),
        ([50, 10, 50, 10], False, [[1, 3, 0], [2]]),
        ([1000, 3], True, [[1], [0]]),
        ([0, 100, 0], True, [[0, 2], [1]]),
        ([0, 100, 0], False, [[0, 2, 1]]),
    ],
)
def test_batches(frames, padded, batches):
    """Of at most 100 frames."""
    assert batches_within(frames, 100, padded=padded) == batches


def test_networks_without_a_language_model(babble, models):
    loaded = load_networks(babble, torch.device("cpu"), torch.float32)
    assert loaded.config == models.config
    assert all(parameter.is_meta for parameter in loaded.lm.parameters())
    whole = build_models(babble, torch.device("cpu"))
    for mine, other in ((loaded.flow, whole.flow), (loaded.vocoder, whole.vocoder)):
        theirs = other.state_dict()
        assert mine.state_dict().keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.state_dict().items())
        assert not mine.training
        assert not any(parameter.requires_grad for parameter in mine.parameters())


def test_a_cpu_has_state_and_records_nothing(models):
    plan = plan_share(models, None)
    assert plan.state_bytes > 0
    assert plan.batch_frames is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gpu_gives_what_its_engine_gives(babble, dtype):
    tokens, policy = drawn(48), ChunkPolicy.exponential()
    networks = load_networks(babble, torch.device("cuda"), dtype)
    with pytest.raises(InvalidRequest, match=r"memory_gb: 0\.0 is too little"):
        plan_share(networks, 1 << 20)
    assert plan_share(networks, None).state_bytes > 0
    model = made(networks, batch_frames=2_048)
    model._synthesis.prepare()
    whole, *_ = waves(model, asked(tokens, VOICE, seed=1), *(asked(drawn(30, seed), BARE) for seed in range(5)))
    parts = [waves(model, step)[0] for step in steps(tokens, hops_of(policy, 48), "s", voice=VOICE, seed=1)]
    models = build_models(babble, torch.device("cuda"), dtype)
    assert relative_error(whole, engine_wave(models, tokens, VOICE, seed=1)) < 0.05
    assert relative_error(np.concatenate(parts), engine_wave(models, tokens, VOICE, policy, seed=1)) < 0.05
