import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.vocoder import augment as augmentation
from training.vocoder.augment import augment
from training.vocoder.crops import PIECE_TOKENS, Crop, _pitch_of, load_crops, starts_apart_from
from training.vocoder.pitch import track_pitch
from vivavoce.models.features.mel import prompt_mel

CPU = torch.device("cpu")


def test_a_crop_is_the_same_stretch_of_all_arrays(corpus, config):
    crops = load_crops(corpus, config.mel, CPU)
    crop = crops.cut(torch.tensor([3, 41]), 5)
    assert crop.wave.shape == (2, 4800)
    assert crop.mel.shape == (2, 80, 10)
    np.testing.assert_array_equal(crop.wave[1] * 32768, corpus.wav[41 * 960 : 46 * 960])
    torch.testing.assert_close(crop.mel[1], crops.mel[82:92].T.float())
    # The fifth utterance hums at 170 Hz, and the crop begins at its second token.
    torch.testing.assert_close(crop.pitch[1, 2:], torch.full((8,), 170.0), rtol=5e-3, atol=0)


def test_pitch_does_not_depend_on_the_pieces():
    generator = torch.Generator().manual_seed(0)
    samples = (PIECE_TOKENS + 30) * 960
    pitch = 150 + 40 * torch.sin(torch.arange(samples) / 5000)
    wave = 0.2 * torch.sin(2 * math.pi * torch.cumsum(pitch / 24_000, 0)) + 0.02 * torch.randn(
        samples, generator=generator
    )
    wave = (wave * 32767).short()
    torch.testing.assert_close(_pitch_of(wave)[:-1], track_pitch(wave[None] / 32768)[0, :-1], rtol=1e-4, atol=0)


def test_the_flows_mels_take_the_real_ones_place(corpus, config, tmp_path):
    path = tmp_path / "mels.npy"
    np.save(path, np.full((200, 80), -3, np.float16))
    crops = load_crops(corpus, config.mel, CPU, path)
    starts = torch.arange(40)
    assert (crops.cut(starts, 2, flow_share=1.0).mel == -3).all()
    assert not (crops.cut(starts, 2).mel == -3).all(dim=(1, 2)).any()
    torch.manual_seed(0)
    from_flow = (crops.cut(starts, 2, flow_share=0.5).mel == -3).flatten(1)
    assert 0 < from_flow.all(1).sum() < 40
    assert (from_flow.all(1) | ~from_flow.any(1)).all()


@pytest.mark.parametrize("wrong", [np.zeros((199, 80), np.float16), np.zeros((200, 80), np.float32)])
def test_mels_that_do_not_fit_are_refused(corpus, config, tmp_path, wrong):
    np.save(tmp_path / "mels.npy", wrong)
    with pytest.raises(ValueError, match=r"mels.npy.*give float16 \[200, 80\]"):
        load_crops(corpus, config.mel, CPU, tmp_path / "mels.npy")


@given(
    num_tokens=st.integers(1, 60),
    crop=st.integers(1, 12),
    held_out=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 12)), max_size=4),
)
def test_crops_stay_apart_from_what_is_held_out(num_tokens, crop, held_out):
    ranges = [(first, first + length) for first, length in held_out]
    tokens_held_out = {token for first, last in ranges for token in range(first, last)}
    expected = [
        start for start in range(num_tokens - crop + 1) if not tokens_held_out.intersection(range(start, start + crop))
    ]
    if expected:
        assert starts_apart_from(ranges, num_tokens, crop).tolist() == expected
    else:
        with pytest.raises(ValueError, match="no crop"):
            starts_apart_from(ranges, num_tokens, crop)


@pytest.fixture
def noisy_crop(config):
    wave = 0.1 * torch.randn(16, 4800, generator=torch.Generator().manual_seed(0))
    return Crop(wave, prompt_mel(wave, config.mel).transpose(1, 2), torch.zeros(16, 10))


def test_a_gain_changes_wave_and_mel_alike(noisy_crop, config, monkeypatch):
    monkeypatch.setattr(augmentation, "NOISE_SHARE", 0.0)
    monkeypatch.setattr(augmentation, "BLUR_SHARE", 0.0)
    louder = augment(noisy_crop)
    torch.testing.assert_close(louder.mel, prompt_mel(louder.wave, config.mel).transpose(1, 2), rtol=0, atol=2e-3)
    gains = louder.wave[:, 0] / noisy_crop.wave[:, 0]
    assert gains.min() >= 0.3 - 1e-4
    assert 0 < (gains == 1).sum() < 16


def test_noise_and_blur_leave_the_wave_and_are_small(noisy_crop, monkeypatch):
    monkeypatch.setattr(augmentation, "GAIN_SHARE", 0.0)
    changed = augment(noisy_crop)
    assert torch.equal(changed.wave, noisy_crop.wave)
    difference = (changed.mel - noisy_crop.mel).std(dim=(1, 2))
    assert 0 < (difference == 0).sum() < 16
    assert 0 < difference.max() < 1


def test_blur_keeps_what_is_flat(monkeypatch):
    monkeypatch.setattr(augmentation, "NOISE_SHARE", 0.0)
    monkeypatch.setattr(augmentation, "GAIN_SHARE", 0.0)
    monkeypatch.setattr(augmentation, "BLUR_SHARE", 1.0)
    flat = Crop(torch.zeros(4, 480), torch.full((4, 80, 6), -2.5), torch.zeros(4, 6))
    torch.testing.assert_close(augment(flat).mel, flat.mel)
    peak = torch.zeros(4, 80, 6)
    peak[:, 40, 3] = 1
    blurred = augment(Crop(flat.wave, peak, flat.pitch)).mel
    torch.testing.assert_close(blurred.sum(dim=(1, 2)), torch.ones(4))
    assert ((blurred[:, 40, 2] > 0) & (blurred[:, 39, 3] > 0) & (blurred[:, 40, 3] < 1)).all()
