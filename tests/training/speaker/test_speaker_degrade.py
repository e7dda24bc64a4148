from __future__ import annotations

import pytest
import torch

from training.speaker import degrade
from training.speaker.degrade import Degrade


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is changed, but what a test sets."""
    for name in ("TILT_DB", "LOW_PASS_SHARE", "VOCODED_SHARE"):
        monkeypatch.setattr(degrade, name, 0.0)
    monkeypatch.setattr(degrade, "SNR_DB", (200.0, 200.0))
    monkeypatch.setattr(degrade, "LEVEL_DB", (0.0, 0.0))
    return monkeypatch


@pytest.fixture
def voice() -> torch.Tensor:
    time = torch.arange(16_001) / 16_000
    return 0.1 * sum(torch.sin(2 * torch.pi * 120 * k * time) for k in range(1, 40)).repeat(8, 1)


def power_above(samples: torch.Tensor, hertz: float) -> torch.Tensor:
    spectrum = torch.fft.rfft(samples).abs().square()
    edge = int(hertz / 8000 * spectrum.shape[1])
    return spectrum[:, edge:].sum(1)


def test_nothing_drawn_nothing_changed(still: pytest.MonkeyPatch, voice: torch.Tensor) -> None:
    torch.testing.assert_close(Degrade()(voice), voice, rtol=0, atol=1e-5)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_noise_is_as_loud_as_drawn(still: pytest.MonkeyPatch, voice: torch.Tensor, slope: float) -> None:
    still.setattr(degrade, "SNR_DB", (20.0, 20.0))
    still.setattr(Degrade, "_uniform", staticmethod(lambda like, low, high: torch.full((len(like), 1, 1), high)))
    still.setattr(degrade, "PINKEST", slope)
    noise = Degrade()(voice) - voice
    ratio = 10 * torch.log10(voice.square().mean(1) / noise.square().mean(1))
    assert ratio.mean() == pytest.approx(20, abs=1.0)
    share_above = power_above(noise, 4000) / power_above(noise, 0)
    assert share_above.mean() == pytest.approx(0.5 if slope == 0 else 0.11, abs=0.03)


def test_a_vocoder_keeps_what_is_loud_where_and_loses_the_waveform(
    still: pytest.MonkeyPatch, voice: torch.Tensor
) -> None:
    still.setattr(degrade, "VOCODED_SHARE", 1.0)
    still.setattr(degrade, "SMEAR_SHARE", 0.0)
    still.setattr(Degrade, "_uniform", staticmethod(lambda like, low, high: torch.full((len(like), 1, 1), high)))
    heard = Degrade()(voice)
    assert torch.cosine_similarity(heard, voice).abs().max() < 0.3
    kept = 10 * torch.log10(power_above(heard, 0) / power_above(voice, 0))
    assert kept.abs().max() < 8
    share = power_above(heard, 4000) / power_above(heard, 0)
    torch.testing.assert_close(share, power_above(voice, 4000) / power_above(voice, 0), rtol=0.2, atol=0)


def test_low_pass_and_tilt(still: pytest.MonkeyPatch, voice: torch.Tensor) -> None:
    still.setattr(degrade, "LOW_PASS_SHARE", 1.0)
    still.setattr(degrade, "LOWEST_EDGE", 0.4)
    still.setattr(Degrade, "_uniform", staticmethod(lambda like, low, high: torch.full((len(like), 1, 1), low)))
    heard = Degrade()(voice)
    assert (power_above(heard, 3600) < 1e-3 * power_above(voice, 3600)).all()
    kept = power_above(voice, 0) - power_above(voice, 3200)
    torch.testing.assert_close(power_above(heard, 0), kept, rtol=0.1, atol=0)


def test_all_at_once_keeps_shape_and_sense(voice: torch.Tensor) -> None:
    heard = Degrade()(voice)
    assert heard.shape == voice.shape
    assert heard.isfinite().all()
    assert (heard.square().mean(1).sqrt() > 1e-4).all()
    assert not torch.equal(heard[0], heard[1])
