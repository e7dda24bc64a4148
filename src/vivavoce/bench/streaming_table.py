"""A chunked synthesis' figures as rows of text, and what each of its speeches came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vivavoce.bench.streaming import Streamed

_NOTHING = "–"
_PARTS = ("mean", "p50", "p90", "p99", "max")


def rows_of(keys: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(header, rows): distributions first, then single figures in the first column of numbers."""
    spreads = [
        ["first chunk (ms)", *(f"{keys[f'first_chunk_ms_{part}']:.1f}" for part in _PARTS), str(keys["texts"])],
        ["each chunk (ms)", *(f"{keys[f'chunk_ms_{part}']:.1f}" for part in _PARTS), str(keys["chunks"])],
    ]
    lines = [
        ("audio (s)", _number(keys["audio_s"], 1)),
        ("RTF in chunks", _number(keys["rtf"], 3)),
        ("RTF whole", _number(keys["whole_rtf"], 3)),
        ("underruns", str(keys["underruns"])),
        ("smallest margin (ms)", _number(keys["margin_ms_min"], 1)),
        ("joins", str(keys["joins"])),
        ("joins that stand out", str(keys["join_clicks"])),
        ("worst join / 99.9 % of places", _number(keys["join_click_worst"], 2)),
        ("median join / median place", _number(keys["join_click_median"], 2)),
        ("spectrum to whole, joins (dB)", _number(keys["spectral_db_joins"], 1)),
        ("spectrum to whole, else (dB)", _number(keys["spectral_db_elsewhere"], 1)),
    ]
    return ["", *_PARTS, "n"], [*spreads, *([label, text, "", "", "", "", ""] for label, text in lines)]


def texts_of(streamed: Sequence[Streamed]) -> list[dict[str, Any]]:
    """Keys of each speech."""
    return [
        {
            "id": one.speech.id,
            "tokens": len(one.speech.tokens),
            "audio_s": one.audio_s,
            "first_chunk_ms": one.first_chunk_s * 1000,
            "chunk_ms": [seconds * 1000 for seconds in one.chunks_s],
            "rtf": one.total_s / one.audio_s,
            "whole_rtf": one.whole_s * one.sample_rate / len(one.whole),
        }
        for one in streamed
    ]


def _number(value: Any, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"
