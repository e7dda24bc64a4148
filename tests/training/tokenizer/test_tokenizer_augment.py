from __future__ import annotations

import pytest
import torch

from training.tokenizer import augment
from training.tokenizer.augment import Augment
from vivavoce.models.features.whisper_mel import whisper_log_mel


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is changed, but what a test sets."""
    for name in ("WARP_SHARE", "TILT_UNITS", "JITTER_UNITS", "LOW_PASS_SHARE", "BLUR_SHARE", "NOISE_TILT_UNITS"):
        monkeypatch.setattr(augment, name, 0.0)
    monkeypatch.setattr(augment, "LEVEL_UNITS", (0.0, 0.0))
    monkeypatch.setattr(augment, "FLOOR_UNITS", (-9.0, -9.0))
    return monkeypatch


def tone(hertz: float) -> torch.Tensor:
    return whisper_log_mel(torch.sin(2 * torch.pi * hertz * torch.arange(16_000) / 16_000))[None]


def test_nothing_drawn_nothing_changed(still: pytest.MonkeyPatch) -> None:
    features = tone(700)
    torch.testing.assert_close(Augment()(features), features, rtol=0, atol=1e-4)


@pytest.mark.parametrize("hertz", [400.0, 900.0, 3000.0])
@pytest.mark.parametrize("factor", [0.85, 1.18])
def test_warping_is_a_speaker_whose_tones_lie_elsewhere(still: pytest.MonkeyPatch, hertz: float, factor: float) -> None:
    still.setattr(augment, "WARP_SHARE", 1.0)
    still.setattr(augment, "WARP", (factor, factor))
    warped, moved = Augment()(tone(hertz)), tone(hertz / factor)
    assert abs(int(warped.mean(2).argmax()) - int(moved.mean(2).argmax())) <= 1


def test_low_pass_leaves_nothing_above(still: pytest.MonkeyPatch) -> None:
    still.setattr(augment, "LOW_PASS_SHARE", 1.0)
    still.setattr(augment, "LOWEST_EDGE", 0.5)
    features = torch.randn(64, 128, 40).clamp(-0.9, 0.9)
    view = Augment()(features)
    cut = view < features - 1e-3
    assert not cut[:, :63].any()
    assert cut[:, 127].any(dim=1).float().mean() > 0.9


def test_level_moves_all_values_alike(still: pytest.MonkeyPatch) -> None:
    still.setattr(augment, "LEVEL_UNITS", (-0.5, -0.5))
    features = tone(700)
    torch.testing.assert_close(Augment()(features), features - 0.5, rtol=0, atol=1e-4)


def test_noise_fills_what_is_quieter(still: pytest.MonkeyPatch) -> None:
    still.setattr(augment, "FLOOR_UNITS", (-1.0, -1.0))
    features = tone(700)
    view = Augment()(features)
    assert view.min() == pytest.approx(float(features.max()) - 1.0, abs=1e-3)
    assert view.max() == pytest.approx(float(features.max()), abs=1e-3)


def test_views_differ_and_keep_the_range() -> None:
    features = tone(700).repeat(16, 1, 1)
    views = Augment()(features)
    assert views.shape == features.shape
    assert views.isfinite().all()
    spread = views.amax(dim=(1, 2)) - views.amin(dim=(1, 2))
    assert spread.max() <= 2.0 + 1e-4
    assert (views[1:] - views[:-1]).abs().mean(dim=(1, 2)).min() > 0.01
