"""Resamples recordings as the official front end resamples prompts."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import soxr
import torch
from torch import Tensor
from torch.nn import functional

from vivavoce.frontend.audio.samples import Samples

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99

MAX_KERNEL_VALUES = 1 << 20
"""Maximum number of values in the kernels; if two rates need more, soxr resamples. Common rates need far fewer: 44100
→ 16000 needs 75,000. But 44101 → 24000, two rates without a common factor, would need 10⁹."""


def resample_sinc(samples: Tensor | Samples, from_rate: int, to_rate: int) -> Tensor:
    """Resample `samples` [.., n], float32, to [.., ceil(n·to_rate/from_rate)], as the official code resamples prompts.

    This is band-limited interpolation (J. O. Smith, "Digital Audio Resampling Home Page", CCRMA) with a Hann window
    over six zero crossings and a cutoff at 0.99 of the lower Nyquist frequency. These are the defaults of torchaudio's
    `Resample`; on the CPU, results are equal bit for bit. Runs on the device of `samples`. If two rates need kernels of
    more than `MAX_KERNEL_VALUES`, soxr resamples on the CPU instead, to the same length.
    """
    wave = torch.as_tensor(samples)
    if from_rate == to_rate:
        return wave
    common = math.gcd(from_rate, to_rate)
    old, new = from_rate // common, to_rate // common
    num_samples = -(-wave.shape[-1] * new // old)
    rows = wave.reshape(math.prod(wave.shape[:-1]), wave.shape[-1])
    if new * (2 * _half_width(old, new) + old) > MAX_KERNEL_VALUES:
        return _soxr_to_length(rows, from_rate, to_rate, num_samples).reshape(*wave.shape[:-1], num_samples)

    half_width = _half_width(old, new)
    padded = functional.pad(rows[:, None], (half_width, half_width + old))
    # Each step over `old` input samples gives `new` output samples, one per kernel.
    phases = functional.conv1d(padded, _sinc_kernels(old, new).to(wave.device), stride=old)
    return phases.transpose(1, 2).flatten(1)[:, :num_samples].reshape(*wave.shape[:-1], num_samples)


def _half_width(old: int, new: int) -> int:
    return math.ceil(_ZERO_CROSSINGS * old / (_ROLLOFF * min(old, new)))


@lru_cache(maxsize=8)
def _sinc_kernels(old: int, new: int) -> Tensor:
    """Return kernels [new, 1, 2·half_width + old] for `old` input samples: kernel j gives output sample j of `new`."""
    cutoff = _ROLLOFF * min(old, new)
    half_width = _half_width(old, new)
    positions = torch.arange(-half_width, half_width + old, dtype=torch.float64) / old
    # torchaudio divides in float32 here, and so does this code. Exact offsets would change the samples by only 1e-9,
    # but the log mel bins above the source's bandwidth by 2e-3 (22.05 → 24 kHz).
    offsets = (torch.arange(new, dtype=torch.float32) / new).double()
    crossings = (cutoff * (positions[None] - offsets[:, None])).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(crossings * (math.pi / (2 * _ZERO_CROSSINGS))).square()
    return (torch.sinc(crossings) * window * (cutoff / old)).float()[:, None]


def _soxr_to_length(rows: Tensor, from_rate: int, to_rate: int, num_samples: int) -> Tensor:
    columns = rows.T.cpu().numpy()
    resampled = np.asarray(soxr.resample(columns, from_rate, to_rate), np.float32)[:num_samples]
    exact = np.pad(resampled, ((0, num_samples - len(resampled)), (0, 0)))
    return torch.from_numpy(exact.T.copy()).to(rows.device)
