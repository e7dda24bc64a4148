"""TOML files that an operator writes: read whole, with the line of every field, and errors of one line."""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest, MissingDependency

_HEADER = re.compile(r"\s*(\[{1,2})\s*([^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_FIELD = re.compile(r"""\s*([A-Za-z0-9_.\-"' ]+?)\s*=""")
_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True)
class TomlFile:
    """A file's values; lines: where "section.field" and "table[0].field" stand, from 1, for messages alone."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, name: str) -> str:
        """Where a name stands: "file:3", or the file alone."""
        line = self.lines.get(name)
        return str(self.path) if line is None else f"{self.path}:{line}"


def read_toml(path: Path, field: str) -> TomlFile:
    """Read a file; InvalidRequest names `field`, the setting that asks for it: missing, unreadable or no TOML."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidRequest(f"{field}: {path} does not exist; make it, or name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{field}: {path} cannot be read ({error.strerror}); check the file") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field}: {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> TomlFile:
    """The file of this text; InvalidRequest: it is no TOML."""
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError:
        raise MissingDependency(
            "TOML files: Python 3.10 needs the package tomli; pip install 'vivavoce[server]'"
        ) from None
    try:
        return TomlFile(path, tomllib.loads(text), _lines_of(text))
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        where = f"{path}:{place[1]}" if place else str(path)
        raise InvalidRequest(f"{where}: is no TOML: {_PLACE.sub('', str(error))}; mend the line") from None


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that was meant, or all there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"


def _lines_of(text: str) -> dict[str, int]:
    """The lines of tables and fields; what a multi-line string seems to hold may be among them."""
    found: dict[str, int] = {}
    arrays: Counter[str] = Counter()
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _plain(header[2])
            if header[1] == "[[":
                arrays[table] += 1
                table = f"{table}[{arrays[table] - 1}]"
            found.setdefault(table, number)
        elif entry := _FIELD.match(line):
            found.setdefault(f"{table}.{_plain(entry[1])}".lstrip("."), number)
    return found


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
