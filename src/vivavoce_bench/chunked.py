"""Measure token2wav on given speech tokens, in chunks and at once, for `vivavoce bench streaming`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest
from vivavoce_bench.evaluate.sound import abruptness, abruptness_everywhere, join_clicks
from vivavoce_bench.measure import Arrival, PlaybackTrace, spread, stream_figures
from vivavoce_bench.report import SPREAD, number, spread_row

SCHEMA = "vivavoce-bench-streaming-1"
LEAST_SIZE, GREATEST_SIZE = 5, 1000
"""Limits of a chunk's size in speech tokens. The vocoder may return no audio for a smaller first chunk."""
Samples = NDArray[np.float32]
_MS = 1000.0
_FRAME_S, _HOP_S = 0.025, 0.010
_DEPTH = 1e-3
"""Magnitude to which lower magnitudes are raised before spectra are compared, relative to the loudest bin (−60 dB)."""


class Strategy(str, Enum):
    EQUAL = "equal"
    EXPONENTIAL = "exponential"


class Cut(NamedTuple):
    """One chunk. hop: number of speech tokens that become audio; seen: tokens given so far, with the lookahead."""

    hop: int
    seen: int
    final: bool


def cuts(num_tokens: int, size: int, strategy: Strategy, lookahead: int) -> list[Cut]:
    """Split the tokens into chunks. The last chunk takes the rest, which is too short for a chunk and its lookahead."""
    if not LEAST_SIZE <= size <= GREATEST_SIZE:
        raise InvalidRequest(f"chunk_size: {size} is outside of {LEAST_SIZE} … {GREATEST_SIZE}; choose a number inside")
    found: list[Cut] = []
    spoken, hop = 0, size
    # The last chunk has at least one token.
    while num_tokens - spoken >= hop + max(1, lookahead):
        spoken += hop
        found.append(Cut(hop, spoken + lookahead, final=False))
        hop = hop * 2 if strategy is Strategy.EXPONENTIAL else hop
    return [*found, Cut(num_tokens - spoken, num_tokens, final=True)]


@dataclass(frozen=True, eq=False)
class TokenSpeech:
    id: str
    tokens: tuple[int, ...]
    voice: Any
    seed: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedSpeech(PlaybackTrace):
    """Audio generated in chunks, and at once. Each arrival is a chunk, requested after the previous chunk arrived."""

    speech: TokenSpeech
    whole: Samples
    whole_s: float

    @property
    def joins(self) -> list[int]:
        """Index of the first sample of each chunk, except the first chunk."""
        return list(accumulate(one.num_samples for one in self.arrivals))[:-1]

    @property
    def chunks_s(self) -> list[float]:
        return [self.ttfb_s, *self.gaps_s]

    @property
    def whole_rtf(self) -> float:
        return self.whole_s * self.sample_rate / len(self.whole)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.speech.id,
            "tokens": len(self.speech.tokens),
            "audio_s": self.audio_s,
            "first_chunk_ms": self.chunks_s[0] * _MS,
            "chunk_ms": [seconds * _MS for seconds in self.chunks_s],
            "rtf": self.rtf,
            "whole_rtf": self.whole_rtf,
        }


def speak_chunked(
    token2wav: Any, speech: TokenSpeech, cut: Sequence[Cut], clock: Callable[[], float] = time.perf_counter
) -> ChunkedSpeech:
    """Generate the audio chunk by chunk, then at once.

    token2wav: has `sample_rate`, `whole(speech)` (returns samples) and `chunks(speech, cut)` (yields the samples of
    each chunk); samples are [n] float32 on the host.
    """
    started = clock()
    arrivals = tuple(Arrival(clock(), len(samples), samples) for samples in token2wav.chunks(speech, cut))
    begun = clock()
    whole = token2wav.whole(speech)
    whole_s = clock() - begun
    times = (started, arrivals[-1].at_s, token2wav.sample_rate, arrivals)
    return ChunkedSpeech(*times, speech=speech, whole=whole, whole_s=whole_s)


def chunk_figures(spoken: Sequence[ChunkedSpeech]) -> dict[str, Any]:
    """Return the figures of all speeches by the keys of docs/measuring.md; `spoken` must not be empty."""
    shared = stream_figures(spoken, spoken)
    chunks_s = [one for speech in spoken for one in speech.chunks_s]
    return {
        "texts": len(spoken),
        "tokens": sum(len(one.speech.tokens) for one in spoken),
        **spread("first_chunk_ms", [one.chunks_s[0] * _MS for one in spoken]),
        **spread("chunk_ms", [one * _MS for one in chunks_s]),
        **{name: shared[name] for name in ("chunks", "audio_s", "underruns", "margin_ms_min")},
        "rtf": sum(chunks_s) / shared["audio_s"],
        "whole_rtf": sum(one.whole_s for one in spoken) / sum(len(one.whole) / one.sample_rate for one in spoken),
    }


def join_figures(spoken: Sequence[ChunkedSpeech], fade: int) -> dict[str, Any]:
    """Compare the joins of chunks with audio generated at once from the same tokens; fade: samples of a crossfade."""
    rate = spoken[0].sample_rate
    at_joins = np.concatenate([abruptness(one.samples, rate, one.joins) for one in spoken])
    clicks = join_clicks(at_joins, np.concatenate([abruptness_everywhere(one.whole, rate) for one in spoken]))
    distances = [spectral_distance(one.samples, one.whole, rate) for one in spoken]
    near = np.concatenate(
        [near_places(len(frames), rate, one.joins, fade) for frames, one in zip(distances, spoken, strict=True)]
    )
    distance = np.concatenate(distances)
    return {
        "joins": clicks.joins,
        "join_clicks": clicks.joins_over,
        "join_click_worst": clicks.join_worst_ratio,
        "join_click_median": clicks.join_median_ratio,
        "spectral_db_joins": float(distance[near].mean()) if near.any() else None,
        "spectral_db_elsewhere": float(distance[~near].mean()) if not near.all() else None,
    }


def chunk_rows(keys: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = [
        spread_row(keys, "first chunk (ms)", "first_chunk_ms", 1, keys["texts"]),
        spread_row(keys, "each chunk (ms)", "chunk_ms", 1, keys["chunks"]),
    ]
    for label, name, digits in (
        ("audio (s)", "audio_s", 1),
        ("RTF in chunks", "rtf", 3),
        ("RTF whole", "whole_rtf", 3),
        ("underruns", "underruns", 0),
        ("smallest margin (ms)", "margin_ms_min", 1),
        ("joins", "joins", 0),
        ("joins that stand out", "join_clicks", 0),
        ("worst join / 99.9 % of places", "join_click_worst", 2),
        ("median join / median place", "join_click_median", 2),
        ("spectrum to whole, joins (dB)", "spectral_db_joins", 1),
        ("spectrum to whole, else (dB)", "spectral_db_elsewhere", 1),
    ):
        rows.append([label, number(keys[name], digits), *[""] * len(SPREAD)])
    return ["", *SPREAD, "n"], rows


def spectral_distance(one: Samples, other: Samples, sample_rate: int) -> NDArray[np.float64]:
    """Return the log-spectral distance of two signals in frames of 25 ms, every 10 ms: [frames] dB, 0 if equal.

    It is the root mean square of the level differences over the bins of a Hann-windowed spectrum. Frame f is centred at
    10 ms · f. The longer signal is cut to the length of the shorter signal.
    """
    frame, hop = round(_FRAME_S * sample_rate), round(_HOP_S * sample_rate)
    size = min(len(one), len(other))
    if not size:
        return np.zeros(0)
    spectra = [_magnitudes(samples[:size], frame, hop) for samples in (one, other)]
    floor = _DEPTH * max(float(spectra[0].max()), float(spectra[1].max()), np.finfo(np.float64).tiny)
    levels = [20 * np.log10(np.maximum(spectrum, floor)) for spectrum in spectra]
    distance: NDArray[np.float64] = np.sqrt(np.mean(np.square(levels[0] - levels[1]), axis=1))
    return distance


def near_places(num_frames: int, sample_rate: int, places: Sequence[int], length: int = 1) -> NDArray[np.bool_]:
    """Mark the frames of `spectral_distance` that touch the `length` samples after any of the places: [frames]."""
    centres, reach = np.arange(num_frames) * round(_HOP_S * sample_rate), round(_FRAME_S * sample_rate) // 2
    near = np.zeros(num_frames, dtype=bool)
    for place in places:
        near |= (place - reach <= centres) & (centres < place + length + reach)
    return near


def _magnitudes(samples: Samples, frame: int, hop: int) -> NDArray[np.float64]:
    padded = np.pad(samples.astype(np.float64), frame // 2)
    padded = np.pad(padded, (0, max(0, frame - len(padded))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop]
    return np.abs(np.fft.rfft(frames * np.hanning(frame), axis=1))
