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
    """A file's values, and where they stand.

    lines: the line (from 1) of "section", "section.field", "table[0]" and "table[0].field", as far as they are written
    in the plain way; for messages alone.
    """

    path: Path
    text: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, name: str) -> str:
        """Where a name stands: "file:3", or the file alone."""
        line = self.lines.get(name)
        return str(self.path) if line is None else f"{self.path}:{line}"


def read_toml(path: Path, field: str) -> TomlFile:
    """Read a file; errors name `field`, the setting that asks for it.

    Raises:
        InvalidRequest: the file is missing, cannot be read or is no TOML.
        MissingDependency: Python 3.10 without the package tomli.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InvalidRequest(f"{field}: {path} does not exist; make it, or name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{field}: {path} cannot be read ({error.strerror}); check the file") from None
    return parse_toml(content, path, field)


def parse_toml(content: bytes, path: Path, field: str) -> TomlFile:
    """What `read_toml` does with the bytes that it has read."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field}: {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    parse, broken = _parser()
    try:
        values = parse(text)
    except broken as error:
        place = _PLACE.search(str(error))
        where = f"{path}:{place[1]}" if place else str(path)
        raise InvalidRequest(f"{where}: is no TOML: {_PLACE.sub('', str(error))}; mend the line") from None
    return TomlFile(path, text, values, lines_of(text))


def lines_of(text: str) -> dict[str, int]:
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


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that was meant, or all there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _parser() -> tuple[Any, type[ValueError]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise MissingDependency(
                "TOML files: Python 3.10 needs the package tomli; pip install 'vivavoce[server]'"
            ) from None
    return tomllib.loads, tomllib.TOMLDecodeError
