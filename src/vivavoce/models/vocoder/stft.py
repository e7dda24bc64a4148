"""Short-time Fourier transform and its inverse over padded batches: every row as if it stood alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import fold

from vivavoce.models.layers.masks import valid_positions


def stft(signal: Tensor, lengths: Tensor | None, n_fft: int, hop: int) -> Tensor:
    """Spectrum with centred frames, each row reflected at its own end (periodic Hann window).

    signal: [batch, samples]; lengths: [batch] samples, None if all are full  →  [batch, n_fft + 2, samples // hop + 1],
    real parts first, zero past a row's frames
    """
    samples = signal.shape[1]
    last = (torch.full((1,), samples, device=signal.device) if lengths is None else lengths)[:, None] - 1
    position = torch.arange(-(n_fft // 2), samples + n_fft // 2, device=signal.device).abs()
    mirrored = torch.where(position > last, 2 * last - position, position).clamp(0, samples - 1)
    padded = signal.gather(1, mirrored.expand(len(signal), -1))
    window = torch.hann_window(n_fft, device=signal.device)
    spectrum = torch.stft(padded, n_fft, hop, n_fft, window, center=False, return_complex=True)
    parts = torch.cat((spectrum.real, spectrum.imag), dim=1)
    if lengths is None:
        return parts
    return parts * valid_positions(lengths // hop + 1, parts.shape[-1])[:, None]


def istft(magnitude: Tensor, phase: Tensor, lengths: Tensor | None, n_fft: int, hop: int) -> Tensor:
    """Waveform from magnitude and phase: windowed overlap-add over the row's own frames, ends trimmed.

    magnitude, phase: [batch, n_fft / 2 + 1, frames]; lengths: [batch] frames, None if all are full
    →  [batch, (frames − 1) · hop]
    """
    frames = magnitude.shape[-1]
    window = torch.hann_window(n_fft, device=magnitude.device)
    pieces = torch.fft.irfft(torch.polar(magnitude, phase), n=n_fft, dim=1) * window[:, None]
    envelope = window.square()[None, :, None].expand(1, -1, frames)
    if lengths is not None:
        inside = valid_positions(lengths, frames)[:, None]
        pieces, envelope = pieces * inside, envelope * inside
    signal, weight = (_overlap_add(x, hop) for x in (pieces, envelope))
    trimmed = slice(n_fft // 2, n_fft // 2 + (frames - 1) * hop)
    return signal[:, trimmed] / weight[:, trimmed].clamp(min=1e-11)


def _overlap_add(pieces: Tensor, hop: int) -> Tensor:
    """pieces: [batch, n_fft, frames]  →  [batch, (frames − 1) · hop + n_fft]."""
    _, n_fft, frames = pieces.shape
    length = (frames - 1) * hop + n_fft
    return fold(pieces, (1, length), kernel_size=(1, n_fft), stride=(1, hop))[:, 0, 0]
