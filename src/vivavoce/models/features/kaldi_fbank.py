"""Kaldi's log-mel filterbank, which the speaker encoder (CAM++, arXiv:2303.00332) reads."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.models.features.lengths import require_samples

SAMPLE_RATE = 16_000
NUM_BINS = 80
_FRAME_SAMPLES = 400


def speaker_fbank(samples: Tensor) -> Tensor:
    """Log-mel energies [frames, 80], float32 on the CPU, each bin less its mean over time.

    `samples` [n] are float32 at 16 kHz, ±1 full scale. Kaldi's defaults (25 ms every 10 ms, whole frames
    only, Povey window, pre-emphasis 0.97, 20 Hz to Nyquist), but no dither: the same audio always gives the
    same voice.

    Raises:
        InvalidAudio: shorter than one frame of 25 ms.
    """
    require_samples(len(samples), _FRAME_SAMPLES, SAMPLE_RATE)
    energies = torch.from_numpy(_log_energies(samples.cpu().numpy()))
    return energies - energies.mean(dim=0, keepdim=True)


def _log_energies(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    import kaldi_native_fbank

    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = SAMPLE_RATE
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = NUM_BINS
    fbank = kaldi_native_fbank.OnlineFbank(options)
    fbank.accept_waveform(SAMPLE_RATE, samples.tolist())
    fbank.input_finished()
    return np.stack([fbank.get_frame(index) for index in range(fbank.num_frames_ready)])
