"""Mel → samples: whole, or piece by piece with a state that is kept between pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT

OVERLAP_FRAMES = 8
"""Frames at the end of each piece that are held back and faded into the next piece."""
CONTEXT_FRAMES = 16
"""Frames before the overlap that a seamless piece gets again: more than the generator's reach to the left."""


def whole(vocoder: HiFT | CausalHiFT, mel: Tensor, seed: int | None) -> NDArray[np.float32]:
    """Vocode a whole mel [frames, bins]; seed: of the source's noise, None: no noise  →  [frames · hop] float32."""
    noise = source_noise(vocoder, seed, 0, len(mel), mel.device)
    whole_mel = mel.T[None]
    wave = vocoder.decode(whole_mel, vocoder.source(vocoder.f0(whole_mel, None), noise))
    samples: NDArray[np.float32] = wave[0].cpu().numpy()
    return samples


def source_noise(
    vocoder: HiFT | CausalHiFT, seed: int | None, first: int, count: int, device: torch.device
) -> Tensor | None:
    """Noise of frames first … first + count, the same however the frames are cut: [1, samples, 1 or harmonics]."""
    if seed is None:
        return None
    hop = vocoder.config.samples_per_frame
    counters = torch.arange(first * hop, (first + count) * hop, device=device)
    return vocoder.source.draw(torch.tensor([[seed]], device=device), counters[None])


def at_speed(mel: Tensor, speed: float) -> Tensor:
    """The whole mel, stretched to int(frames / speed) frames as in the official code; mel: [frames, bins]."""
    if speed == 1.0:
        return mel
    return interpolate(mel.T[None], size=max(1, int(len(mel) / speed)), mode="linear")[0].T


def stretched(mel: Tensor, speed: float, final: bool) -> Tensor:
    """A stream's mel at another speed, as far as it can be computed.

    Output frame k lies at (k + 1/2) · speed − 1/2 of the input, whose ends are repeated. If not final, an output frame
    needs both its neighbours in the input.

    mel: [frames, bins]; final: no more frames will follow  →  [frames', bins]; int(frames / speed) of them if final
    """
    if speed == 1.0:
        return mel
    end = len(mel)
    count = max(1, int(end / speed)) if final else int((end - 0.5) / speed + 0.5)
    # On the CPU: not every device has float64, and float32 would lose the fraction within a minute.
    index = torch.arange(count, dtype=torch.float64)
    position = ((index + 0.5) * speed - 0.5).clamp(0, end - 1)
    left = position.floor().clamp(max=max(end - 2, 0))
    weight = (position - left).to(mel.device, mel.dtype)[:, None]
    low = left.long().to(mel.device)
    return mel[low] * (1 - weight) + mel[(low + 1).clamp(max=end - 1)] * weight


@dataclass(frozen=True)
class _Rule:
    """Rules for the state that is kept from piece to piece."""

    mel_frames: int
    """Frames that the next piece gets again, with the overlap."""
    source_frames: int
    """Number of frames, among those that the next piece gets again, whose source is kept."""
    window: Tensor
    """Fade in, then fade out: [2 · n], of the overlap's first n samples."""
    continuous: bool
    """True: the source's phase continues after the last kept frame; False: it starts again."""


def _rule(joins: CrossfadeMode, hop: int) -> _Rule:
    if joins is CrossfadeMode.OFFICIAL:
        window = torch.from_numpy(np.hamming(2 * OVERLAP_FRAMES * hop).astype(np.float32))
        return _Rule(OVERLAP_FRAMES, OVERLAP_FRAMES, window, continuous=False)
    # A fade of one frame is enough: there the old version has most of its right neighbours, and the new version has
    # all its neighbours. A raised cosine between sample centres adds up to one everywhere.
    size = 2 * hop
    window = torch.sin(torch.pi * (torch.arange(size) + 0.5) / size).square()
    return _Rule(OVERLAP_FRAMES + CONTEXT_FRAMES, CONTEXT_FRAMES, window, continuous=True)


def wave_stream(vocoder: HiFT | CausalHiFT, joins: CrossfadeMode, seed: int | None) -> WaveStream | HistoryStream:
    """The vocoder of one stream, which gets pieces of mel and gives samples."""
    return HistoryStream(vocoder, seed) if isinstance(vocoder, CausalHiFT) else WaveStream(vocoder, joins, seed)


class HistoryStream:
    """A stream of the causal vocoder: each piece vocodes the whole mel so far again, as in the official code."""

    def __init__(self, vocoder: CausalHiFT, seed: int | None) -> None:
        self._vocoder, self._seed = vocoder, seed
        self._mel, self._given = torch.zeros(0, vocoder.config.num_mel_bins), 0

    def push(self, mel: Tensor, final: bool) -> NDArray[np.float32]:
        """mel: [frames, bins], new frames only  →  [n] float32 samples."""
        self._mel = torch.cat((self._mel.to(mel.device), mel))
        kept = max(0, len(self._mel) - (0 if final else self._vocoder.reach.after))
        first, self._given = self._given, kept * self._vocoder.config.samples_per_frame
        return whole(self._vocoder, self._mel, self._seed)[first : self._given]


class WaveStream:
    """A stream of CosyVoice2's vocoder.

    The last `OVERLAP_FRAMES` of a piece lack their right neighbours: they are held back and faded into the next piece's
    version of them. The source of frames already spoken is kept, so that its noise and phase continue.
    """

    def __init__(self, vocoder: HiFT, joins: CrossfadeMode, seed: int | None) -> None:
        self._vocoder, self._seed = vocoder, seed
        self._hop = vocoder.config.samples_per_frame
        self._rule = _rule(joins, self._hop)
        self._mel: Tensor | None = None
        self._source: Tensor | None = None
        self._phase: Tensor | None = None
        self._held: Tensor | None = None
        self._frames = 0
        """Frames received so far."""

    def push(self, mel: Tensor, final: bool) -> NDArray[np.float32]:
        """mel: [frames, bins], new frames only; not final: at least `OVERLAP_FRAMES`  →  [n] float32 samples."""
        if self._mel is not None:
            mel = torch.cat((self._mel, mel))
        start = self._frames if self._mel is None else self._frames - len(self._mel)
        self._frames = start + len(mel)
        source, f0 = self._make_source(mel, start)
        wave = self._vocoder.decode(mel.T[None], source)[0]
        overlap, fade = OVERLAP_FRAMES * self._hop, len(self._rule.window) // 2
        if self._held is not None:
            assert self._mel is not None
            wave = wave[(len(self._mel) - OVERLAP_FRAMES) * self._hop :]
            window = self._rule.window.to(wave.device)
            wave[:fade] = wave[:fade] * window[:fade] + self._held * window[fade:]
        if not final:
            self._held = wave[len(wave) - overlap :][:fade].clone()
            self._remember(mel, source, f0)
            wave = wave[:-overlap]
        samples: NDArray[np.float32] = wave.cpu().numpy()
        return samples

    def _make_source(self, mel: Tensor, start: int) -> tuple[Tensor, Tensor]:
        f0 = self._vocoder.f0(mel.T[None], None)
        kept = 0 if self._source is None else self._source.shape[-1] // self._hop
        made_from = kept if self._rule.continuous else 0
        noise = source_noise(self._vocoder, self._seed, start + made_from, len(mel) - made_from, mel.device)
        source = self._vocoder.source(f0[:, made_from:], noise, self._phase)
        if self._source is not None:
            source = torch.cat((self._source, source[..., (kept - made_from) * self._hop :]), dim=-1)
        return source, f0

    def _remember(self, mel: Tensor, source: Tensor, f0: Tensor) -> None:
        seen_again = min(self._rule.mel_frames, len(mel))
        first = len(mel) - seen_again
        kept = min(self._rule.source_frames, seen_again - (OVERLAP_FRAMES if self._rule.continuous else 0))
        if self._rule.continuous:
            known = 0 if self._source is None else self._source.shape[-1] // self._hop
            spoken = len(mel) - OVERLAP_FRAMES
            if spoken > known:
                self._phase = self._vocoder.source.cycles(f0[:, known:spoken], self._phase)[:, -1] % 1
        self._mel = mel[first:]
        self._source = source[..., first * self._hop : (first + kept) * self._hop]
