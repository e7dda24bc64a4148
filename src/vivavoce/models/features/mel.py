"""The mel spectrogram that conditions the flow on a prompt."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vivavoce.checkpoint.config import MelConfig
from vivavoce.models.features.filterbank import slaney_filterbank
from vivavoce.models.features.lengths import require_samples

_MAGNITUDE_EPSILON = 1e-9
_FLOOR = 1e-5


def prompt_mel(samples: Tensor, config: MelConfig) -> Tensor:
    """Natural-log mel spectrogram [batch, n // hop, bins] of `samples` [batch, n], float32.

    As HiFi-GAN's code does (arXiv:2010.05646): reflect padding by (n_fft - hop)/2, periodic Hann window,
    magnitude, Slaney filters, log with a floor of 1e-5. `config.sample_rate` only places the filters, so
    samples at another rate go unnoticed (CosyVoice v1 is trained on just that).

    Raises:
        InvalidAudio: no more samples than the padding reflects.
    """
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
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + _MAGNITUDE_EPSILON).sqrt()
    filters = slaney_filterbank(config.sample_rate, config.n_fft, config.num_bins, config.fmin_hz, config.fmax_hz)
    mel = filters.to(samples.device) @ magnitude
    return mel.clamp(min=_FLOOR).log().transpose(1, 2)
