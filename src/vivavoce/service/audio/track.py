"""What a decoder hands over: a rate, what the header promises, and blocks of samples read on demand."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from vivavoce.service.audio.types import Samples


class BrokenTrackError(Exception):
    """The container was recognised, but what is inside cannot be decoded. Holds the decoder's own words."""


@dataclass(frozen=True, eq=False)
class Track:
    """One audio track that has been opened but not yet decoded.

    `promised_samples` is the length by a header that can be trusted, else None. `blocks` yields mono float32
    [n] and may raise `BrokenTrackError`; it decodes only as far as it is drawn.
    """

    sample_rate: int
    promised_samples: int | None
    blocks: Generator[Samples, None, None]


def mix_to_mono(channels: Samples, axis: int) -> Samples:
    """Mean over the channels of a block, which lie along `axis`: [n].

    Damaged float files hold values whose sum overflows; the infinite samples that result are refused later.
    """
    if channels.shape[axis] == 1:
        return np.ascontiguousarray(channels.squeeze(axis))
    with np.errstate(over="ignore", invalid="ignore"):
        return channels.mean(axis=axis)
