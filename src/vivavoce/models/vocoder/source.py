"""The harmonic source: sines at the pitch and its multiples where voiced, noise elsewhere (arXiv:1904.12088)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, linear

from vivavoce.checkpoint.config import VocoderConfig


class HarmonicSource(nn.Module):
    """Pitch → excitation signal.

    Phases are summed per frame and drawn out to samples linearly, frame centre to frame centre, as CosyVoice2 does.
    A stream that vocodes piece by piece carries the phase from one piece to the next.
    """

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.merge = nn.Linear(config.num_harmonics + 1, 1)

    def forward(self, f0: Tensor, noise: Tensor | None, carried: Tensor | None = None) -> Tensor:
        """Excitation for whole frames.

        f0: [batch, frames] Hz, 0 past a row's end; noise: [batch, samples, harmonics] standard normal, None: silent,
        or [batch, samples, 1] for what the harmonics' noises come to together, which a single one draws as well;
        carried: [batch, harmonics] cycles, what `phase_at_end` gave for the frames before  →  [batch, 1, samples]
        """
        return self.excite(f0, self.cycles(f0, carried), noise, carried)

    def cycles(self, f0: Tensor, carried: Tensor | None) -> Tensor:
        """Cycles of each harmonic divided by the samples of a frame, summed over frames: the scale is applied last,
        as in the official code, because float32 rounding depends on it.

        Shapes as in `forward`  →  [batch, frames, harmonics]
        """
        multiples = torch.arange(1, self.config.num_harmonics + 2, device=f0.device, dtype=f0.dtype)
        per_sample = (f0[..., None] * multiples / self.config.sample_rate) % 1
        start = 0 if carried is None else carried[:, None]
        return start + torch.cumsum(per_sample, dim=1)

    def excite(self, f0: Tensor, cycles: Tensor, noise: Tensor | None, carried: Tensor | None) -> Tensor:
        """`forward`, given what `cycles` makes of the same f0 and carried."""
        config, hop = self.config, self.config.samples_per_frame
        if carried is None:
            phase = _draw_out(cycles, hop)
        else:
            phase = _draw_out(torch.cat((carried[:, None], cycles), dim=1), hop)[..., hop:]
        voiced = (f0 > config.voiced_threshold_hz).float().repeat_interleave(hop, dim=1)[:, None]
        signal = voiced * (config.sine_amplitude * (self.merge.weight @ torch.sin(phase))) + self.merge.bias
        if noise is not None:
            strength = voiced * config.noise_std + (1 - voiced) * (config.sine_amplitude / 3)
            signal = signal + strength * self._merged(noise).transpose(1, 2)
        return torch.tanh(signal)

    def _merged(self, noise: Tensor) -> Tensor:
        """Independent normal numbers, weighted and summed, are one normal number of the weights' root sum of squares.

        noise: [batch, samples, harmonics or 1]  →  [batch, samples, 1]
        """
        return noise * self.merge.weight.norm() if noise.shape[-1] == 1 else linear(noise, self.merge.weight)

    def phase_at_end(self, f0: Tensor, carried: Tensor | None = None) -> Tensor:
        """Cycles, modulo 1, summed up to the last frame; shapes as in `forward`  →  [batch, harmonics]."""
        return self.cycles(f0, carried)[:, -1] % 1


def _draw_out(cycles: Tensor, hop: int) -> Tensor:
    """Summed cycles per frame → phase per sample in radians; [batch, frames, h]  →  [batch, h, frames · hop]."""
    phase = cycles * (2 * math.pi)
    return interpolate(phase.transpose(1, 2) * hop, scale_factor=float(hop), mode="linear")
