"""An evaluation's result: figures of the run, of each voice and of each utterance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vivavoce.errors import InvalidRequest
from vivavoce.evaluate.similarity import MOST_KEPT
from vivavoce.evaluate.utterance import Utterance

SCHEMA = "vivavoce-evaluation-1"
"""The form of report.json; the number moves when a key changes its meaning."""

_DIGITS = 6


@dataclass(frozen=True, eq=False)
class Report:
    """All figures of one run."""

    settings: Mapping[str, Any]
    """What was evaluated and how, as the caller describes it."""
    summary: Mapping[str, Any]
    voices: Mapping[str, Mapping[str, Any]]
    """As `summary`, for each voice alone."""
    utterances: tuple[Utterance, ...]

    def similarity_matrix(self) -> dict[str, dict[str, float]]:
        """Mean cosine of each voice's audio (rows) with each voice's reference; {} for none, or too many to keep."""
        rows: dict[str, dict[str, list[float]]] = {}
        for utterance in self.utterances:
            if utterance.num_references > MOST_KEPT:
                return {}
            for other, value in (utterance.similarities or {}).items():
                rows.setdefault(utterance.voice, {}).setdefault(other, []).append(value)
        return {voice: {other: float(np.mean(values)) for other, values in row.items()} for voice, row in rows.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values: flat keys for the run and each voice, one row per utterance; fractions are of 1."""
        return _rounded(
            {
                "schema": SCHEMA,
                "settings": dict(self.settings),
                "summary": dict(self.summary),
                "voices": {voice: dict(keys) for voice, keys in self.voices.items()},
                "similarity_matrix": self.similarity_matrix(),
                "utterances": [utterance.to_json() for utterance in self.utterances],
            }
        )

    def save(self, path: Path) -> None:
        """Write the report as JSON; `InvalidRequest` if the place cannot be written."""
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=2, allow_nan=False)
        write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file; `InvalidRequest` if the place cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"out: {str(path)!r} cannot be written ({error.strerror}); choose another folder"
        ) from None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
