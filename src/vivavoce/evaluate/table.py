"""A report's figures as rows of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vivavoce.evaluate.report import Report

Keys = Mapping[str, Any]

_MOST_COLUMNS = 6


def report_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a row per figure that was measured, columns for the run and each of a few voices."""
    columns = {"all": report.summary}
    if 1 < len(report.voices) <= _MOST_COLUMNS:
        columns |= report.voices
    rows = [
        [label, *(line(keys) or "–" for keys in columns.values())] for label, line in _LINES if line(report.summary)
    ]
    return ["", *columns], rows


def _rate(name: str) -> Callable[[Keys], str | None]:
    def line(keys: Keys) -> str | None:
        if name not in keys:
            return None
        interval = f"({100 * keys[f'{name}_low']:.1f}–{100 * keys[f'{name}_high']:.1f})"
        return f"{100 * keys[name]:.1f} % {interval}"

    return line


def _number(name: str, form: str) -> Callable[[Keys], str | None]:
    return lambda keys: form.format(keys[name]) if name in keys else None


def _percent(name: str) -> Callable[[Keys], str | None]:
    return lambda keys: f"{100 * keys[name]:.2f} %" if name in keys else None


def _similarity(keys: Keys) -> str | None:
    if "speaker_similarity" not in keys:
        return None
    low, high = keys["speaker_similarity_low"], keys["speaker_similarity_high"]
    return f"{keys['speaker_similarity']:.3f} ({low:.3f}–{high:.3f})"


def _f0(keys: Keys) -> str | None:
    if "f0_p50_hz" not in keys:
        return None
    return f"{keys['f0_p05_hz']:.0f} / {keys['f0_p50_hz']:.0f} / {keys['f0_p95_hz']:.0f} Hz"


def _joins(keys: Keys) -> str | None:
    if "joins" not in keys:
        return None
    return f"{keys['joins_over']} of {keys['joins']}"


_LINES: tuple[tuple[str, Callable[[Keys], str | None]], ...] = (
    ("utterances", _number("utterances", "{}")),
    ("audio", _number("duration_total_s", "{:.1f} s")),
    ("WER, free", _rate("wer_free")),
    ("WER, closed", _rate("wer_closed")),
    ("CER, free", _rate("cer_free")),
    ("CER, closed", _rate("cer_closed")),
    ("phone error rate", _rate("per")),
    ("unknown words", lambda keys: str(keys["unknown_units"]) if keys.get("unknown_units") else None),
    ("speaker similarity", _similarity),
    ("right voice nearest", _rate("identification_rate")),
    ("… by chance", _percent("identification_chance")),
    ("per character", _number("s_per_character", "{:.3f} s")),
    ("length ratio", _number("length_ratio", "{:.2f}")),
    ("runaways", _number("runaways", "{}")),
    ("silence", _percent("silence_ratio")),
    ("longest silence", _number("longest_silence_s", "{:.2f} s")),
    ("F0 5/50/95 %", _f0),
    ("voiced", _percent("voiced_share")),
    ("clipped samples", _percent("clipping_share")),
    ("RTF", _number("rtf", "{:.3f}")),
    ("first audio", _number("first_audio_s", "{:.3f} s")),
    ("first audio, 95 %", _number("first_audio_p95_s", "{:.3f} s")),
    ("joins that click", _joins),
    ("worst join", _number("join_worst_ratio", "{:.2f} × limit")),
    ("median join", _number("join_median_ratio", "{:.2f} × usual")),
)
"""Label and text of each figure; docs/evaluation.md says what they mean."""
