"""Computes features of waveforms; the values equal those of the official front end."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from vivavoce.checkpoint.config import MelConfig
from vivavoce.errors import InvalidAudio


def require_samples(num_samples: int, minimum: int, sample_rate: int) -> None:
    if num_samples < minimum:
        raise InvalidAudio(
            f"audio: {num_samples} samples ({num_samples / sample_rate:.3f} s) are too few; features need "
            f"at least {minimum} ({minimum / sample_rate:.3f} s); use a longer recording"
        )


_HZ_PER_MEL = 200 / 3
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27


@lru_cache(maxsize=16)
def slaney_filterbank(sample_rate: int, n_fft: int, num_bins: int, fmin_hz: float, fmax_hz: float) -> Tensor:
    """Return mel filters [num_bins, n_fft // 2 + 1] float32 of unit area, like librosa's `filters.mel`. The tensor is
    cached and shared, so it must not be changed."""
    frequencies = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    edges = _mel_to_hz(torch.linspace(_hz_to_mel(fmin_hz), _hz_to_mel(fmax_hz), num_bins + 2, dtype=torch.float64))
    return (_triangles(frequencies, edges) * (2 / (edges[2:, None] - edges[:-2, None]))).float()


def _triangles(at: Tensor, edges: Tensor) -> Tensor:
    """Return the values at positions `at` [n] of triangles of height 1, [bins, n]. Triangle i goes from edges[i] to
    edges[i + 2] and is highest at edges[i + 1]; edges: [bins + 2]."""
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.minimum((at - left) / (centre - left), (right - at) / (right - centre)).clamp(min=0)


def _hz_to_mel(hz: float) -> float:
    if hz < _LOG_FROM_HZ:
        return hz / _HZ_PER_MEL
    return _LOG_FROM_MEL + math.log(hz / _LOG_FROM_HZ) / _LOG_STEP


def _mel_to_hz(mels: Tensor) -> Tensor:
    logarithmic = _LOG_FROM_HZ * torch.exp(_LOG_STEP * (mels - _LOG_FROM_MEL))
    return torch.where(mels < _LOG_FROM_MEL, mels * _HZ_PER_MEL, logarithmic)


_MAGNITUDE_EPSILON = 1e-9
_MEL_FLOOR = 1e-5
PROMPT_MEL_RATE = 24_000  # in hertz, in all generations; CosyVoice 1 uses its 22.05 kHz settings at 24 kHz


def prompt_mel(samples: Tensor, config: MelConfig) -> Tensor:
    """Compute the mel spectrogram, natural log, [batch, n // hop, bins] of `samples` [batch, n], float32, as in
    HiFi-GAN's code (arXiv:2010.05646): reflect padding by (n_fft - hop)/2, periodic Hann window, magnitude, Slaney
    filters, log with a floor of 1e-5. `config.sample_rate` is used only for the filters."""
    padding = (config.n_fft - config.hop) // 2
    require_samples(samples.shape[-1], max(padding + 1, config.hop), config.sample_rate)
    spectrum = torch.stft(
        functional.pad(samples[:, None], (padding, padding), mode="reflect")[:, 0],
        config.n_fft,
        config.hop,
        config.win_size,
        torch.hann_window(config.win_size, device=samples.device),
        center=False,
        return_complex=True,
    )
    magnitude = (spectrum.real.square() + spectrum.imag.square() + _MAGNITUDE_EPSILON).sqrt()
    filters = slaney_filterbank(config.sample_rate, config.n_fft, config.num_bins, config.fmin_hz, config.fmax_hz)
    mel = filters.to(samples.device) @ magnitude
    return mel.clamp(min=_MEL_FLOOR).log().transpose(1, 2)


SAMPLE_RATE = 16_000
_WHISPER_N_FFT = 400
_WHISPER_HOP = 160
_POWER_FLOOR = 1e-10
_DYNAMIC_RANGE = 8.0  # decades below the loudest value; lower values are raised to this limit


def whisper_log_mel(samples: Tensor, num_bins: int = 128) -> Tensor:
    """Compute Whisper's scaled log-mel [.., num_bins, n // 160] of `samples` [.., n], float32 at 16 kHz, without its
    padding to 30 s. Values have a lower limit relative to the maximum of the same recording."""
    num_samples = samples.shape[-1]
    require_samples(num_samples, _WHISPER_N_FFT // 2 + 1, SAMPLE_RATE)
    rows = samples.reshape(math.prod(samples.shape[:-1]), num_samples)
    window = torch.hann_window(_WHISPER_N_FFT, device=samples.device)
    spectrum = torch.stft(rows, _WHISPER_N_FFT, _WHISPER_HOP, window=window, center=True, return_complex=True)
    power = spectrum[..., :-1].abs().square()
    filters = slaney_filterbank(SAMPLE_RATE, _WHISPER_N_FFT, num_bins, 0.0, SAMPLE_RATE / 2)
    decades = (filters.to(samples.device) @ power).clamp(min=_POWER_FLOOR).log10()
    floor = decades.amax(dim=(1, 2), keepdim=True) - _DYNAMIC_RANGE
    scaled = (decades.maximum(floor) + 4.0) / 4.0
    return scaled.reshape(*samples.shape[:-1], num_bins, num_samples // _WHISPER_HOP)


NUM_BINS = 80
_FRAME_SAMPLES, _FRAME_HOP = 400, 160
_FBANK_N_FFT, _PRE_EMPHASIS, _LOWEST_HZ = 512, 0.97, 20.0


def speaker_fbank(samples: Tensor) -> Tensor:
    """samples [.., n] float32 at 16 kHz, full scale ±1 → log-mel energies [.., frames, 80], minus each bin's mean over
    time. The settings are Kaldi's defaults (25 ms every 10 ms, whole frames only, Povey window, pre-emphasis 0.97, 20
    Hz to Nyquist), but without dither, so that a recording always gives the same voice."""
    require_samples(samples.shape[-1], _FRAME_SAMPLES, SAMPLE_RATE)
    window, filters = _fbank_tables(samples.device)
    frames = samples.unfold(-1, _FRAME_SAMPLES, _FRAME_HOP)
    frames = frames - frames.mean(-1, keepdim=True)
    before = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    power = torch.fft.rfft((frames - _PRE_EMPHASIS * before) * window, _FBANK_N_FFT).abs().square()
    energies = (power @ filters).clamp(min=torch.finfo(torch.float32).eps).log()
    return energies - energies.mean(-2, keepdim=True)


@lru_cache(maxsize=8)
def _fbank_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return Povey's window [400], a Hann window to the power 0.85, and filters [257, 80], evenly spaced on HTK's mel
    scale. Both tensors are cached and shared, so they must not be changed."""
    window = torch.hann_window(_FRAME_SAMPLES, periodic=False, dtype=torch.float64).pow(0.85)
    hertz = torch.arange(_FBANK_N_FFT // 2 + 1, dtype=torch.float64) * (SAMPLE_RATE / _FBANK_N_FFT)
    low, high = _htk_mel(torch.tensor([_LOWEST_HZ, SAMPLE_RATE / 2])).tolist()
    filters = _triangles(_htk_mel(hertz), torch.linspace(low, high, NUM_BINS + 2, dtype=torch.float64)).T
    return window.float().to(device), filters.float().contiguous().to(device)


def _htk_mel(hertz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hertz.double() / 700.0)
