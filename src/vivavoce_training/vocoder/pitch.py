"""Tracks the pitch of waveforms by autocorrelation, in batches; the vocoder's pitch predictor learns from it.

The method is Boersma's (Proceedings of the Institute of Phonetic Sciences 17, 1993). The autocorrelation of a windowed
frame, divided by the window's autocorrelation, peaks at the period and its multiples; a small cost per octave prefers
the shortest. In place of Boersma's path search, a second pass prefers the peak nearest to the neighbours' median.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

SAMPLE_RATE = 24_000
HOP = 480
LOWEST_HZ, HIGHEST_HZ = 60.0, 420.0
WINDOW = 1200  # Samples of a frame: three periods of the lowest pitch.
FFT_SIZE = 2048  # At least the window plus the longest lag, or the correlation would wrap around.
CUTOFF_HZ = 1500.0  # The spectrum fades out above this, where there is more breath than voice.
OCTAVE_COST = 0.02
JUMP_COST = 0.4
VOICED_PEAK = 0.5  # A frame is voiced if its autocorrelation has a higher peak than this; 1 means exactly periodic.
QUIET = 1e-3  # Amplitude (root mean square) below which no frame counts as voiced.
NEIGHBOURS = 12  # Frames on either side that a frame's pitch is compared with.
FARTHEST = 0.75  # A peak farther than this from the neighbours' median, in octaves, is not the pitch.


def track_pitch(wave: Tensor) -> Tensor:
    """Track the pitch of each mel frame. Frames have the centres of `prompt_mel`: 240 + 480 · t samples.

    wave: [batch, samples] float32 at 24 kHz, a multiple of 480 samples  →  [batch, samples / 480] Hz, 0: unvoiced
    """
    correlation = _correlation(wave)
    shortest, longest = int(SAMPLE_RATE / HIGHEST_HZ), int(SAMPLE_RATE / LOWEST_HZ)
    before, here, after = (correlation[..., shortest + i : longest + 1 + i] for i in (-1, 0, 1))
    is_peak = (here > before) & (here >= after) & (here > VOICED_PEAK)
    octaves = torch.arange(shortest, longest + 1, device=wave.device).float().log2()
    strength = torch.where(is_peak, here - OCTAVE_COST * octaves, -torch.inf)
    voiced = is_peak.any(-1)
    usual = _neighbourhood(octaves[strength.argmax(-1)], voiced)
    best = (strength - JUMP_COST * (octaves - usual[..., None]).abs()).argmax(-1)
    voiced = voiced & ((octaves[best] - usual).abs() < FARTHEST)
    left, peak, right = (x.gather(-1, best[..., None])[..., 0] for x in (before, here, after))
    # The vertex of the parabola through the peak and its neighbours.
    curvature = (left - 2 * peak + right).clamp(max=-1e-9)
    lag = best + shortest + 0.5 * (left - right) / curvature
    return _without_outliers(torch.where(voiced, SAMPLE_RATE / lag, 0.0))


def _correlation(wave: Tensor) -> Tensor:
    """Compute the normalised autocorrelation of every frame: [batch, samples]  →  [batch, frames, lags]."""
    margin = (WINDOW - HOP) // 2
    window = torch.hann_window(WINDOW, device=wave.device)
    frames = pad(wave, (margin, margin)).unfold(1, WINDOW, HOP)
    frames = (frames - frames.mean(-1, keepdim=True)) * window
    frequency = torch.fft.rfftfreq(FFT_SIZE, 1 / SAMPLE_RATE, device=wave.device)
    lowpass = torch.exp(-(frequency / CUTOFF_HZ).square())
    lags = int(SAMPLE_RATE / LOWEST_HZ) + 2
    raw, own = _autocorrelation(frames, lowpass)[..., :lags], _autocorrelation(window)[:lags]
    floor = QUIET**2 * window.square().sum()
    normalised: Tensor = raw / (raw[..., :1] + floor) / (own / own[0])
    return normalised


def _autocorrelation(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Transform the power spectrum, times `weight`, back: [..., samples]  →  autocorrelation [..., FFT_SIZE] by lag."""
    power = torch.view_as_real(torch.fft.rfft(x, FFT_SIZE)).square().sum(-1)
    correlation: Tensor = torch.fft.irfft(power * weight, FFT_SIZE)
    return correlation


def _neighbourhood(octaves: Tensor, voiced: Tensor) -> Tensor:
    """Return the median over the voiced frames around each frame, or 0 without voiced frames; all [batch, frames]."""
    known = pad(torch.where(voiced, octaves, torch.nan), (NEIGHBOURS, NEIGHBOURS), value=torch.nan)
    return known.unfold(1, 2 * NEIGHBOURS + 1, 1).nanmedian(-1).values.nan_to_num(0.0)


def _without_outliers(pitch: Tensor) -> Tensor:
    """Take the median of three frames: a single frame whose pitch or voicing differs from both neighbours is wrong."""
    return pad(pitch, (1, 1)).unfold(1, 3, 1).median(-1).values
