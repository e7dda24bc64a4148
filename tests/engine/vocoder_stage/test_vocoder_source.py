import pytest
import torch
from torch import nn

from tests.small_vocoder import with_small_vocoder
from vivavoce.models.vocoder.hift import convolve, convolve_transposed, laid_out


@torch.inference_mode()
def test_one_noise_stands_for_all_harmonics(models):
    source, frames = models.vocoder.source, 40
    samples, harmonics = frames * source.config.samples_per_frame, source.config.num_harmonics + 1
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


@torch.inference_mode()
def test_a_causal_sources_noise_is_uniform_and_by_position(models):
    source = with_small_vocoder(models, causal=True).vocoder.source
    seeds, places = torch.tensor([[3], [4]]), torch.arange(5000)[None]
    noise = source.draw(seeds, places)
    assert noise.shape == (2, 5000, source.config.num_harmonics + 1)
    assert noise.min() >= 0
    assert noise.max() < 1
    # Not centred, as in the official code; and neither places, harmonics nor seeds share numbers.
    torch.testing.assert_close(noise.mean((0, 1)), torch.full((noise.shape[2],), 0.5), atol=0.02, rtol=0)
    torch.testing.assert_close(noise.std(), torch.tensor(12**-0.5), atol=5e-3, rtol=0)
    assert len(noise.unique()) > 0.99 * noise.numel()
    assert torch.equal(source.draw(seeds[1:], places[:, 1234:1300]), noise[1:, 1234:1300])


@torch.inference_mode()
def test_a_causal_sources_phase_stands_still_within_a_frame_and_runs_on(models):
    source = with_small_vocoder(models, causal=True).vocoder.source
    f0 = 100 + 200 * torch.rand(1, 40, generator=torch.Generator().manual_seed(2))
    whole = source(f0, None)
    frames = whole.unflatten(2, (40, -1))
    assert torch.equal(frames, frames[..., :1].expand_as(frames))
    assert frames.std() > 0.01
    rest = source(f0[:, 17:], None, source.cycles(f0[:, :17], None)[:, -1] % 1)
    hop = source.config.samples_per_frame
    torch.testing.assert_close(rest, whole[..., 17 * hop :], atol=1e-3, rtol=0)
