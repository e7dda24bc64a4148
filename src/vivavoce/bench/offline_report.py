"""What `vivavoce bench offline` hands out: rows for people, keys for programs, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vivavoce.bench.json_file import rounded
from vivavoce.bench.offline import Figures
from vivavoce.errors import InvalidRequest

SCHEMA = "vivavoce-bench-offline-1"
"""The form of the JSON; the number moves when a key changes its meaning."""
HEADER = ("backend", "batch", "texts", "tokens", "audio s", "LLM s", "token2wav s", "total s", "RTF", "tokens/s")


@dataclass(frozen=True, eq=False)
class OfflineReport:
    """All batch sizes of all backends; settings: what was measured and how, flat."""

    settings: Mapping[str, Any]
    runs: Sequence[Figures]

    def to_json(self) -> dict[str, Any]:
        """Flat settings, and under `runs` the figures of each batch size."""
        return rounded({"schema": SCHEMA, **self.settings, "runs": [_keys(one) for one in self.runs]})

    def rows(self) -> list[list[str]]:
        """A row for each batch size, under `HEADER`."""
        return [
            [
                one.backend,
                str(one.batch_size),
                str(one.texts),
                str(one.tokens),
                f"{one.audio_s:.1f}",
                f"{one.llm_time_seconds:.2f}",
                f"{one.token2wav_time_seconds:.2f}",
                f"{one.total_time_seconds:.2f}",
                f"{one.rtf:.3f}",
                f"{one.tokens_per_s:.0f}",
            ]
            for one in self.runs
        ]


def _keys(one: Figures) -> dict[str, Any]:
    derived = {"total_time_seconds": one.total_time_seconds, "rtf": one.rtf, "tokens_per_s": one.tokens_per_s}
    return {**asdict(one), **derived}


def draw(runs: Sequence[Figures], path: Path) -> None:
    """Draw a PNG file: where the time goes, and the language model's speed, by batch size.

    Raises:
        MissingDependency: matplotlib is not installed.
        InvalidRequest: the place cannot be written.
    """
    from vivavoce.bench.picture import check_drawing

    check_drawing()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 4.6), layout="constrained")
    times, speeds = figure.subplots(1, 2)
    labels = [f"{one.backend} {one.batch_size}" for one in runs]
    llm = [one.llm_time_seconds / one.audio_s for one in runs]
    token2wav = [one.token2wav_time_seconds / one.audio_s for one in runs]
    times.bar(labels, llm, label="language model")
    times.bar(labels, token2wav, bottom=llm, label="token2wav")
    times.set_title("Seconds of work per second of audio")
    times.tick_params(axis="x", rotation=60)
    times.legend(fontsize="small")
    for backend in dict.fromkeys(one.backend for one in runs):
        own = sorted((one.batch_size, one.tokens_per_s) for one in runs if one.backend == backend)
        speeds.plot(*zip(*own, strict=True), marker="o", label=backend)
    speeds.set_title("Speech tokens per second of the language model")
    speeds.set_xlabel("batch size")
    speeds.set_xticks(sorted({one.batch_size for one in runs}))
    speeds.legend(fontsize="small")
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidRequest(
            f"plot: {str(path)!r} cannot be written ({error.strerror}); choose another place"
        ) from None
