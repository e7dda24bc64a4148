"""Speech tokens that are all there, spoken chunk by chunk by the clock, and beside it whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.bench.chunking import Cut
from vivavoce.bench.outcome import Arrival
from vivavoce.bench.percentiles import percentile
from vivavoce.bench.playback import play

Samples = NDArray[np.float32]
_MS = 1000.0


@dataclass(frozen=True, eq=False)
class Speech:
    """Speech tokens and who says them; voice: whatever token2wav knows a voice by."""

    id: str
    tokens: tuple[int, ...]
    voice: Any
    seed: int


class ChunkedToken2Wav(Protocol):
    """Speech tokens → samples, whole or chunk by chunk."""

    @property
    def sample_rate(self) -> int:
        """Of all its audio."""

    def whole(self, speech: Speech) -> Samples:
        """All at once: [n] float32 on the host."""

    def chunks(self, speech: Speech, cuts: Sequence[Cut]) -> Iterator[Samples]:
        """Chunk by chunk, each as soon as it is made: [n] float32 on the host, possibly of no samples."""


@dataclass(frozen=True, eq=False)
class Streamed:
    """One speech both ways; times in seconds."""

    speech: Speech
    sample_rate: int
    pieces: tuple[Samples, ...]
    """What each chunk gave."""
    chunks_s: tuple[float, ...]
    """How long each took."""
    whole: Samples
    whole_s: float

    @property
    def joined(self) -> Samples:
        """The chunks as a listener hears them: [n]."""
        return np.concatenate(self.pieces)

    @property
    def joins(self) -> list[int]:
        """The first sample of every chunk but the first that gave any."""
        ends = accumulate(len(piece) for piece in self.pieces if len(piece))
        return list(ends)[:-1]

    @property
    def first_chunk_s(self) -> float:
        """Seconds to the first sample."""
        return next(at for at, piece in zip(accumulate(self.chunks_s), self.pieces, strict=True) if len(piece))

    @property
    def audio_s(self) -> float:
        """Seconds of audio."""
        return len(self.joined) / self.sample_rate

    @property
    def total_s(self) -> float:
        """Seconds of all chunks."""
        return sum(self.chunks_s)

    @property
    def margins_s(self) -> tuple[float, ...]:
        """What a listener who plays from the first chunk on has left when each later one comes."""
        came = zip(accumulate(self.chunks_s), self.pieces, strict=True)
        return play([Arrival(at, len(piece)) for at, piece in came if len(piece)], self.sample_rate).margins_s


def stream(
    token2wav: ChunkedToken2Wav,
    speech: Speech,
    cut: Sequence[Cut],
    clock: Callable[[], float] = time.perf_counter,
) -> Streamed:
    """Speak it chunk by chunk, then whole."""
    pieces, times, started = [], [], clock()
    for piece in token2wav.chunks(speech, cut):
        now = clock()
        pieces.append(piece)
        times.append(now - started)
        started = now
    begun = clock()
    whole = token2wav.whole(speech)
    return Streamed(speech, token2wav.sample_rate, tuple(pieces), tuple(times), whole, clock() - begun)


def figures(streamed: Sequence[Streamed]) -> dict[str, Any]:
    """Flat keys of docs/benchmark.md over all speeches, of which there is one at least."""
    chunks = [one for speech in streamed for one in speech.chunks_s]
    margins = [one for speech in streamed for one in speech.margins_s]
    audio_s = sum(one.audio_s for one in streamed)
    return {
        "texts": len(streamed),
        "tokens": sum(len(one.speech.tokens) for one in streamed),
        "chunks": len(chunks),
        **_spread("first_chunk_ms", [one.first_chunk_s * _MS for one in streamed]),
        **_spread("chunk_ms", [one * _MS for one in chunks]),
        "audio_s": audio_s,
        "rtf": sum(one.total_s for one in streamed) / audio_s,
        "whole_rtf": sum(one.whole_s for one in streamed) / sum(len(one.whole) / one.sample_rate for one in streamed),
        "underruns": sum(one < 0 for one in margins),
        "margin_ms_min": min(margins) * _MS if margins else None,
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_mean": sum(values) / len(values),
        **{f"{name}_p{percent}": percentile(values, percent) for percent in (50, 90, 99)},
        f"{name}_max": max(values),
    }
