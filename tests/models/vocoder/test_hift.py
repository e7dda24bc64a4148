import pytest
import torch

from vivavoce.models.vocoder.hift import istft, stft


def mels(*sizes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(80, size, generator=generator) for size in sizes]


@torch.inference_mode()
def test_batched_equals_single(models):
    vocoder = models.vocoder
    alone = mels(31, 12, 50)
    noise = torch.randn(3, *vocoder.noise_shape(50), generator=torch.Generator().manual_seed(1))
    batch = torch.zeros(3, 80, 50)
    for row, mel in enumerate(alone):
        batch[row, :, : mel.shape[1]] = mel
        batch[row, :, mel.shape[1] :] = 9.0  # what stands in the padding must not matter
    waves = vocoder(batch, noise, torch.tensor([31, 12, 50]))
    for row, mel in enumerate(alone):
        samples = mel.shape[1] * vocoder.config.samples_per_frame
        single = vocoder(mel[None], noise[row : row + 1, :samples])[0]
        torch.testing.assert_close(waves[row, :samples], single, atol=5e-3, rtol=0)


@torch.inference_mode()
def test_output_is_bounded(models):
    wave = models.vocoder(10 * mels(20)[0][None], None)
    assert wave.shape == (1, 20 * 480)
    assert wave.abs().max() <= models.vocoder.config.audio_limit


@torch.inference_mode()
def test_source_runs_on_from_a_carried_phase(models):
    source = models.vocoder.source
    f0 = 100 + 200 * torch.rand(1, 40, generator=torch.Generator().manual_seed(2))
    whole = source(f0, None)
    first = source(f0[:, :17], None)
    rest = source(f0[:, 17:], None, source.phase_at_end(f0[:, :17]))
    joined = torch.cat((first, rest), -1)
    # The half frame before the cut is drawn towards a frame that the first piece did not have.
    known = torch.ones(40 * 480, dtype=torch.bool)
    known[17 * 480 - 240 : 17 * 480] = False
    torch.testing.assert_close(joined[..., known], whole[..., known], atol=2e-2, rtol=0)


@torch.inference_mode()
def test_unvoiced_frames_are_silent_without_noise(models):
    source = models.vocoder.source
    quiet = source(torch.full((1, 4), 5.0), None)
    assert torch.allclose(quiet, quiet[..., :1])
    noise = torch.randn(1, 4 * 480, 9)
    assert source(torch.full((1, 4), 5.0), noise).std() > 0


@pytest.mark.parametrize("frames", [2, 7, 40])
def test_stft_inverts(frames):
    signal = torch.randn(2, 4 * frames, generator=torch.Generator().manual_seed(frames))
    spectrum = stft(signal, None, 16, 4)
    real, imaginary = spectrum.chunk(2, dim=1)
    back = istft(torch.hypot(real, imaginary), torch.atan2(imaginary, real), None, 16, 4)
    torch.testing.assert_close(back, signal, atol=1e-5, rtol=0)


def test_stft_is_torchs():
    signal = torch.randn(1, 400)
    window = torch.hann_window(16)
    theirs = torch.stft(signal, 16, 4, 16, window, return_complex=True)
    torch.testing.assert_close(stft(signal, None, 16, 4), torch.cat((theirs.real, theirs.imag), 1))


def test_stft_of_a_padded_row_is_its_own():
    signal = torch.randn(2, 64)
    ragged = stft(signal, torch.tensor([64, 40]), 16, 4)
    torch.testing.assert_close(ragged[1:, :, :11], stft(signal[1:, :40], None, 16, 4))
    assert (ragged[1, :, 11:] == 0).all()
