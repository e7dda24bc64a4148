import pytest
import torch
from torch import nn

from vivavoce.models.vocoder.hift import convolve, convolve_transposed, laid_out


@torch.inference_mode()
def test_one_noise_stands_for_all_harmonics(models):
    source, frames = models.vocoder.source, 40
    samples, harmonics = models.vocoder.noise_shape(frames)
    generator = torch.Generator().manual_seed(0)
    f0 = torch.zeros(1, frames)
    each, one = (torch.randn(1, samples, count, generator=generator) for count in (harmonics, 1))
    several, merged, silent = (source(f0, noise) for noise in (each, one, None))
    assert merged.shape == several.shape
    assert merged.std() > 1e-3
    torch.testing.assert_close(merged.std(), several.std(), rtol=0.03, atol=0)
    torch.testing.assert_close(merged.mean(), silent.mean(), rtol=0, atol=0.1 * float(merged.std()))


@pytest.mark.parametrize(
    ("conv", "function"),
    [
        (nn.Conv1d(6, 10, 7, dilation=3, padding=9), convolve),
        (nn.Conv1d(6, 10, 6, stride=3, padding=1), convolve),
        (nn.ConvTranspose1d(6, 10, 16, 8, padding=4), convolve_transposed),
    ],
)
@torch.no_grad()
def test_layouts_change_no_numbers(conv, function):
    x = torch.randn(2, 6, 40)
    for signal in (laid_out(x), x[:, :, None]):
        torch.testing.assert_close(function(conv, signal)[:, :, 0], conv(x), atol=1e-5, rtol=0)
    assert laid_out(x).is_contiguous(memory_format=torch.channels_last)


def test_it_computes_the_same_with_and_without_gradients(models):
    mel = torch.randn(2, 80, 9, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 6])
    with torch.no_grad():
        source = models.vocoder.source(models.vocoder.f0(mel, lengths), None)
        quick = models.vocoder.decode(mel, source, lengths)
    torch.testing.assert_close(models.vocoder.decode(mel, source, lengths), quick, atol=1e-5, rtol=0)
