"""A benchmark's result: what was asked of what, and the figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vivavoce.bench.figures import figures
from vivavoce.bench.outcome import Outcome
from vivavoce.errors import InvalidRequest

SCHEMA = "vivavoce-bench-1"
"""The form of the JSON; the number moves when a key changes its meaning."""

_DIGITS = 6


@dataclass(frozen=True, eq=False)
class Report:
    """One load and what came of it."""

    settings: Mapping[str, Any]
    """What was measured and how, flat, as the caller describes it."""
    outcomes: Sequence[Outcome]
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Memory, as far as the target's is known: flat keys with their units."""
    quality: Mapping[str, Any] = field(default_factory=dict)
    """What the audio of this very load is like, if that was looked at: flat keys."""

    def to_json(self) -> dict[str, Any]:
        """Flat keys with plain values; None where nothing was measured."""
        keys = {
            "schema": SCHEMA,
            **self.settings,
            **figures(self.outcomes),
            **self.resources,
            **self.quality,
        }
        return {key: round(value, _DIGITS) if isinstance(value, float) else value for key, value in keys.items()}

    def text(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_json(), ensure_ascii=False, indent=2, allow_nan=False)

    def save(self, path: Path) -> None:
        """Write the report as JSON; `InvalidRequest` if the place cannot be written."""
        try:
            path.write_text(self.text() + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(
                f"json: {str(path)!r} cannot be written ({error.strerror}); choose another place"
            ) from None
