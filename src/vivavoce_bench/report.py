"""Report a load test as flat keys, JSON, a table and a picture. docs/measuring.md explains the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce_bench.load import Ending, Outcome, with_ending
from vivavoce_bench.measure import PERCENTS, picture, rounded, save_json, spread, stream_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = "vivavoce-bench-1"
NOTHING = "–"
SPREAD = ("mean", *(f"p{percent}" for percent in PERCENTS), "max")
_MS = 1000.0
_FAINT = 0.35


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures by the keys of docs/measuring.md; a figure that was not measured is None.

    Latencies, playback and audio count successful requests only. The wall time counts all requests.
    """
    ok = with_ending(outcomes, Ending.OK)
    streams = stream_figures(outcomes, ok)
    rtf = spread("rtf", [outcome.rtf for outcome in ok])
    return {
        "requests": len(outcomes),
        "ok": len(ok),
        "refused": len(with_ending(outcomes, Ending.REFUSED)),
        "failed": len(with_ending(outcomes, Ending.FAILED)),
        **spread("ttfb_ms", [outcome.ttfb_s * _MS for outcome in ok]),
        **spread("sound_ms", [outcome.sound_s * _MS for outcome in ok if outcome.sound_s is not None]),
        **spread("gap_ms", [gap * _MS for outcome in ok for gap in outcome.gaps_s]),
        **streams,
        "underrun_share": streams["underrun_requests"] / len(ok) if ok else None,
        "rtf": rtf.pop("rtf_mean"),
        **rtf,
    }


@dataclass(frozen=True, eq=False)
class Report:
    """The outcomes of one load test. settings: flat keys that describe the measurement."""

    settings: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Memory of the target, if it is known: flat keys that end with the unit."""
    quality: Mapping[str, Any] = field(default_factory=dict)
    """Quality of the audio, if it was measured: flat keys."""

    def to_json(self) -> dict[str, Any]:
        """Return all keys with JSON values; a value that was not measured is None."""
        return rounded({"schema": SCHEMA, **self.settings, **figures(self.outcomes), **self.resources, **self.quality})

    def save(self, path: Path) -> None:
        save_json(self.to_json(), path)


def number(value: Any, digits: int, unit: str = "") -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"


def spread_row(keys: Mapping[str, Any], label: str, name: str, digits: int, count: int) -> list[str]:
    return [label, *(number(keys[f"{name}_{part}"], digits) for part in SPREAD), str(count)]


def latency_rows(keys: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = [
        spread_row(keys, "first audio (ms)", "ttfb_ms", 1, keys["ok"]),
        spread_row(keys, "first sound (ms)", "sound_ms", 1, keys["ok"]),
        spread_row(keys, "between chunks (ms)", "gap_ms", 1, keys["chunks"] - keys["ok"]),
        spread_row({**keys, "rtf_mean": keys["rtf"]}, "RTF", "rtf", 3, keys["ok"]),
    ]
    return ["", *SPREAD, "n"], rows


def figure_rows(keys: Mapping[str, Any]) -> list[list[str]]:
    others = [f"{keys[name]} {name}" for name in ("refused", "failed") if keys[name]]
    used, held, rss = (keys.get(name) for name in ("gpu_memory_bytes", "gpu_memory_reserved_bytes", "rss_bytes"))
    underruns = NOTHING
    if keys["margin_ms_min"] is not None:  # at least one stream had a second chunk
        underruns = f"{keys['underruns']} in {keys['underrun_requests']} of {keys['ok']} requests, "
        underruns += f"{keys['stall_s']:.3f} s silent"
    lines = [
        ("requests", ", ".join([f"{keys['ok']} of {keys['requests']} spoken", *others])),
        ("throughput", number(keys["throughput_audio_s_per_s"], 2, " s of audio per s")),
        ("audio, wall time", f"{keys['audio_s']:.1f} s, {keys['wall_s']:.1f} s"),
        ("underruns", underruns),
        ("smallest margin", number(keys["margin_ms_min"], 1, " ms")),
        ("GPU memory", NOTHING if used is None else f"{_gib(used)} used at most, {_gib(held)} reserved"),
        ("process memory", _gib(rss)),
        *((f"WER, {kind}", number(_scaled(keys.get(f"wer_{kind}"), 100), 1, " %")) for kind in ("free", "closed")),
        ("speaker similarity", number(keys.get("speaker_similarity"), 3)),
    ]
    return [[label, text] for label, text in lines if text != NOTHING]


def _scaled(value: Any, factor: float) -> Any:
    return None if value is None else factor * value


def _gib(value: Any) -> str:
    return number(_scaled(value, 2**-30), 2, " GiB")


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw times to first audio, playback margins, and the times of all chunks; errors as in `measure.picture`."""
    ok = with_ending(outcomes, Ending.OK)
    with picture(path, (16.0, 4.6), 3) as (first, margins, timeline):
        _draw_first_audio(first, ok)
        _draw_margins(margins, ok)
        _draw_timeline(timeline, outcomes)


def _draw_first_audio(axes: Axes, ok: Sequence[Outcome]) -> None:
    waits = sorted(outcome.ttfb_s * _MS for outcome in ok)
    shares = [(index + 1) / len(waits) for index in range(len(waits))]
    axes.step([*waits[:1], *waits], [0.0, *shares] if waits else [], where="post")
    axes.set(title="First audio", xlabel="ms after the call", ylabel="share of requests", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.grid(alpha=_FAINT)


def _draw_margins(axes: Axes, ok: Sequence[Outcome]) -> None:
    late: list[tuple[float, float]] = []
    for outcome in ok:
        times = [arrival.at_s - outcome.arrivals[0].at_s for arrival in outcome.arrivals[1:]]
        margins = [margin * _MS for margin in outcome.margins_s]
        axes.plot(times, margins, marker=".", markersize=3, linewidth=0.8, alpha=_FAINT, color="tab:blue")
        late += [(time, margin) for time, margin in zip(times, margins, strict=True) if margin < 0]
    if late:
        times, margins = map(list, zip(*late, strict=True))
        axes.scatter(times, margins, s=14, color="tab:red", label="underruns", zorder=3)
        axes.legend(fontsize="small")
    axes.axhline(0, color="tab:red", linewidth=0.8)
    axes.set(title="Left to play when a chunk comes", xlabel="s after the first audio", ylabel="ms")


def _draw_timeline(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = {Ending.OK: "tab:blue", Ending.REFUSED: "tab:orange", Ending.FAILED: "tab:red"}
    begin_s = min((outcome.start_s for outcome in outcomes), default=0.0)
    for index, outcome in enumerate(outcomes):
        colour, spans = colours[outcome.ending], [outcome.start_s - begin_s, outcome.end_s - begin_s]
        axes.plot(spans, [index, index], color=colour, linewidth=0.8, alpha=_FAINT)
        times = [arrival.at_s - begin_s for arrival in outcome.arrivals]
        axes.scatter(times, [index] * len(times), s=5, color=colour)
        if not outcome.arrivals:
            axes.scatter(spans[:1], [index], s=14, marker="x", color=colour)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Chunks of each request", xlabel="s after the first call", ylabel="request")
