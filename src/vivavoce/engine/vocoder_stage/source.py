"""The excitation of a batch: what streams kept of it, and what is new, with noise by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vivavoce.engine.transfer import to_device
from vivavoce.engine.vocoder_stage.joins import OVERLAP_FRAMES
from vivavoce.engine.vocoder_stage.work import Work
from vivavoce.models.counter_noise import Stream, normal
from vivavoce.models.vocoder.hift import HiFT


@dataclass(frozen=True, eq=False)
class Source:
    """One row's excitation."""

    samples: Tensor
    """[frames · hop] float32."""
    phase: Tensor | None
    """[harmonics] cycles where the next piece's new source begins; None: it starts anew."""


def make_sources(vocoder: HiFT, works: Sequence[Work], f0: Tensor) -> list[Source]:
    """Sources of all rows; works: those without a phase first; f0: [batch, frames] Hz of their mels."""
    new = sum(work.phase is None for work in works)
    parts = (works[:new], f0[:new]), (works[new:], f0[new:])
    return [source for part, pitch in parts if part for source in _alike(vocoder, part, pitch)]


def _alike(vocoder: HiFT, works: Sequence[Work], f0: Tensor) -> list[Source]:
    """Sources of rows that all have a phase, or all have none."""
    hop = vocoder.config.samples_per_frame
    phases = [work.phase for work in works if work.phase is not None]
    carried = torch.stack(phases) if phases else None
    known = [_known_frames(work, hop) if carried is not None else 0 for work in works]
    pitch = pad_sequence(
        [row[first : work.frames] for work, row, first in zip(works, f0, known, strict=True)], batch_first=True
    )
    # One copy to the device: seed, first noise counter, frame at whose end the phase is kept.
    table = to_device(
        torch.tensor(
            [
                (work.piece.stream.seed or 0, work.start + first, max(0, work.frames - OVERLAP_FRAMES - first - 1))
                for work, first in zip(works, known, strict=True)
            ]
        ),
        f0.device,
    )
    noise = None if works[0].piece.stream.seed is None else _noise(hop, table[:, 0], table[:, 1], pitch.shape[1])
    cycles = vocoder.source.cycles(pitch, carried)
    made = vocoder.source.excite(pitch, cycles, noise, carried)[:, 0]
    ends = cycles.gather(1, table[:, 2, None, None].expand(-1, 1, cycles.shape[2]))[:, 0] % 1
    return [
        Source(_joined(work, row, first, hop), end if work.piece.stream.rule.continuous else None)
        for work, row, first, end in zip(works, made, known, ends, strict=True)
    ]


def _known_frames(work: Work, hop: int) -> int:
    """Frames of the row's mel whose source is kept."""
    return 0 if work.before.source is None else len(work.before.source) // hop


def _joined(work: Work, made: Tensor, first: int, hop: int) -> Tensor:
    """The kept source, then the new one, which begins at frame `first`."""
    made = made[: (work.frames - first) * hop]
    if work.before.source is None:
        return made
    return torch.cat((work.before.source, made[len(work.before.source) - first * hop :]))


def _noise(hop: int, seeds: Tensor, first: Tensor, frames: int) -> Tensor:
    """Noise of frames first … first + frames: the same however the frames are cut.

    One number per sample and not one per harmonic: the source adds them up in any case, and drawing them all would
    take a CPU half as long as the whole vocoder.

    seeds, first: [batch] int64  →  [batch, frames · hop, 1] standard normal
    """
    counters = torch.arange(frames * hop, device=seeds.device) + (first * hop)[:, None]
    return normal(seeds[:, None], Stream.SOURCE, counters)[..., None]
