"""The vocoder stage: whole mels in one batch, or one stream's mel piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vivavoce.engine.chunk_policy import Joins
from vivavoce.models.counter_noise import Stream, normal
from vivavoce.models.vocoder.hift import HiFT

OVERLAP_FRAMES = 8
"""Frames at the end of each piece that wait for the next one to be faded into."""
CONTEXT_FRAMES = 16
"""Frames before the overlap that a seamless piece sees again: more than the generator's reach to the left."""


@dataclass(frozen=True)
class SourceNoise:
    """Where a request's source noise comes from; `seed` None: no noise at all (parity)."""

    seed: int | None

    def frames(self, vocoder: HiFT, first: int, count: int, device: torch.device) -> Tensor | None:
        """Noise of frames first … first + count: the same however the frames are cut  →  [1, samples, harmonics]."""
        if self.seed is None:
            return None
        samples, harmonics = vocoder.noise_shape(count)
        start = vocoder.noise_shape(first)[0] * harmonics
        counters = torch.arange(start, start + samples * harmonics, device=device).view(1, samples, harmonics)
        return normal(torch.tensor(self.seed, device=device), Stream.SOURCE, counters)


def vocode(vocoder: HiFT, mels: Sequence[Tensor], noises: Sequence[SourceNoise]) -> list[np.ndarray]:
    """Whole waveforms of several mels at once.

    mels: each [frames, bins] float32  →  each [samples] float32
    """
    device = mels[0].device
    sizes = [len(mel) for mel in mels]
    longest = max(sizes)
    lengths = None if min(sizes) == longest else torch.tensor(sizes, device=device)
    drawn = [noise.frames(vocoder, 0, size, device) for noise, size in zip(noises, sizes, strict=True)]
    given = [one[0] for one in drawn if one is not None]
    if given and len(given) < len(drawn):
        raise ValueError("either all mels of a batch have source noise or none")
    batch = pad_sequence(list(mels), batch_first=True).transpose(1, 2)
    waves = vocoder(batch, pad_sequence(given, batch_first=True) if given else None, lengths).cpu().numpy()
    hop = vocoder.config.samples_per_frame
    return [wave[: size * hop] for wave, size in zip(waves, sizes, strict=True)]


@dataclass(frozen=True)
class _Rule:
    """What is carried from piece to piece."""

    mel_frames: int
    """Frames seen again, the overlap included."""
    source_frames: int
    """How many of them keep the source that was made for them."""
    window: Tensor
    """Fade in, then fade out: [2 · n], of the overlap's first n samples."""
    continuous: bool
    """The source's phase runs on from the last kept frame; otherwise it starts anew."""


def _rule(joins: Joins, hop: int) -> _Rule:
    if joins is Joins.OFFICIAL:
        window = torch.from_numpy(np.hamming(2 * OVERLAP_FRAMES * hop).astype(np.float32))
        return _Rule(OVERLAP_FRAMES, OVERLAP_FRAMES, window, continuous=False)
    # One frame is enough: there the old version has most of its right neighbours and the new one all it needs.
    # A raised cosine between sample centres adds up to one everywhere.
    size = 2 * hop
    window = torch.sin(torch.pi * (torch.arange(size) + 0.5) / size).square()
    return _Rule(OVERLAP_FRAMES + CONTEXT_FRAMES, CONTEXT_FRAMES, window, continuous=True)


class VocoderStream:
    """One stream's vocoder: pieces of mel in, samples out, with what must be remembered between them.

    The last `OVERLAP_FRAMES` of a piece lack their right neighbours: they are held back and faded into the next
    piece's version of them. The source of frames already spoken is kept, so that its noise and phase run on.
    """

    def __init__(self, vocoder: HiFT, joins: Joins, noise: SourceNoise) -> None:
        self._vocoder, self._noise = vocoder, noise
        self._hop = vocoder.config.samples_per_frame
        self._rule = _rule(joins, self._hop)
        self._mel: Tensor | None = None
        self._source: Tensor | None = None
        self._phase: Tensor | None = None
        self._held: Tensor | None = None
        self._frames = 0
        """Frames received so far."""

    def push(self, mel: Tensor, final: bool) -> np.ndarray:
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
        if final:
            return wave.cpu().numpy()
        self._held = wave[len(wave) - overlap :][:fade].clone()
        self._remember(mel, source, f0)
        return wave[:-overlap].cpu().numpy()

    def _make_source(self, mel: Tensor, start: int) -> tuple[Tensor, Tensor]:
        f0 = self._vocoder.f0(mel.T[None], None)
        kept = 0 if self._source is None else self._source.shape[-1] // self._hop
        made_from = kept if self._rule.continuous else 0
        noise = self._noise.frames(self._vocoder, start + made_from, len(mel) - made_from, mel.device)
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
                self._phase = self._vocoder.source.phase_at_end(f0[:, known:spoken], self._phase)
        self._mel = mel[first:]
        self._source = source[..., first * self._hop : (first + kept) * self._hop]
