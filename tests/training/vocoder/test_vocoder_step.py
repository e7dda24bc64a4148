import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from training.loop import Optimizer
from training.vocoder.crops import load_crops
from training.vocoder.discriminators import Discriminators
from training.vocoder.step import ALONE, CROP_TOKENS, WITH_ADVERSARY, Step
from training.vocoder.weights import initialise
from vivavoce.models.vocoder.hift import HiFT

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def crops(corpus, config):
    return load_crops(corpus, config.mel, CPU)


@pytest.fixture
def step(crops, config):
    torch.manual_seed(0)
    model, judges = HiFT(config.vocoder), Discriminators((4, 8), 4)
    initialise(model)
    step = Step(crops, torch.arange(crops.num_tokens - CROP_TOKENS + 1), model, judges, batch=2)
    step.networks = {"model": model, "judges": judges}
    return step


def run(step, variant, count):
    values = []
    for number in range(count):
        for optimizer in step.optimizers.values():
            optimizer.set_rate(200 + number, 0.0)  # the warm-up is over
        values.append({name: float(value.detach()) for name, value in step(variant).items()})
    return values


def test_losses_fall(step):
    values = run(step, ALONE, 24)
    first, last = values[:3], values[-3:]
    for name in ("stft", "mel", "pitch"):
        before, after = (sum(value[name] for value in some) for some in (first, last))
        assert after < 0.85 * before, name


def test_a_step_moves_every_parameter(step):
    before = copy.deepcopy({name: module.state_dict() for name, module in step.networks.items()})
    values = run(step, WITH_ADVERSARY, 2)
    assert set(values[0]) == {"pitch", "stft", "mel", "adversary", "fooled", "features"}
    for name, module in step.networks.items():
        still = [key for key, tensor in module.state_dict().items() if torch.equal(tensor, before[name][key])]
        assert not still
        assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


def test_alone_leaves_the_adversary_untouched(step):
    before = copy.deepcopy(step.networks["judges"].state_dict())
    values = run(step, ALONE, 1)
    assert set(values[0]) == {"pitch", "stft", "mel"}
    torch.testing.assert_close(step.networks["judges"].state_dict(), before, rtol=0, atol=0)


def test_the_seed_decides(step):
    start = copy.deepcopy(step)
    results = []
    for one in (step, start):
        torch.manual_seed(5)
        results.append(run(one, WITH_ADVERSARY, 2))
    assert results[0] == results[1]


class _NothingFromTheHost(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: values read by the host, and constants brought from it."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "equal", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func._schema.name.removeprefix("aten::") not in self.FORBIDDEN, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", [ALONE, WITH_ADVERSARY])
def test_a_step_can_be_captured(step, variant, monkeypatch):
    def gradients(self, loss):
        torch.autograd.grad(loss, self.parameters)

    # On a CPU the optimizer itself counts its steps on the host.
    monkeypatch.setattr(Optimizer, "update", gradients)
    with _NothingFromTheHost():
        step(variant)
