"""The vocoder's training: spectral losses, discriminators, and the training step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad
from torch.nn.utils.parametrizations import weight_norm

from vivavoce.models.features import slaney_filterbank
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT
from vivavoce_training.data.store import MELS_PER_TOKEN, TOKEN_SAMPLES
from vivavoce_training.loop import Optimizer, Recipe, TrainingStep
from vivavoce_training.vocoder.crops import Crop, Crops, augment

Vocoder = HiFT | CausalHiFT

TINY = 1e-10  # Added to power before its square root, whose slope at 0 is infinite.
QUIET_MEL = 1e-5  # The floor of `prompt_mel`.
QUIET = 5e-5
"""Floor of magnitudes in the loss, divided by the square root of `n_fft`; a little above the noise of 16-bit audio."""


class Resolution(NamedTuple):
    n_fft: int
    hop: int
    bins: int


SCALES = tuple(
    Resolution(*sizes)
    for sizes in ((128, 32, 10), (256, 64, 20), (512, 128, 40), (1024, 256, 80), (2048, 512, 160), (1920, 480, 80))
)
"""STFT sizes of the losses. The last sizes are those of the vocoder's input mel, but up to half the sample rate."""


class SpectralLoss(nn.Module):
    """Multi-resolution STFT loss (Parallel WaveGAN, arXiv:1910.11480) and multi-scale mel loss (arXiv:2306.06546).

    Windows and filters are kept on the device, because a CUDA graph cannot copy them from the host.
    """

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        for i, scale in enumerate(SCALES):
            filters = slaney_filterbank(sample_rate, scale.n_fft, scale.bins, 0.0, sample_rate / 2)
            self.register_buffer(f"window{i}", torch.hann_window(scale.n_fft), persistent=False)
            self.register_buffer(f"filters{i}", filters.clone(), persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the waves made, real: [batch, samples] float32, no shorter than the largest frame.

        →  STFT loss (spectral convergence plus the mean absolute difference of logarithms) and mel loss (the mean
        absolute difference of natural logarithms), each averaged over the scales
        """
        stft_losses, mel_losses = [], []
        for i, scale in enumerate(SCALES):
            ours = self._magnitude(i, made)
            with torch.no_grad():
                theirs = self._magnitude(i, real)
            floor = QUIET * scale.n_fft**0.5
            convergence = torch.linalg.vector_norm(ours - theirs) / (torch.linalg.vector_norm(theirs) + floor)
            stft_losses.append(convergence + _log_difference(ours, theirs, floor))
            filters = self.get_buffer(f"filters{i}")
            mel_losses.append(_log_difference(filters @ ours, filters @ theirs, QUIET_MEL))
        return torch.stack(stft_losses).mean(), torch.stack(mel_losses).mean()

    def _magnitude(self, i: int, wave: Tensor) -> Tensor:
        """[batch, samples]  →  [batch, n_fft / 2 + 1, frames]; whole frames only, without padding."""
        scale, window = SCALES[i], self.get_buffer(f"window{i}")
        spectrum = torch.stft(wave, scale.n_fft, scale.hop, window=window, center=False, return_complex=True)
        return (torch.view_as_real(spectrum).square().sum(-1) + TINY).sqrt()


def _log_difference(a: Tensor, b: Tensor, floor: float) -> Tensor:
    return (a.clamp(min=floor).log() - b.clamp(min=floor).log()).abs().mean()


def judged_real(scores: list[Tensor]) -> Tensor:
    """Compute the least-squares loss of scores that should be 1 (arXiv:1611.04076), averaged over discriminators."""
    return torch.stack([(1 - score.float()).square().mean() for score in scores]).mean()


def judged_made(scores: list[Tensor]) -> Tensor:
    """Compute the least-squares loss of scores that should be 0, averaged over the discriminators."""
    return torch.stack([score.float().square().mean() for score in scores]).mean()


def feature_distance(made: list[Tensor], real: list[Tensor]) -> Tensor:
    """Compute the mean absolute difference of the discriminators' features, relative to the real features' size.

    Feature matching (HiFi-GAN, arXiv:2010.05646), made independent of each layer's scale (EnCodec, arXiv:2210.13438).
    """
    distances = []
    for ours, theirs in zip(made, real, strict=True):
        target = theirs.detach().float()
        distances.append((ours.float() - target).abs().mean() / (target.abs().mean() + 1e-3))
    return torch.stack(distances).mean()


PERIODS = (2, 3, 5, 7, 11)
PERIOD_CHANNELS = (16, 64, 256, 512, 512)
RESOLUTIONS = ((512, 128), (1024, 256), (2048, 512))  # frame and hop of each spectrum
RESOLUTION_CHANNELS = 32
SLOPE = 0.1
COMPRESSION = 0.3  # exponent of magnitudes: loud and soft parts get more similar weights, as in hearing
SMALLEST_POWER = 1e-7

Judgement = tuple[list[Tensor], list[Tensor]]
"""Output of the discriminators: a map of scores of each discriminator, and the features of all their inner layers."""


class Discriminators(nn.Module):
    """A discriminator per period (HiFi-GAN, arXiv:2010.05646) and one per spectrum (UnivNet, arXiv:2106.07889)."""

    def __init__(
        self, period_channels: tuple[int, ...] = PERIOD_CHANNELS, resolution_channels: int = RESOLUTION_CHANNELS
    ) -> None:
        super().__init__()
        self.by_period = nn.ModuleList(_period_stack(period_channels) for _ in PERIODS)
        self.by_spectrum = nn.ModuleList(_spectrum_stack(resolution_channels) for _ in RESOLUTIONS)
        for i, (n_fft, _) in enumerate(RESOLUTIONS):
            self.register_buffer(f"window{i}", torch.hann_window(n_fft), persistent=False)

    def forward(self, wave: Tensor) -> Judgement:
        """wave: [batch, samples] float32, no shorter than the largest frame."""
        scores: list[Tensor] = []
        features: list[Tensor] = []
        images = [_folded(wave, period) for period in PERIODS]
        images += [self._spectrum(i, wave) for i in range(len(RESOLUTIONS))]
        for x, stack in zip(images, (*self.by_period, *self.by_spectrum), strict=True):
            first, *inner, last = stack
            # Channels last in memory: the layout of cuDNN's half-precision kernels.
            x = leaky_relu(first(x).contiguous(memory_format=torch.channels_last), SLOPE)
            features.append(x)
            for conv in inner:
                x = leaky_relu(conv(x), SLOPE)
                features.append(x)
            scores.append(last(x))
        return scores, features

    def _spectrum(self, i: int, wave: Tensor) -> Tensor:
        """Compressed magnitudes: [batch, samples]  →  [batch, 1, frames, bins]."""
        n_fft, hop = RESOLUTIONS[i]
        window = self.get_buffer(f"window{i}")
        with torch.autocast(wave.device.type, enabled=False):
            spectrum = torch.stft(wave.float(), n_fft, hop, window=window, center=False, return_complex=True)
            power = torch.view_as_real(spectrum).square().sum(-1) + SMALLEST_POWER
            return power.pow(COMPRESSION / 2).transpose(1, 2)[:, None]


def _folded(wave: Tensor, period: int) -> Tensor:
    """[batch, samples]  →  [batch, 1, samples / period, period], the last row filled up with zeros."""
    return pad(wave, (0, -wave.shape[1] % period)).view(len(wave), 1, -1, period)


def _period_stack(channels: tuple[int, ...]) -> nn.ModuleList:
    """Convolutions along time alone, each but the last two with stride 3."""
    layers = [
        _conv(before, after, (5, 1), (1, 1) if i == len(channels) - 1 else (3, 1))
        for i, (before, after) in enumerate(pairwise((1, *channels)))
    ]
    return nn.ModuleList((*layers, _conv(channels[-1], 1, (3, 1))))


def _spectrum_stack(channels: int) -> nn.ModuleList:
    """Three convolutions that halve the frequencies, then two without stride."""
    layers = [_conv(1 if i == 0 else channels, channels, (3, 9), (1, 2)) for i in range(3)]
    return nn.ModuleList((*layers, _conv(channels, channels, (3, 3)), _conv(channels, 1, (3, 3))))


def _conv(before: int, after: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1)) -> nn.Module:
    padding = (kernel[0] // 2, kernel[1] // 2)
    conv: nn.Module = weight_norm(nn.Conv2d(before, after, kernel, stride, padding))
    return conv


ALONE, WITH_ADVERSARY = 0, 1  # variants of the step

BATCH = 32
CROP_TOKENS = 26
MARGIN_TOKENS = 1
"""Tokens cut off at either end of a crop before the losses, because the network got zeros there in place of speech.

CosyVoice3's vocoder looks four tokens ahead, so it still reads zeros near the end. So it learns how speech ends.
"""
JUDGED_TOKENS = 12  # the discriminators get this part of each crop, its middle

GENERATOR = Recipe(learning_rate=6e-4, betas=(0.8, 0.99), clip_norm=50.0)
PITCH = Recipe(learning_rate=1e-3, clip_norm=10.0, weight_decay=0.0)
"""The pitch predictor has no weight decay: its output is in Hz, so weights of 100 would decay as fast as they learn."""
ADVERSARY = Recipe(learning_rate=3e-4, betas=(0.8, 0.99), clip_norm=10.0)

STFT_WEIGHT, MEL_WEIGHT = 4.0, 20.0
JUDGED_WEIGHT, FEATURE_WEIGHT = 2.0, 10.0
PREDICTED_SHARE = 0.5
"""Share of crops whose source has the predicted pitch, as at inference; the true pitch teaches sharp harmonics."""
FLOW_SHARE = 0.7  # share of crops that take the flow's mel, if there is one
PITCH_UNIT_HZ = 50.0


class VocoderStep(TrainingStep):
    """A training step of the vocoder, in the variants `ALONE` and `WITH_ADVERSARY`.

    The networks run in float32, because the phases of the source need that precision. It costs little time on a GPU
    with TF32: the networks are small, and moving their large activations takes most of it. The discriminators run in
    bfloat16.
    """

    def __init__(
        self,
        crops: Crops,
        starts: Tensor,
        model: Vocoder,
        discriminators: Discriminators,
        *,
        batch: int = BATCH,
        rate: float = 1.0,
        joins_at: float = 0.0,
    ) -> None:
        """starts: [n] int64, token positions to draw crops from; rate: factor on all learning rates; joins_at: share of
        the budget after which the adversary takes part.
        """
        self._crops, self._starts, self._batch, self._joins_at = crops, starts, batch, joins_at
        self.modules = {"generator": model, "discriminators": discriminators}
        self._model, self._discriminators = model, discriminators
        self._spectral = SpectralLoss(model.config.sample_rate).to(starts.device)
        pitch = list(model.f0.parameters())
        known = {id(parameter) for parameter in pitch}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
        learned = {
            "generator": (rest, GENERATOR),
            "pitch": (pitch, PITCH),
            "adversary": (discriminators.parameters(), ADVERSARY),
        }
        self.optimizers = {
            name: Optimizer(parameters, replace(recipe, learning_rate=recipe.learning_rate * rate))
            for name, (parameters, recipe) in learned.items()
        }

    def variant(self, step: int, progress: float) -> int:
        return WITH_ADVERSARY if progress >= self._joins_at else ALONE

    def __call__(self, variant: int) -> dict[str, Tensor]:
        at = torch.randint(len(self._starts), (self._batch,), device=self._starts.device)
        crop = augment(self._crops.cut(self._starts[at], CROP_TOKENS, FLOW_SHARE))
        predicted = self._model.f0(crop.mel, None)
        values = {"pitch": self._learn_pitch(predicted, crop.pitch)}
        made, real = _middle(self._decode(crop, predicted.detach())), _middle(crop.wave)
        stft, mel = self._spectral(made, real)
        values |= {"stft": stft, "mel": mel}
        loss = STFT_WEIGHT * stft + MEL_WEIGHT * mel
        if variant == WITH_ADVERSARY:
            length = JUDGED_TOKENS * TOKEN_SAMPLES
            first = (made.shape[1] - length) // 2
            part = made[:, first : first + length]
            slope, judged = self._judge(part.detach(), real[:, first : first + length])
            values |= judged
            # The gradient of this term at the waveform is `slope`, so the discriminators do not run again.
            loss = loss + (part * slope).sum()
        self.optimizers["generator"].update(loss)
        return values

    def _learn_pitch(self, predicted: Tensor, tracked: Tensor) -> Tensor:
        """Train the pitch predictor on L1 in Hz, whose optimum is the median: 0 if frames are mostly unvoiced."""
        edge = MARGIN_TOKENS * MELS_PER_TOKEN
        error = (predicted - tracked)[:, edge:-edge].abs().mean()
        self.optimizers["pitch"].update(error / PITCH_UNIT_HZ)
        return error

    def _decode(self, crop: Crop, predicted: Tensor) -> Tensor:
        chosen = torch.rand(len(predicted), 1, device=predicted.device) < PREDICTED_SHARE
        pitch = torch.where(chosen, predicted, crop.pitch)
        seeds = torch.randint(1 << 62, (len(pitch), 1), device=pitch.device)
        return self._model.decode(crop.mel, self._model.source(pitch, drawn_noise(self._model, pitch, seeds)))

    def _judge(self, made: Tensor, real: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Update the discriminators. Return the gradient at the waveform `made` [batch, samples], and values to log.

        Update and gradient use one forward pass, so the gradient is that of the discriminators before this update.
        """
        made = made.requires_grad_()
        cached = nn.utils.parametrize.cached()
        with torch.autocast(made.device.type, torch.bfloat16), cached:
            real_scores, real_features = self._discriminators(real)
            made_scores, made_features = self._discriminators(made)
        fooled, features = judged_real(made_scores), feature_distance(made_features, real_features)
        verdict = JUDGED_WEIGHT * fooled + FEATURE_WEIGHT * features
        (slope,) = torch.autograd.grad(verdict, made, retain_graph=True)
        loss = judged_real(real_scores) + judged_made(made_scores)
        self.optimizers["adversary"].update(loss)
        return slope, {"adversary": loss, "fooled": fooled, "features": features}


def drawn_noise(model: Vocoder, pitch: Tensor, seeds: Tensor) -> Tensor:
    """Draw the source's noise as for a stream. pitch: [batch, frames]; seeds: [batch, 1] int64."""
    samples = pitch.shape[1] * model.config.samples_per_frame
    return model.source.draw(seeds, torch.arange(samples, device=pitch.device)[None])


def _middle(wave: Tensor) -> Tensor:
    return wave[:, MARGIN_TOKENS * TOKEN_SAMPLES : (CROP_TOKENS - MARGIN_TOKENS) * TOKEN_SAMPLES]
