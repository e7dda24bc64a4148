"""Typed reading of plain settings; an error gives the setting's full path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vivavoce.errors import CheckpointError

MAX_SIZE = 1 << 20
"""No size of a network comes near; products of three still fit into 64 bits."""
MAX_BLOCKS = 256
"""No network has as many layers or blocks in a row."""


class Section:
    """One mapping of a settings file and its place in it."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    def section(self, key: str) -> Section:
        """The mapping under `key`."""
        value = self._values.get(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a group of settings")
        return Section(f"{self.path}: {key}" if ":" not in self.path else f"{self.path}.{key}", value)

    def integer(self, key: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """A whole number from `minimum` to `maximum`."""
        number = self.number(key)
        if number != int(number) or not minimum <= number <= maximum:
            raise self._wrong(key, f"a whole number from {minimum} to {maximum}")
        return int(number)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; `default` stands for a setting that is null or absent. YAML 1.1 reads `1e-6` as text."""
        value = self._values.get(key, default)
        if value is None and default is not None:
            return default
        try:
            if isinstance(value, bool) or value is None:
                raise ValueError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._wrong(key, "a number") from None
        if not math.isfinite(number):
            raise self._wrong(key, "a finite number")
        return number

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """A list of whole numbers from 1 to MAX_SIZE."""
        value = self._values.get(key, default)
        fits = isinstance(value, list | tuple) and value
        if not fits or any(type(item) is not int or not 1 <= item <= MAX_SIZE for item in value):
            raise self._wrong(key, f"a list of whole numbers from 1 to {MAX_SIZE}")
        return tuple(value)

    def integer_rows(self, key: str) -> tuple[tuple[int, ...], ...]:
        """A list of lists of whole numbers."""
        value = self._values.get(key)
        if not isinstance(value, list) or not value:
            raise self._wrong(key, "a list of lists")
        return tuple(Section(self.path, {key: row}).integers(key) for row in value)

    def _wrong(self, key: str, wanted: str) -> CheckpointError:
        found = repr(self._values[key])[:60] if key in self._values else "nothing"
        where = f"{self.path}.{key}" if ":" in self.path else f"{self.path}: {key}"
        return CheckpointError(f"{where}: expected {wanted}, found {found}; download the file again")
