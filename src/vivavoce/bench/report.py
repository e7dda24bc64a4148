"""A benchmark's result: what was asked of what, and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vivavoce.bench import json_file
from vivavoce.bench.figures import figures
from vivavoce.bench.outcome import Outcome

SCHEMA = "vivavoce-bench-1"
"""The form of the JSON; the number moves when a key changes its meaning."""


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
        return json_file.rounded(keys)

    def text(self) -> str:
        """The report as JSON text."""
        return json_file.as_text(self.to_json())

    def save(self, path: Path) -> None:
        """Write the report as JSON; `InvalidRequest` if the place cannot be written."""
        json_file.save(self.to_json(), path)
