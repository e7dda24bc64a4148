"""A load's report: figures, Triton's own statistics, and every request, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vivavoce.clients.triton.figures import PERCENTS, figures
from vivavoce.clients.triton.outcome import Outcome
from vivavoce.clients.triton.statistics import Statistics, statistics_text
from vivavoce.errors import InvalidRequest

Score = Callable[[Sequence[Outcome]], Mapping[str, Any]]
"""(requests that ended well, with their samples) → figures of their audio."""

_NOTHING = "–"
_ROWS = (
    ("first chunk (ms)", "first_chunk_ms", 2),
    ("second chunk (ms)", "second_chunk_ms", 2),
    ("between chunks (ms)", "gap_ms", 2),
    ("whole answer (ms)", "total_ms", 2),
    ("RTF of a request", "request_rtf", 4),
)


@dataclass(frozen=True)
class Report:
    """What a load was, and what came of it."""

    settings: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    statistics: Statistics
    """What the measured requests added to the server's counts."""
    quality: Mapping[str, Any] | None = None
    """What a scoring function found; None: there was none."""

    @property
    def failed(self) -> int:
        """Requests that did not end well."""
        return sum(not outcome.ok for outcome in self.outcomes)

    def scored(self, score: Score) -> Report:
        """The same with the figures of the audio, which is let go; errors are those of `score`."""
        ok = [outcome for outcome in self.outcomes if outcome.ok]
        quality = score(ok) if ok else {}
        return replace(self, quality=quality, outcomes=[replace(outcome, samples=None) for outcome in self.outcomes])

    def problems(self) -> list[str]:
        """What went wrong, the most frequent first, each as one sentence with the number of requests."""
        counts: dict[str, int] = {}
        for outcome in self.outcomes:
            if not outcome.ok:
                counts[outcome.problem] = counts.get(outcome.problem, 0) + 1
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        return [f"{count} of {len(self.outcomes)} requests failed: {problem}" for problem, count in ranked]

    def keys(self) -> dict[str, Any]:
        """The flat keys of docs/triton-clients.md, quality included."""
        return {**figures(self.outcomes), **(self.quality or {})}

    def to_json(self) -> dict[str, Any]:
        """Everything but the single requests."""
        models = [
            {"name": name, "version": version, **one.to_json()} for (name, version), one in self.statistics.items()
        ]
        return {"settings": dict(self.settings), "figures": self.keys(), "models": models, "problems": self.problems()}

    def text(self) -> str:
        """The figures in lines and a table; the real-time factor comes first, as the original deployment reports it."""
        keys = self.keys()
        lines = [
            f"RTF: {_number(keys['rtf'], 4)}",
            f"total_duration: {keys['audio_s']:.3f} seconds",
            f"processing_time: {keys['wall_s']:.3f} seconds",
            f"requests: {keys['ok']} of {keys['requests']} answered",
            f"throughput: {_number(keys['throughput_audio_s_per_s'], 3)} seconds of audio per second, "
            f"{_number(keys['throughput_requests_per_s'], 3)} requests per second",
            _underruns(keys),
            *(f"{name}: {value}" for name, value in (self.quality or {}).items()),
            "",
            *_table(keys),
        ]
        return "\n".join(lines)

    def write(self, folder: Path, label: str) -> list[Path]:
        """Write `rtf-….txt`, `stats_summary-….txt`, `report-….json` and `requests-….jsonl`; their paths.

        Raises:
            InvalidRequest: the folder cannot be written.
        """
        settings = "\n".join(f"{name}: {value}" for name, value in self.settings.items() if value is not None)
        requests = "".join(json.dumps(one.to_json(), ensure_ascii=False) + "\n" for one in self.outcomes)
        contents = {
            f"rtf-{label}.txt": f"{self.text()}\n\n{settings}\n",
            f"stats_summary-{label}.txt": statistics_text(self.statistics) + "\n",
            f"report-{label}.json": json.dumps(self.to_json(), ensure_ascii=False, indent=2) + "\n",
            f"requests-{label}.jsonl": requests,
        }
        make_folder(folder)
        for name, content in contents.items():
            _write(folder / name, content)
        return [folder / name for name in contents]


def make_folder(folder: Path) -> None:
    """Make a folder for audio and reports, and see that it is one; `InvalidRequest` if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"log_dir: {str(folder)!r} cannot be made ({error.strerror}); choose another place"
        ) from None


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"log_dir: {str(path)!r} cannot be written ({error.strerror}); choose another place"
        ) from None


def _table(keys: Mapping[str, Any]) -> list[str]:
    columns = ("avg", *(f"p{percent}" for percent in PERCENTS))
    rows = [["", *columns, "n"]]
    for label, name, digits in _ROWS:
        rows.append([label, *(_number(keys[f"{name}_{column}"], digits) for column in columns), str(keys[f"{name}_n"])])
    first, *others = (max(len(row[place]) for row in rows) for place in range(len(rows[0])))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def _underruns(keys: Mapping[str, Any]) -> str:
    if keys["margin_ms_min"] is None:
        return "underruns: – (no answer came in several chunks)"
    return (
        f"underruns: {keys['underruns']} in {keys['underrun_requests']} requests, {keys['stall_s']:.3f} s silent, "
        f"smallest margin {keys['margin_ms_min']:.1f} ms"
    )


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"
