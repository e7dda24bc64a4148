import pytest
import torch

from tests.small_vocoder import causal_of, with_small_vocoder
from vivavoce.models.vocoder.hift import istft, stft


def mels(*sizes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(80, size, generator=generator) for size in sizes]


def spoken(vocoder, mel, noise, lengths=None):
    return vocoder.decode(mel, vocoder.source(vocoder.f0(mel, lengths), noise), lengths)


@torch.inference_mode()
@pytest.mark.parametrize("causal", [False, True])
def test_batched_equals_single(models, causal):
    vocoder = with_small_vocoder(models, causal=True).vocoder if causal else models.vocoder
    alone = mels(31, 12, 50)
    shape = (3, 50 * vocoder.config.samples_per_frame, vocoder.config.num_harmonics + 1)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    batch = torch.zeros(3, 80, 50)
    for row, mel in enumerate(alone):
        batch[row, :, : mel.shape[1]] = mel
        batch[row, :, mel.shape[1] :] = 9.0  # what stands in the padding must not matter
    waves = spoken(vocoder, batch, noise, torch.tensor([31, 12, 50]))
    for row, mel in enumerate(alone):
        samples = mel.shape[1] * vocoder.config.samples_per_frame
        single = spoken(vocoder, mel[None], noise[row : row + 1, :samples])[0]
        torch.testing.assert_close(waves[row, :samples], single, atol=5e-3, rtol=0)


def heard(samples, given):
    """Frames, the last axis of given, that any of the samples depends on."""
    (gradient,) = torch.autograd.grad(samples.square().sum(), given, retain_graph=True)
    places = gradient.flatten(0, -2).abs().sum(0).nonzero()
    return int(places.min()), int(places.max())


@pytest.mark.parametrize("release", [True, False])
def test_a_causal_frame_hears_what_its_reach_says(models, release):
    vocoder = with_small_vocoder(models, causal=True).vocoder
    if release:  # its layers, of few channels
        vocoder = causal_of(models.config.vocoder).requires_grad_(False)
    hop, (before, after) = vocoder.config.samples_per_frame, vocoder.reach
    place, count = before + 3, before + after + 6
    generator = torch.Generator().manual_seed(0)
    mel = torch.randn(1, 80, count, generator=generator).requires_grad_()
    source = (0.1 * torch.randn(1, 1, hop, count, generator=generator)).requires_grad_()
    wave = vocoder.decode(mel, source.transpose(2, 3).flatten(2))[0, place * hop : (place + 1) * hop]
    firsts, lasts = zip(heard(wave, mel), heard(wave, source), heard(vocoder.f0(mel, None)[:, place], mel), strict=True)
    assert min(firsts) == place - before
    # The frame after a frame's last sample hears the lookahead of its own.
    assert max(lasts) <= place + after
    assert after == 8


@torch.inference_mode()
def test_output_is_bounded(models):
    wave = spoken(models.vocoder, 10 * mels(20)[0][None], None)
    assert wave.shape == (1, 20 * 480)
    assert wave.abs().max() <= models.vocoder.config.audio_limit


@torch.inference_mode()
def test_source_runs_on_from_a_carried_phase(models):
    source = models.vocoder.source
    f0 = 100 + 200 * torch.rand(1, 40, generator=torch.Generator().manual_seed(2))
    whole = source(f0, None)
    first = source(f0[:, :17], None)
    rest = source(f0[:, 17:], None, source.cycles(f0[:, :17], None)[:, -1] % 1)
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
