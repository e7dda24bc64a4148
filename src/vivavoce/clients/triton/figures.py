"""The figures of a load, under the flat keys of docs/triton-clients.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from vivavoce.clients.triton.outcome import Outcome

PERCENTS = (50, 90, 95, 99)
_MS = 1000.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: the smallest of the values that at least `percent` of 100 of them do not exceed."""
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All that the outcomes show; None where nothing was measured.

    Latencies and audio are of requests that ended well; the wall time is of all: from the first call to the last end.
    """
    ok = [outcome for outcome in outcomes if outcome.ok]
    return {
        "requests": len(outcomes),
        "ok": len(ok),
        "failed": len(outcomes) - len(ok),
        **spread("first_chunk_ms", _in_ms(outcome.chunk_s(0) for outcome in ok)),
        **spread("second_chunk_ms", _in_ms(outcome.chunk_s(1) for outcome in ok)),
        **spread("total_ms", _in_ms(outcome.total_s for outcome in ok)),
        **spread("gap_ms", _in_ms(gap for outcome in ok for gap in outcome.gaps_s)),
        **spread("request_rtf", [outcome.total_s / outcome.audio_s for outcome in ok]),
        "chunks": sum(len(outcome.arrivals) for outcome in ok),
        **_playback(ok),
        **_speed(outcomes, ok),
    }


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean, nearest ranks and number of some values."""
    return {
        f"{name}_avg": sum(values) / len(values) if values else None,
        **{f"{name}_p{percent}": percentile(values, percent) if values else None for percent in PERCENTS},
        f"{name}_n": len(values),
    }


def _in_ms(seconds: Iterable[float | None]) -> list[float]:
    return [value * _MS for value in seconds if value is not None]


def _playback(ok: Sequence[Outcome]) -> dict[str, Any]:
    margins = [outcome.margins_s for outcome in ok]
    every = [margin for one in margins for margin in one]
    return {
        "underruns": sum(margin < 0 for margin in every),
        "underrun_requests": sum(any(margin < 0 for margin in one) for one in margins),
        "stall_s": -sum(margin for margin in every if margin < 0),
        "margin_ms_min": min(every) * _MS if every else None,
    }


def _speed(outcomes: Sequence[Outcome], ok: Sequence[Outcome]) -> dict[str, Any]:
    audio_s = sum(outcome.audio_s for outcome in ok)
    wall_s = max((one.end_s for one in outcomes), default=0.0) - min((one.start_s for one in outcomes), default=0.0)
    return {
        "audio_s": audio_s,
        "wall_s": wall_s,
        "rtf": wall_s / audio_s if audio_s else None,
        "throughput_audio_s_per_s": audio_s / wall_s if wall_s > 0 else None,
        "throughput_requests_per_s": len(ok) / wall_s if wall_s > 0 else None,
    }
