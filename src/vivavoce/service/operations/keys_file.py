"""The file of API keys: what an entry may say, and how the file is read.

::

    [[key]]
    name = "team-a"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    owner = "team-a"               # whose voices it sees and keeps; default: its name
    may_publish = false            # may add and remove voices that everybody sees
    requests_per_minute = 60
    characters_per_minute = 20000
    concurrent = 4
    expires = 2027-01-01           # from 00:00 UTC of that day on it is refused
"""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest
from vivavoce.service.operations.callers import Allowance, Caller
from vivavoce.service.operations.toml_file import TomlFile, closest, parse_toml, read_toml

_log = logging.getLogger(__name__)

FIELD = "auth.keys_file"
"""The setting that errors name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class KeyEntry:
    """One key; sha256: of the key, in hexadecimal; expires: from then on it is refused, None: never."""

    name: str
    sha256: str
    owner: str
    may_publish: bool
    allowance: Allowance
    expires: datetime | None

    @property
    def caller(self) -> Caller:
        """Who asks with this key."""
        return Caller(self.name, self.owner, self.may_publish, self.allowance)


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """All entries of a file.

    Raises:
        InvalidRequest: the file is missing, malformed, or others may write it.
    """
    file = read_toml(path, FIELD)
    check_mode(path)
    return keys_of(file)


def parse_keys(text: str, path: Path) -> tuple[KeyEntry, ...]:
    """All entries of a text; `path` names it in errors.

    Raises:
        InvalidRequest: it is malformed.
    """
    return keys_of(parse_toml(text.encode(), path, FIELD))


def keys_of(file: TomlFile) -> tuple[KeyEntry, ...]:
    """All entries of a file that was read."""
    for name in file.values:
        if name != "key":
            raise InvalidRequest(f"{file.place(name)}: {name!r} is unknown; a key begins with [[key]]")
    tables = file.values.get("key", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidRequest(f"{file.place('key')}: key is no array of tables; begin each key with [[key]]")
    entries = tuple(_entry(file, index, table) for index, table in enumerate(tables))
    _refuse_twins(file, entries)
    return entries


def key_name(value: object) -> str:
    """A key's or an owner's name.

    Raises:
        ValueError: it cannot be one; says what is wanted.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("1 to 64 letters, digits, dots, dashes or underscores that begin with a letter or digit")
    return value


def expiry(value: object) -> datetime:
    """A day (00:00 UTC) or a moment, as TOML or as text: 2027-01-01, 2027-01-01T12:00:00Z; without a zone: UTC.

    Raises:
        ValueError: it is neither; says what is wanted.
    """
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", value))
        except ValueError:
            moment = None
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime) or not 1970 <= moment.year < 9999:
        raise ValueError("a day such as 2027-01-01")
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def rate(value: object) -> float:
    """A mean rate per minute.

    Raises:
        ValueError: not a number above 0; says what is wanted.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError("a number above 0, or leave it out for no limit")
    return float(value)


def count(value: object) -> int:
    """A number of requests at once.

    Raises:
        ValueError: not a whole number from 1 on; says what is wanted.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number from 1 on, or leave it out for no limit")
    return value


def check_mode(path: Path) -> None:
    """Refuse a file that everyone may write, and warn of one that more may use than its owner.

    Raises:
        InvalidRequest: whoever has an account here could add a key.
    """
    if os.name != "posix":
        return
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:  # it went away since it was read
        raise InvalidRequest(f"{FIELD}: {path} cannot be read ({error.strerror}); check the file") from None
    if mode & stat.S_IWOTH:
        raise InvalidRequest(f"{FIELD}: {path} may be written by everyone (mode {mode:o}); chmod 600 it")
    if mode & (stat.S_IWGRP | stat.S_IROTH):
        _log.warning("%s: %s may be used by others than its owner (mode %o); chmod 600 it", FIELD, path, mode)


def _digest(value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value.lower()):
        raise ValueError("the SHA-256 of the key, 64 hexadecimal digits; `vivavoce keys add` writes it")
    return value.lower()


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


_FIELDS: Mapping[str, Callable[[object], Any]] = {
    "name": key_name,
    "sha256": _digest,
    "owner": key_name,
    "may_publish": _switch,
    "requests_per_minute": rate,
    "characters_per_minute": rate,
    "concurrent": count,
    "expires": expiry,
}


def _entry(file: TomlFile, index: int, table: Mapping[str, object]) -> KeyEntry:
    checked: dict[str, Any] = {}
    for field, value in table.items():
        place = file.place(f"key[{index}].{field}")
        if field not in _FIELDS:
            raise InvalidRequest(f"{place}: {field!r} is unknown in [[key]]; {closest(field, _FIELDS)}")
        try:
            checked[field] = _FIELDS[field](value)
        except ValueError as wanted:
            # A key that was pasted for its hash must not come to light.
            shown = "what it holds" if field == "sha256" else repr(value)
            raise InvalidRequest(f"{place}: {field}: {shown} cannot be; give {wanted}") from None
    if missing := [field for field in ("name", "sha256") if field not in checked]:
        raise InvalidRequest(f"{file.place(f'key[{index}]')}: key {index + 1} lacks {missing[0]}; give it")
    return KeyEntry(
        checked["name"],
        checked["sha256"],
        checked.get("owner", checked["name"]),
        checked.get("may_publish", False),
        Allowance(checked.get("requests_per_minute"), checked.get("characters_per_minute"), checked.get("concurrent")),
        checked.get("expires"),
    )


def _refuse_twins(file: TomlFile, entries: tuple[KeyEntry, ...]) -> None:
    names: set[str] = set()
    digests: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.name in names:
            place = file.place(f"key[{index}].name")
            raise InvalidRequest(f"{place}: name: {entry.name!r} is there twice; give each key a name of its own")
        if entry.sha256 in digests:
            place = file.place(f"key[{index}].sha256")
            raise InvalidRequest(f"{place}: sha256: {entry.name!r} has another's key; make one for each")
        names.add(entry.name)
        digests.add(entry.sha256)
