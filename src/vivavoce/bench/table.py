"""A report's figures as rows of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vivavoce.bench.figures import Keys

_NOTHING = "–"


def latency_rows(keys: Keys) -> tuple[list[str], list[list[str]]]:
    """(header, rows): what is a distribution, with the number of its values."""
    gaps = keys["chunks"] - keys["ok"]
    rows = [
        ["first audio (ms)", *_spread(keys, ("ttfb_ms_mean", *_names("ttfb_ms")), 1), str(keys["ok"])],
        ["between chunks (ms)", *_spread(keys, ("gap_ms_mean", *_names("gap_ms")), 1), str(gaps)],
        ["RTF", *_spread(keys, ("rtf", *_names("rtf")), 3), str(keys["ok"])],
    ]
    return ["", "mean", "p50", "p90", "p99", "max", "n"], rows


def figure_rows(keys: Keys) -> list[list[str]]:
    """Label and value of everything else that was measured."""
    lines = [
        ("requests", _requests(keys)),
        ("throughput", _unit(keys["throughput_audio_s_per_s"], 2, "s of audio per s")),
        ("audio, wall time", f"{keys['audio_s']:.1f} s, {keys['wall_s']:.1f} s"),
        ("underruns", _underruns(keys)),
        ("smallest margin", _unit(keys["margin_ms_min"], 1, "ms")),
        ("GPU memory", _memory(keys)),
        ("process memory", _bytes(keys.get("rss_bytes"))),
        ("WER, free", _percent(keys.get("wer_free"))),
        ("WER, closed", _percent(keys.get("wer_closed"))),
        ("speaker similarity", _number(keys.get("speaker_similarity"), 3)),
    ]
    return [[label, text] for label, text in lines if text != _NOTHING]


def _names(name: str) -> list[str]:
    return [f"{name}_{part}" for part in ("p50", "p90", "p99", "max")]


def _spread(keys: Keys, names: Iterable[str], digits: int) -> list[str]:
    return [_number(keys[name], digits) for name in names]


def _requests(keys: Keys) -> str:
    others = [f"{keys[name]} {name}" for name in ("refused", "failed") if keys[name]]
    return ", ".join([f"{keys['ok']} of {keys['requests']} spoken", *others])


def _underruns(keys: Keys) -> str:
    if keys["margin_ms_min"] is None:
        return _NOTHING  # nobody waited for a second chunk
    return (
        f"{keys['underruns']} in {keys['underrun_requests']} of {keys['ok']} requests, {keys['stall_s']:.3f} s silent"
    )


def _memory(keys: Keys) -> str:
    used, held = keys.get("gpu_memory_bytes"), keys.get("gpu_memory_reserved_bytes")
    return _NOTHING if used is None else f"{_bytes(used)} used at most, {_bytes(held)} reserved"


def _number(value: Any, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def _unit(value: Any, digits: int, unit: str) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f} {unit}"


def _percent(value: Any) -> str:
    return _NOTHING if value is None else f"{100 * value:.1f} %"


def _bytes(value: Any) -> str:
    return _NOTHING if value is None else f"{value / 2**30:.2f} GiB"
