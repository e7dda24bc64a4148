"""Report an evaluation as JSON, a table, files and a picture: figures of the run, each voice and each utterance."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vivavoce_bench.evaluate.error_rate import Edits, mean_interval, pooled
from vivavoce_bench.evaluate.opinion import KEYS
from vivavoce_bench.evaluate.speaking import UNNAMED, Clip
from vivavoce_bench.measure import make_folder, picture, rounded, save_json, write_text, write_wav

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = "vivavoce-evaluation-1"
MOST_REFERENCES = 32

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class EvaluationReport:
    """All figures of one run; the field names are keys of report.json."""

    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    voices: Mapping[str, Mapping[str, Any]]
    """For each voice, the keys of `summary`."""
    similarity_matrix: Mapping[str, Mapping[str, float]]
    """Voice of the audio → voice of the reference → mean cosine; {} if there are no references or more than 32."""
    utterances: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON: flat keys for the run and each voice, and rows of utterances. Shares are 0 … 1."""
        found: dict[str, Any] = rounded({"schema": SCHEMA, **vars(self)})
        return found

    def save(self, path: Path) -> None:
        save_json(self.to_json(), path, field="out")


_OVER_UTTERANCES: dict[str, tuple[str, Callable[[list[Any]], Any]]] = {
    "duration_s": ("duration_total_s", np.sum),
    "s_per_character": ("s_per_character", np.median),
    "length_ratio": ("length_ratio", np.median),
    "silence_ratio": ("silence_ratio", np.mean),
    "longest_silence_s": ("longest_silence_s", np.max),
    "f0_p05_hz": ("f0_p05_hz", np.median),
    "f0_p50_hz": ("f0_p50_hz", np.median),
    "f0_p95_hz": ("f0_p95_hz", np.median),
    "voiced_share": ("voiced_share", np.mean),
    "clipping_share": ("clipping_share", np.mean),
    "rtf": ("rtf", np.median),
    "first_audio_s": ("first_audio_s", np.median),
}
"""Key in a row → key in the summary, and the function that combines the rows' values."""


def summarise(rows: Sequence[Row], num_references: int, clicks: Row) -> Row:
    """Return the figures of some utterances by the keys of docs/measuring.md, without those that were not measured.

    clicks: figures of the joins in these utterances, compared with the run's audio that was generated at once.
    """
    summary: Row = {"utterances": len(rows), **_recognition([row for row in rows if "unit" in row])}
    summary |= _mean("speaker_similarity", _known(rows, "speaker_similarity"))
    compared = [row for row in rows if row["nearest_voice"] is not None]
    if compared:
        summary |= _mean("identification_rate", [float(row["nearest_voice"] == row["voice"]) for row in compared])
        summary["identification_chance"] = 1 / num_references
    for key, (name, combine) in _OVER_UTTERANCES.items():
        if values := _known(rows, key):
            summary[name] = float(combine(values))
    for key in KEYS:
        summary |= _mean(key, _known(rows, key))
    summary["runaways"] = len(_known(rows, "runaway"))
    summary["clipped_utterances"] = sum(row["clipping_share"] > 0 for row in rows)
    if waits := _known(rows, "first_audio_s"):
        summary["first_audio_p95_s"] = float(np.quantile(waits, 0.95))
    return summary | {key: value for key, value in clicks.items() if value is not None}


def _known(rows: Sequence[Row], key: str) -> list[Any]:
    return [row[key] for row in rows if row.get(key) is not None]


def _mean(name: str, values: Sequence[float]) -> Row:
    return dict(zip((name, f"{name}_low", f"{name}_high"), mean_interval(values), strict=True)) if values else {}


def _recognition(rows: Sequence[Row]) -> Row:
    if not rows:
        return {}
    words = [row for row in rows if row["unit"] == "word"]
    characters = [row for row in rows if row["unit"] == "character"]
    return {
        "unknown_units": sum(len(row["unknown"]) for row in rows),
        **_rate("wer_free", words, "free"),
        **_rate("wer_closed", words, "closed"),
        **_rate("cer_free", characters, "free"),
        **_rate("cer_closed", characters, "closed"),
        **_rate("per", rows, "phone"),
    }


def _rate(name: str, rows: Sequence[Row], kind: str) -> Row:
    counts = [(row[f"{kind}_errors"], row[f"{kind}_total"]) for row in rows if f"{kind}_total" in row]
    if not sum(total for _, total in counts):
        return {}
    rate = pooled(counts)
    edits = {f"{name}_{edit}": sum(_known(rows, f"{kind}_{edit}")) for edit in Edits._fields if kind != "phone"}
    return {name: rate.rate, **edits, **{f"{name}_{key}": value for key, value in vars(rate).items()}}


_MOST_COLUMNS = 6


def _rate_form(name: str) -> str:
    return f"{{percent[{name}]:.1f}} % ({{percent[{name}_low]:.1f}}–{{percent[{name}_high]:.1f}})"


_OPINIONS = (("Distill-MOS", "mos_distill"), ("DNSMOS", "mos_dnsmos"), ("DNSMOS P.808", "mos_p808"))
_LINES = (
    ("utterances", "utterances", "{utterances}"),
    ("audio", "duration_total_s", "{duration_total_s:.1f} s"),
    ("WER, free", "wer_free", _rate_form("wer_free")),
    ("WER, closed", "wer_closed", _rate_form("wer_closed")),
    ("CER, free", "cer_free", _rate_form("cer_free")),
    ("CER, closed", "cer_closed", _rate_form("cer_closed")),
    ("phone error rate", "per", _rate_form("per")),
    ("unknown words", "unknown_units", "{unknown_units}"),
    (
        "speaker similarity",
        "speaker_similarity",
        "{speaker_similarity:.3f} ({speaker_similarity_low:.3f}–{speaker_similarity_high:.3f})",
    ),
    ("right voice nearest", "identification_rate", _rate_form("identification_rate")),
    ("… by chance", "identification_chance", "{percent[identification_chance]:.2f} %"),
    *((name, key, f"{{{key}:.2f}} ({{{key}_low:.2f}}–{{{key}_high:.2f}})") for name, key in _OPINIONS),
    ("per character", "s_per_character", "{s_per_character:.3f} s"),
    ("length ratio", "length_ratio", "{length_ratio:.2f}"),
    ("runaways", "runaways", "{runaways}"),
    ("silence", "silence_ratio", "{percent[silence_ratio]:.2f} %"),
    ("longest silence", "longest_silence_s", "{longest_silence_s:.2f} s"),
    ("F0 5/50/95 %", "f0_p50_hz", "{f0_p05_hz:.0f} / {f0_p50_hz:.0f} / {f0_p95_hz:.0f} Hz"),
    ("voiced", "voiced_share", "{percent[voiced_share]:.2f} %"),
    ("clipped samples", "clipping_share", "{percent[clipping_share]:.2f} %"),
    ("RTF", "rtf", "{rtf:.3f}"),
    ("first audio", "first_audio_s", "{first_audio_s:.3f} s"),
    ("first audio, 95 %", "first_audio_p95_s", "{first_audio_p95_s:.3f} s"),
    ("joins that click", "joins", "{joins_over} of {joins}"),
    ("worst join", "join_worst_ratio", "{join_worst_ratio:.2f} × limit"),
    ("median join", "join_median_ratio", "{join_median_ratio:.2f} × usual"),
)


def report_rows(report: EvaluationReport) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and rows: a row per figure, columns for the whole run and each of a few voices."""
    columns = {"all": report.summary}
    if 1 < len(report.voices) <= _MOST_COLUMNS:
        columns |= report.voices

    def cell(keys: Mapping[str, Any], name: str, form: str) -> str:
        return form.format(**keys, percent={key: 100 * value for key, value in keys.items()}) if name in keys else "–"

    rows = [
        [label, *(cell(keys, name, form) for keys in columns.values())]
        for label, name, form in _LINES
        if name in report.summary and not (name == "unknown_units" and not report.summary[name])
    ]
    return ["", *columns], rows


TABLE = "utterances.tsv"
_LONGEST_FILE_NAME = 40


class RecordingsFolder:
    def __init__(self, folder: Path, *, by_voice: bool) -> None:
        """by_voice: file names include the voice, because several voices speak the same sentence."""
        self.folder, self._by_voice = folder, by_voice
        self._taken: set[str] = set()
        make_folder(folder, field="out")

    def write(self, clip: Clip) -> str:
        voice = re.sub(r"[^\w-]+", "_", Path(clip.voice).stem)[:_LONGEST_FILE_NAME]
        stem = f"{clip.case.id}-{voice}" if self._by_voice else clip.case.id
        name, number = f"{stem}.wav", 2
        while name in self._taken:
            name, number = f"{stem}-{number}.wav", number + 1
        self._taken.add(name)
        write_wav(self.folder / name, clip.samples, clip.sample_rate, field="out")
        return name

    def write_table(self, rows: Sequence[Row]) -> None:
        """Write the file name, text and voice of each utterance to a table that `read_audio_table` can read."""
        lines = ("\t".join((row["audio"], " ".join(row["text"].split()), _anywhere(row["voice"]))) for row in rows)
        write_text(self.folder / TABLE, "".join(f"{line}\n" for line in lines), field="out")


def _anywhere(voice: str) -> str:
    if voice == UNNAMED:
        return ""
    return str(Path(voice).resolve()) if Path(voice).is_file() else voice


_MOST_VOICES = 16
_LONGEST_NAME = 14
_LIGHT = 0.6
"""Similarity from which a cell's colour is so light that its text must be dark."""
_RATES = {
    **{"wer_free": "WER free", "wer_closed": "WER closed"},
    **{"cer_free": "CER free", "cer_closed": "CER closed", "per": "phones"},
}


def draw(report: EvaluationReport, path: Path) -> None:
    matrix = report.similarity_matrix if len(report.similarity_matrix) <= _MOST_VOICES else {}
    count = 3 if matrix else 2
    with picture(path, (5.2 * count, 4.2), count, field="out") as axes:
        _draw_rates(axes[0], report)
        _draw_durations(axes[1], report)
        if matrix:
            _draw_similarities(axes[2], matrix)


def _draw_rates(axes: Axes, report: EvaluationReport) -> None:
    columns = dict(report.voices) if len(report.voices) <= _MOST_VOICES else {"all": report.summary}
    rates = [(key, label) for key, label in _RATES.items() if any(key in keys for keys in columns.values())]
    places, width = np.arange(len(columns)), 0.8 / max(len(rates), 1)
    for number, (key, label) in enumerate(rates):
        values, below, above = (
            np.array([100 * keys.get(name, np.nan) for keys in columns.values()])
            for name in (key, f"{key}_low", f"{key}_high")
        )
        around = [np.maximum(values - below, 0), np.maximum(above - values, 0)]
        axes.bar(places + number * width, values, width, yerr=around, capsize=2, label=label)
    axes.set_xticks(places + 0.4 - width / 2, [_short(name) for name in columns], rotation=30, ha="right")
    axes.set(title="Errors, with 95 % intervals", ylabel="% of words, characters or phones")
    axes.margins(y=0.3)
    if rates:
        axes.legend(fontsize="small")


def _draw_durations(axes: Axes, report: EvaluationReport) -> None:
    def dots(rows: Sequence[Row], label: str, **style: Any) -> None:
        axes.scatter([row["num_characters"] for row in rows], [row["duration_s"] for row in rows], label=label, **style)

    by_voice = len(report.voices) <= _MOST_VOICES
    for voice in report.voices if by_voice else ["all"]:
        own = [row for row in report.utterances if not by_voice or row["voice"] == voice]
        dots(own, _short(voice), s=14, alpha=0.7)
    if away := [row for row in report.utterances if row["runaway"] is not None]:
        dots(away, "runaway", s=70, facecolors="none", edgecolors="red")
    axes.set(title="Duration and length of the text", xlabel="characters", ylabel="seconds")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _draw_similarities(axes: Axes, matrix: Mapping[str, Mapping[str, float]]) -> None:
    references = list(dict.fromkeys(name for row in matrix.values() for name in row))
    values = np.array([[row.get(name, np.nan) for name in references] for row in matrix.values()])
    picture = axes.imshow(values, vmin=min(0.0, float(np.nanmin(values))), vmax=1.0)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if value < _LIGHT else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize="small", color=colour)
    axes.set_xticks(range(len(references)), [_short(name) for name in references], rotation=30, ha="right")
    axes.set_yticks(range(len(matrix)), [_short(name) for name in matrix])
    axes.set(title="Speaker similarity", xlabel="reference", ylabel="spoken by")
    axes.figure.colorbar(picture, ax=axes, shrink=0.8)


def _short(name: str) -> str:
    stem = Path(name).stem or name
    return stem if len(stem) <= _LONGEST_NAME else stem[: _LONGEST_NAME - 1] + "…"
