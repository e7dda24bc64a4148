"""Report a load test as JSON and text: the figures, Triton's statistics, and every request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vivavoce_bench.load import Outcome
from vivavoce_bench.measure import make_folder, mean, percentiles, stream_figures, write_text
from vivavoce_bench.report import NOTHING, number

Score = Callable[[Sequence[Outcome]], Mapping[str, Any]]
"""Takes the successful requests, with their samples, and returns figures about their audio."""
PERCENTS = (50, 90, 95, 99)
_ROWS = (
    ("first chunk (ms)", "first_chunk_ms", 2),
    ("second chunk (ms)", "second_chunk_ms", 2),
    ("between chunks (ms)", "gap_ms", 2),
    ("whole answer (ms)", "total_ms", 2),
    ("RTF of a request", "request_rtf", 4),
)
_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
"""Triton's duration counters. Triton counts them per model, and all except `queue` also per batch size."""
_COUNTED = ("inference", "execution")
_MS, _NS_PER_MS = 1000.0, 1e6


Statistics = Mapping[tuple[str, str], Counter[str]]
"""(model, version) → counts named `inferences`, `executions`, `SIZE PART count` and `SIZE PART ns`.

PART is one of Triton's names, such as success, fail, queue and compute_infer. SIZE is a batch size, or `all`.
"""


def parse_statistics(answer: Mapping[str, Any]) -> Statistics:
    """Parse Triton's statistics, given as JSON. Numbers may be strings, and counts of zero may be missing."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for one in answer.get("model_stats", ()):
        counts = found[one["name"], one.get("version", "")] = Counter()
        counts["inferences"], counts["executions"] = (int(one.get(f"{what}_count", 0)) for what in _COUNTED)
        sizes = {batch["batch_size"]: batch for batch in one.get("batch_stats", ())}
        for size, stats in {"all": one.get("inference_stats", {}), **sizes}.items():
            for part in ("success", "fail", *_PARTS):
                for unit, value in stats.get(part, {}).items():
                    counts[f"{size} {part} {unit}"] = int(value)
    return found


def difference(after: Statistics, before: Statistics) -> Statistics:
    """The increase of each count from `before` to `after`, without models that computed nothing."""
    added = {key: one - before.get(key, Counter()) for key, one in sorted(after.items())}
    worked = ("executions", "all success count", "all fail count")
    return {key: one for key, one in added.items() if any(one[what] for what in worked)}


def _means(counts: Counter[str], size: object, parts: Sequence[str]) -> dict[str, float | None]:
    done = {part: counts[f"{size} {part} count"] for part in parts}
    return {part: counts[f"{size} {part} ns"] / count / _NS_PER_MS if count else None for part, count in done.items()}


def _batches(counts: Counter[str]) -> dict[int, int]:
    done = {key.split()[0]: count for key, count in counts.items() if key.endswith(" compute_infer count")}
    return {int(size): done[size] for size in sorted(done.keys() - {"all"}, key=int) if done[size]}


def _statistics_json(counts: Counter[str]) -> dict[str, Any]:
    return {
        "inferences": counts["inferences"],
        "executions": counts["executions"],
        "success": counts["all success count"],
        "fail": counts["all fail count"],
        **{f"{part}_ms_avg": value for part, value in _means(counts, "all", _PARTS).items()},
        "batches": {
            str(size): {
                "executions": executions,
                **{f"{part}_ms_avg": value for part, value in _means(counts, size, _PARTS[1:]).items()},
            }
            for size, executions in _batches(counts).items()
        },
    }


def statistics_text(statistics: Statistics) -> str:
    lines: list[str] = []
    for (name, version), one in statistics.items():
        done = f"{one['inferences']} inferences in {one['executions']} executions, {one['all fail count']} failed"
        lines += [f"{name} (version {version}): {done}", f"  each, on average: {_times(_means(one, 'all', _PARTS))}"]
        for size, executions in _batches(one).items():
            times = _times(_means(one, size, _PARTS[1:]))
            lines.append(f"  batch size {size}: {executions} executions, each {times}")
    return "\n".join(lines) if lines else "the server counted nothing"


def _times(means: Mapping[str, float | None]) -> str:
    cells = {part.replace("_", " "): NOTHING if mean is None else f"{mean:.3f} ms" for part, mean in means.items()}
    return ", ".join(f"{part} {cell}" for part, cell in cells.items())


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures under their keys in docs/triton.md. A figure that was not measured is None.

    Latencies and audio durations count successful requests only. The wall time covers all requests.
    """
    ok = [outcome for outcome in outcomes if outcome.ok]
    shared = stream_figures(outcomes, ok)
    audio_s, wall_s = shared["audio_s"], shared["wall_s"]
    return {
        "requests": len(outcomes),
        "ok": len(ok),
        "failed": len(outcomes) - len(ok),
        **_spread("first_chunk_ms", _in_ms(outcome.chunk_s(0) for outcome in ok)),
        **_spread("second_chunk_ms", _in_ms(outcome.chunk_s(1) for outcome in ok)),
        **_spread("total_ms", _in_ms(outcome.total_s for outcome in ok)),
        **_spread("gap_ms", _in_ms(gap for outcome in ok for gap in outcome.gaps_s)),
        **_spread("request_rtf", [outcome.rtf for outcome in ok]),
        **shared,
        "rtf": wall_s / audio_s if audio_s else None,
        "throughput_requests_per_s": len(ok) / wall_s if wall_s > 0 else None,
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}_avg": mean(values), **percentiles(name, values, PERCENTS), f"{name}_n": len(values)}


def _in_ms(seconds: Iterable[float | None]) -> list[float]:
    return [value * _MS for value in seconds if value is not None]


@dataclass(frozen=True)
class Report:
    """The outcomes of a load test.

    statistics: the server's counts for the measured requests; quality: figures of the audio, or None if not scored.
    """

    settings: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    statistics: Statistics
    quality: Mapping[str, Any] | None = None

    @property
    def failed(self) -> int:
        return sum(not outcome.ok for outcome in self.outcomes)

    def scored(self, score: Score) -> Report:
        """Score the audio, drop the samples, and return the new report; raises the errors of `score`."""
        ok = [outcome for outcome in self.outcomes if outcome.ok]
        quality = score(ok) if ok else {}
        return replace(self, quality=quality, outcomes=[outcome.without_samples() for outcome in self.outcomes])

    def problems(self) -> list[str]:
        """One sentence for each kind of error, with its number of failed requests; the most frequent kind is first."""
        counts = Counter(outcome.problem for outcome in self.outcomes if not outcome.ok)
        return [
            f"{count} of {len(self.outcomes)} requests failed: {problem}" for problem, count in counts.most_common()
        ]

    def keys(self) -> dict[str, Any]:
        return {**figures(self.outcomes), **(self.quality or {})}

    def to_json(self) -> dict[str, Any]:
        models = [
            {"name": name, "version": version, **_statistics_json(one)}
            for (name, version), one in self.statistics.items()
        ]
        return {"settings": dict(self.settings), "figures": self.keys(), "models": models, "problems": self.problems()}

    def text(self) -> str:
        """Return the figures as lines and a table. The real-time factor is first, as in the original deployment."""
        keys = self.keys()
        underruns = f"{NOTHING} (no answer came in several chunks)"
        if keys["margin_ms_min"] is not None:
            underruns = (
                f"{keys['underruns']} in {keys['underrun_requests']} requests, {keys['stall_s']:.3f} s silent, "
                f"smallest margin {keys['margin_ms_min']:.1f} ms"
            )
        lines = [
            f"RTF: {number(keys['rtf'], 4)}",
            f"total_duration: {keys['audio_s']:.3f} seconds",
            f"processing_time: {keys['wall_s']:.3f} seconds",
            f"requests: {keys['ok']} of {keys['requests']} answered",
            f"throughput: {number(keys['throughput_audio_s_per_s'], 3)} seconds of audio per second, "
            f"{number(keys['throughput_requests_per_s'], 3)} requests per second",
            f"underruns: {underruns}",
            *(f"{name}: {value}" for name, value in (self.quality or {}).items()),
            "",
            *_table(keys),
        ]
        return "\n".join(lines)

    def write(self, folder: Path, label: str) -> list[Path]:
        """Write `rtf-….txt`, `stats_summary-….txt`, `report-….json` and `requests-….jsonl`; return their paths."""
        settings = "\n".join(f"{name}: {value}" for name, value in self.settings.items() if value is not None)
        requests = "".join(json.dumps(_request(one), ensure_ascii=False) + "\n" for one in self.outcomes)
        contents = {
            f"rtf-{label}.txt": f"{self.text()}\n\n{settings}\n",
            f"stats_summary-{label}.txt": statistics_text(self.statistics) + "\n",
            f"report-{label}.json": json.dumps(self.to_json(), ensure_ascii=False, indent=2) + "\n",
            f"requests-{label}.jsonl": requests,
        }
        make_folder(folder, field="log_dir")
        for name, content in contents.items():
            write_text(folder / name, content, field="log_dir")
        return [folder / name for name in contents]


def _request(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.utterance.name,
        "text": outcome.utterance.text,
        "start_s": round(outcome.start_s, 6),
        "first_chunk_ms": _milliseconds(outcome.chunk_s(0)),
        "second_chunk_ms": _milliseconds(outcome.chunk_s(1)),
        "total_ms": _milliseconds(outcome.total_s),
        "audio_s": round(outcome.audio_s, 6),
        "rtf": round(outcome.rtf, 6) if outcome.ok and outcome.audio_s else None,
        "chunks": [[_milliseconds(one.at_s - outcome.start_s), one.num_samples] for one in outcome.arrivals],
        "min_margin_ms": _milliseconds(min(outcome.margins_s, default=None)),
        "file": outcome.file.name if outcome.file is not None else None,
        "problem": outcome.problem or None,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 3)


def _table(keys: Mapping[str, Any]) -> list[str]:
    columns = ("avg", *(f"p{percent}" for percent in PERCENTS))
    rows = [["", *columns, "n"]]
    for label, name, digits in _ROWS:
        rows.append([label, *(number(keys[f"{name}_{column}"], digits) for column in columns), str(keys[f"{name}_n"])])
    first, *others = (max(len(row[column]) for row in rows) for column in range(len(rows[0])))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]
