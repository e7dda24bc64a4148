import pytest
import torch

from training.vocoder.discriminators import PERIODS, Discriminators
from training.vocoder.losses import SpectralLoss, feature_distance, judged_made, judged_real


@pytest.fixture(scope="module")
def spectral():
    return SpectralLoss(24_000)


def noise(seed, size=(2, 4800)):
    return 0.1 * torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def test_equal_waves_are_at_no_distance(spectral):
    stft, mel = spectral(noise(0), noise(0))
    assert stft == 0
    assert mel == 0


def test_the_distance_grows_with_the_difference_and_not_with_the_phase(spectral):
    real = noise(0)
    near, far = (spectral(factor * real, real) for factor in (0.8, 0.2))
    inverted = spectral(-real, real)
    for i in range(2):
        assert 0 < near[i] < far[i]
        assert inverted[i] < 1e-4
    # A mel at a fifth of the level is log 5 away, wherever it is above the floor.
    torch.testing.assert_close(far[1], torch.tensor(5.0).log(), rtol=0.02, atol=0)


def test_silence_has_a_finite_slope(spectral):
    silent = torch.zeros(2, 4800, requires_grad=True)
    stft, mel = spectral(silent, noise(1))
    (slope,) = torch.autograd.grad(stft + mel, silent)
    assert slope.isfinite().all()


def test_judgements():
    ones, zeros = [torch.ones(2, 3), torch.ones(5)], [torch.zeros(2, 3), torch.zeros(5)]
    assert judged_real(ones) == judged_made(zeros) == 0
    assert judged_real(zeros) == judged_made(ones) == 1
    assert feature_distance(ones, ones) == 0
    scaled = feature_distance([10 * x for x in zeros], [10 * x for x in ones])
    torch.testing.assert_close(scaled, torch.tensor(1.0), rtol=1e-3, atol=0)


def test_discriminators_use_all_of_themselves_and_all_of_the_wave():
    torch.manual_seed(0)
    judges = Discriminators((4, 8, 8), 4)
    wave = noise(2, (2, 4801)).requires_grad_()
    scores, features = judges(wave)
    assert len(scores) == len(PERIODS) + 3
    assert len(features) == 3 * len(PERIODS) + 4 * 3
    judged_real(scores).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in judges.parameters())
    assert wave.grad.isfinite().all()
    assert (wave.grad != 0).float().mean() > 0.99
