"""The figures of a load, under the flat keys of docs/benchmark.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vivavoce.bench.outcome import Ending, Outcome, those
from vivavoce.bench.percentiles import percentile
from vivavoce.bench.playback import play

_MS = 1000.0


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All that the outcomes show; None where nothing was measured.

    Latencies, playback and audio are of requests that ended well; the wall time is of all: from the first call to the
    last end.
    """
    ok = those(outcomes, Ending.OK)
    return {
        "requests": len(outcomes),
        "ok": len(ok),
        "refused": len(those(outcomes, Ending.REFUSED)),
        "failed": len(those(outcomes, Ending.FAILED)),
        **_spread("ttfb_ms", [outcome.ttfb_s * _MS for outcome in ok], (50, 90, 99)),
        **_spread("gap_ms", [gap * _MS for outcome in ok for gap in outcome.gaps_s], (50, 90, 99)),
        "chunks": sum(len(outcome.arrivals) for outcome in ok),
        **_playback(ok),
        **_speed(outcomes, ok),
    }


def _spread(name: str, values: Sequence[float], percents: Sequence[int]) -> dict[str, float | None]:
    return {
        f"{name}_mean": sum(values) / len(values) if values else None,
        **{f"{name}_p{percent}": percentile(values, percent) if values else None for percent in percents},
        f"{name}_max": max(values, default=None),
    }


def _playback(ok: Sequence[Outcome]) -> dict[str, Any]:
    heard = [play(outcome.arrivals, outcome.sample_rate) for outcome in ok]
    margins = [margin for one in heard for margin in one.margins_s]
    stalled = sum(one.underruns > 0 for one in heard)
    return {
        "underruns": sum(one.underruns for one in heard),
        "underrun_requests": stalled,
        "underrun_share": stalled / len(heard) if heard else None,
        "stall_s": sum(one.stall_s for one in heard),
        "margin_ms_min": min(margins) * _MS if margins else None,
    }


def _speed(outcomes: Sequence[Outcome], ok: Sequence[Outcome]) -> dict[str, Any]:
    rtfs = [outcome.rtf for outcome in ok]
    spread = _spread("rtf", rtfs, (50, 90, 99))
    audio_s = sum(outcome.audio_s for outcome in ok)
    wall_s = window_s(outcomes)
    return {
        "rtf": spread.pop("rtf_mean"),
        **spread,
        "audio_s": audio_s,
        "wall_s": wall_s,
        "throughput_audio_s_per_s": audio_s / wall_s if wall_s > 0 else None,
    }


def window_s(outcomes: Sequence[Outcome]) -> float:
    """Seconds from the first call to the last end."""
    if not outcomes:
        return 0.0
    return max(outcome.end_s for outcome in outcomes) - min(outcome.start_s for outcome in outcomes)


Keys = Mapping[str, Any]
"""What `figures` gives, or a report with it."""
