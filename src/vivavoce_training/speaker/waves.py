"""Training data of the speaker encoder on the device: waveforms and their degradation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from vivavoce_training.data.store import Corpus
from vivavoce_training.utterances import HEARD_SAMPLES, Speakers, by_token, chance, find_speakers, positions, uniform


@dataclass(frozen=True, eq=False)
class Waves:
    """Utterances at 16 kHz one after another, ordered by speaker, on one device.

    samples: int16 [n]; speakers: their ranges in `samples`.
    """

    samples: Tensor
    speakers: Speakers

    def draw(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Draw crops [batch, length] float32, each within one speaker, and the speakers' indices [batch] int64."""
        starts, speaker = self.speakers.draw(batch, length)
        return self.samples[positions(starts, length, 1)].float() / 32768, speaker


def load_waves(corpus: Corpus, utterances: NDArray[np.int64], device: torch.device, longest: int) -> Waves:
    """Load `utterances`, which are ordered by speaker, to the device: 1.2 GB for ten hours.

    longest: length of the longest crop, in samples; ValueError: every speaker has less speech.
    """
    speakers = find_speakers(corpus, utterances, -(-longest // HEARD_SAMPLES), device, HEARD_SAMPLES)

    def whole(wave: Tensor) -> Tensor:
        return (wave * 32768).round().clamp(-32768, 32767).short()

    return Waves(by_token(corpus, utterances, device, whole), speakers)


STFT_SIZE, STFT_HOP = 512, 128
_BINS = STFT_SIZE // 2 + 1

TILT_DB = 10.0  # Largest rise or fall of the level from the lowest to the highest frequency.
LOW_PASS_SHARE, LOWEST_EDGE = 0.25, 0.45  # Share of rows; lowest cut-off as a share of the band: 3.6 kHz.
LOW_PASS_DB = -60.0
VOCODED_SHARE = 0.3
SMEAR_SHARE = 0.5  # share of the rows that are vocoded
SNR_DB = (10.0, 45.0)
PINKEST = 1.0  # largest exponent of the noise's slope; at 1, power falls as 1 / frequency
LEVEL_DB = (-30.0, 6.0)


class Degrade(nn.Module):
    """Degrades samples [batch, n], float32 at 16 kHz, by a vocoder's errors, a tilt, a low-pass, noise and a gain."""

    window: Tensor
    height: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(STFT_SIZE), persistent=False)
        self.register_buffer("height", torch.linspace(0, 1, _BINS), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        level = samples.square().mean(1, keepdim=True).sqrt()
        spectrum = self._spectrum(samples)
        spectrum = self._vocode(spectrum) * self._colour(spectrum)
        spectrum = spectrum + self._noise(spectrum, level)
        gain = torch.pow(10.0, uniform(samples, *LEVEL_DB) / 20)
        return self._samples(spectrum, samples.shape[1]) * gain[:, :, 0]

    def _vocode(self, spectrum: Tensor) -> Tensor:
        """Change phases at random by up to half a turn; in some rows, smear magnitudes over time and frequency.

        This imitates a vocoder's errors: the mel spectrum that it gets has no phases and no fine magnitudes.
        """
        chosen = chance(spectrum, VOCODED_SHARE)
        turn = uniform(spectrum, 0.2, 1.0) * math.pi * chosen
        shaken = torch.polar(torch.ones_like(spectrum.real), turn * (2 * torch.rand_like(spectrum.real) - 1))
        magnitude = spectrum.abs().unsqueeze(1)
        smeared = functional.avg_pool2d(magnitude, 3, stride=1, padding=1, count_include_pad=False)[:, 0]
        factor = (smeared + 1e-8) / (magnitude[:, 0] + 1e-8)
        smear = chosen & chance(spectrum, SMEAR_SHARE)
        return spectrum * shaken * torch.where(smear, factor.clamp(max=10.0), 1.0)

    def _colour(self, spectrum: Tensor) -> Tensor:
        """Draw a frequency response [batch, bins, 1]: a tilt, and for some rows a low-pass."""
        decibels = uniform(spectrum, -TILT_DB, TILT_DB) * self.height[:, None]
        above = self.height[:, None] > uniform(spectrum, LOWEST_EDGE, 1.0)
        cut = above & chance(spectrum, LOW_PASS_SHARE)
        return torch.pow(10.0, (decibels + LOW_PASS_DB * cut) / 20)

    def _noise(self, spectrum: Tensor, level: Tensor) -> Tensor:
        """Draw noise from white to pink, 10 to 45 dB below a row's `level` [batch, 1] (root mean square)."""
        slope = uniform(spectrum, 0.0, PINKEST)
        shape = (self.height[:, None] * (_BINS - 1)).clamp(min=1.0).pow(-slope / 2)
        shape = shape / shape.square().mean(1, keepdim=True).sqrt()
        below = torch.pow(10.0, -uniform(spectrum, *SNR_DB) / 20)
        # In white noise of deviation 1, each bin's mean squared magnitude is the window's energy. These frames are
        # independent, so after overlap-add they have a quarter of the power of real noise.
        unit = 2 * self.window.square().sum().sqrt()
        return torch.randn_like(spectrum) * unit * shape * below * level[:, :, None]

    def _spectrum(self, samples: Tensor) -> Tensor:
        """Compute the STFT: [batch, n]  →  complex [batch, bins, frames]."""
        padded = functional.pad(samples, (STFT_SIZE, STFT_SIZE + -samples.shape[1] % STFT_HOP))
        spectrum: Tensor = torch.fft.rfft(padded.unfold(1, STFT_SIZE, STFT_HOP) * self.window)
        return spectrum.transpose(1, 2)

    def _samples(self, spectrum: Tensor, num_samples: int) -> Tensor:
        """Invert `_spectrum`. `torch.istft` gives the same result, but waits for the device."""
        frames = torch.fft.irfft(spectrum.transpose(1, 2), STFT_SIZE) * self.window
        length = (frames.shape[1] - 1) * STFT_HOP + STFT_SIZE
        added = functional.fold(frames.transpose(1, 2), (1, length), (1, STFT_SIZE), stride=(1, STFT_HOP))
        overlap = 0.375 * STFT_SIZE / STFT_HOP  # sum of the overlapping squared Hann windows
        return added[:, 0, 0, STFT_SIZE : STFT_SIZE + num_samples] / overlap
