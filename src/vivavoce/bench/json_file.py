"""JSON of a benchmark: numbers of a readable length, and a place to write to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest

_DIGITS = 6


def rounded(value: Any) -> Any:
    """The same with six digits after the point of every number, however deep it stands."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value


def as_text(keys: dict[str, Any]) -> str:
    """JSON for people to read as well."""
    return json.dumps(keys, ensure_ascii=False, indent=2, allow_nan=False)


def save(keys: dict[str, Any], path: Path) -> None:
    """Write JSON; `InvalidRequest` if the place cannot be written."""
    try:
        path.write_text(as_text(keys) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"json: {str(path)!r} cannot be written ({error.strerror}); choose another place"
        ) from None
