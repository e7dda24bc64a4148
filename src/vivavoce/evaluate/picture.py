"""A report as one picture: error rates, similarities, and durations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.evaluate.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_VOICES = 16
_LONGEST_NAME = 14
_LIGHT = 0.6
"""Similarity from which the map's colours are light."""
_RATES = (
    ("wer_free", "WER free"),
    ("wer_closed", "WER closed"),
    ("cer_free", "CER free"),
    ("cer_closed", "CER closed"),
    ("per", "phones"),
)


def check_drawing() -> None:
    """`MissingDependency` if there is nothing to draw with."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "out: the report's picture needs matplotlib, which is not installed; pip install 'vivavoce[eval]'"
        ) from None


def draw(report: Report, path: Path) -> None:
    """Draw a PNG file.

    Raises:
        MissingDependency: matplotlib is not installed.
        InvalidRequest: the place cannot be written.
    """
    check_drawing()
    from matplotlib.figure import Figure

    matrix = report.similarity_matrix()
    matrix = matrix if 1 <= len(matrix) <= _MOST_VOICES else {}
    count = 3 if matrix else 2
    # A figure of its own and not pyplot's, which keeps all figures and may want a display.
    figure = Figure(figsize=(5.2 * count, 4.2), layout="constrained")
    axes = list(figure.subplots(1, count))
    _draw_rates(axes[0], report)
    _draw_durations(axes[1], report)
    if matrix:
        _draw_similarities(axes[2], matrix)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidRequest(
            f"out: {str(path)!r} cannot be written ({error.strerror}); choose another folder"
        ) from None


def _draw_rates(axes: Axes, report: Report) -> None:
    columns = dict(report.voices) if len(report.voices) <= _MOST_VOICES else {"all": report.summary}
    rates = [(key, label) for key, label in _RATES if any(key in keys for keys in columns.values())]
    places, width = np.arange(len(columns)), 0.8 / max(len(rates), 1)
    for number, (key, label) in enumerate(rates):
        values, below, above = (
            np.array([100 * keys.get(name, np.nan) for keys in columns.values()])
            for name in (key, f"{key}_low", f"{key}_high")
        )
        around = [np.maximum(values - below, 0), np.maximum(above - values, 0)]
        axes.bar(places + number * width, values, width, yerr=around, capsize=2, label=label)
    axes.set_xticks(places + 0.4 - width / 2, [_short(name) for name in columns], rotation=30, ha="right")
    axes.set_title("Errors, with 95 % intervals")
    axes.set_ylabel("% of words, characters or phones")
    axes.margins(y=0.3)  # room for the legend
    if rates:
        axes.legend(fontsize="small")


def _draw_durations(axes: Axes, report: Report) -> None:
    by_voice = len(report.voices) <= _MOST_VOICES
    for voice in report.voices if by_voice else ["all"]:
        own = [one for one in report.utterances if not by_voice or one.voice == voice]
        counts, seconds = [one.sound.num_characters for one in own], [one.sound.duration_s for one in own]
        axes.scatter(counts, seconds, s=14, alpha=0.7, label=_short(voice))
    away = [one for one in report.utterances if one.runaway is not None]
    if away:
        counts, seconds = [one.sound.num_characters for one in away], [one.sound.duration_s for one in away]
        axes.scatter(counts, seconds, s=70, facecolors="none", edgecolors="red", label="runaway")
    axes.set_title("Duration and length of the text")
    axes.set_xlabel("characters")
    axes.set_ylabel("seconds")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _draw_similarities(axes: Axes, matrix: dict[str, dict[str, float]]) -> None:
    references = list(dict.fromkeys(name for row in matrix.values() for name in row))
    values = np.array([[row.get(name, np.nan) for name in references] for row in matrix.values()])
    picture = axes.imshow(values, vmin=min(0.0, float(np.nanmin(values))), vmax=1.0)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize="small",
                color="white" if value < _LIGHT else "black",
            )
    axes.set_xticks(range(len(references)), [_short(name) for name in references], rotation=30, ha="right")
    axes.set_yticks(range(len(matrix)), [_short(name) for name in matrix])
    axes.set_title("Speaker similarity")
    axes.set_xlabel("reference")
    axes.set_ylabel("spoken by")
    axes.figure.colorbar(picture, ax=axes, shrink=0.8)


def _short(name: str) -> str:
    stem = Path(name).stem or name
    return stem if len(stem) <= _LONGEST_NAME else stem[: _LONGEST_NAME - 1] + "…"
