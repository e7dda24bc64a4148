"""API keys: a file of hashes. The server reads it again when it changes; `vivavoce keys` changes it.

::

    [[key]]
    name = "team-a"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    owner = "team-a"               # owner of the voices that the key uses; default: the key's name
    may_publish = false            # may add and remove public voices
    requests_per_minute = 60
    characters_per_minute = 20000
    concurrent = 4
    priority = "batch"             # its requests use only time that live requests leave
    jobs = 5
    job_characters = 2000000
    expires = 2027-01-01           # the key is refused from 00:00 UTC of this day on

A key is 32 random bytes, which cannot be guessed, so one SHA-256 of it is enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest, Unauthorized
from vivavoce.files import locked, replacing, untrusted
from vivavoce.server.rate_limiter import ANONYMOUS, Principal
from vivavoce.server.toml_file import closest, parse_toml, read_toml

_log = logging.getLogger(__name__)

FIELD = "auth.keys_file"
_HOW = "send yours as `Authorization: Bearer KEY`"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class KeyEntry(Principal):
    may_publish: bool = False
    sha256: str = field(default="", repr=False)
    expires: datetime | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires.timestamp()


class KeyRing:
    """The valid keys, for one event loop. path: the file of keys, None if no key is needed. Errors: see `read_keys`."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        # The state is taken first, so that `refresh` notices a change of the file while it is being read.
        self._state = None if path is None else _state_of(path)
        self._entries = () if path is None else read_keys(path)

    @property
    def required(self) -> bool:
        return self._path is not None

    def authenticate(self, token: str | None) -> Principal:
        """Return a key's principal. Unauthorized (the message omits the key): it is missing, unknown or expired."""
        if self._path is None:
            return ANONYMOUS
        if not token:
            raise Unauthorized(f"API key: none was sent, and this server wants one; {_HOW}")
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        unknown = f"API key: the one that was sent is unknown; {_HOW}, or ask the operator for one"
        return self._find(digest, lambda entry: entry.sha256, unknown)

    def named(self, name: str) -> Principal:
        """Return the principal of a key by its name, for clients that send no key. Unauthorized: unknown or expired."""
        if self._path is None:
            return ANONYMOUS
        unknown = f"API key: there is no key named {name!r}; `vivavoce keys add {name}` makes one"
        return self._find(name, lambda entry: entry.name, unknown)

    def refresh(self) -> None:
        """Read the file again if it changed."""
        path = self._path
        if path is None or (state := _state_of(path)) == self._state:
            return
        self._state = state
        try:
            self._entries = read_keys(path)
            _log.info("keys changed: %(path)s has %(count)d keys", {"path": path, "count": len(self._entries)})
        except InvalidRequest as error:  # a typing mistake must not lock everyone out
            damage = {"error": error, "count": len(self._entries)}
            _log.error("keys damaged: %(error)s (the %(count)d keys read before stay valid)", damage)

    def _find(self, given: str, wanted: Callable[[KeyEntry], str], unknown: str) -> KeyEntry:
        """Read the file again if it changed, and return the entry for which `wanted` returns `given`.

        Unauthorized: no entry has it (the message is `unknown`), or the entry has expired.
        """
        self.refresh()
        found, sent = None, given.encode("utf-8", "surrogatepass")
        for entry in self._entries:  # all entries, so that the time does not show which one matches
            if hmac.compare_digest(wanted(entry).encode(), sent):
                found = entry
        if found is None:
            raise Unauthorized(unknown)
        if found.expires is not None and found.has_expired(self._clock()):
            moment = found.expires.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
            raise Unauthorized(f"API key: {found.name!r} has expired at {moment}; ask the operator for a new one")
        return found


def token_in(headers: Mapping[str, str]) -> str | None:
    """Find KEY in `authorization: Bearer KEY`, `x-api-key: KEY` or `xi-api-key: KEY`; header names are lower-case."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip() or None
    return headers.get("x-api-key") or headers.get("xi-api-key") or None


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """Return all entries of a file. InvalidRequest: the file is missing, malformed, or writable by everyone."""
    values = read_toml(path, FIELD)
    problem, mode = None, 0
    if os.name == "posix":
        with contextlib.suppress(OSError):  # the file may have been removed since it was read
            problem, mode = untrusted(path, any_owner=True), stat.S_IMODE(path.stat().st_mode)
    if problem is not None:
        raise InvalidRequest(f"{FIELD}: {path} {problem}")
    if mode & (stat.S_IWGRP | stat.S_IROTH):
        opened = {"path": path, "mode": f"{mode:o}"}
        _log.warning("keys open: users other than the owner can access %(path)s (mode %(mode)s); chmod 600 it", opened)
    return _entries_of(values, path)


def new_key() -> str:
    """Return a new key: "vv_", so that a search finds leaked keys, then 43 letters, digits, dashes or underscores."""
    return f"vv_{secrets.token_urlsafe(32)}"


def new_entry(key: str, name: str, **others: object) -> KeyEntry:
    """Return a key's entry. others: further fields of the file; None: unset. InvalidRequest names a wrong field."""
    given = {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), **others}
    checked = {one: _value(one, value) for one, value in given.items() if value is not None}
    return KeyEntry(**{"owner": name, **checked})


def add_key(path: Path, entry: KeyEntry) -> None:
    """Append an entry; a new file gets the mode 0600. InvalidRequest: the name is taken, or the file is not valid."""
    with _changing(path):
        old, text = (read_keys(path), path.read_bytes().decode("utf-8-sig")) if path.exists() else ((), "")
        if any(entry.name == other.name for other in old):
            raise InvalidRequest(f"name: {entry.name!r} has a key in {path} already; remove it, or choose another name")
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        _replace(path, text + gap + _written(entry), (*old, entry))


def remove_key(path: Path, name: str) -> None:
    """Remove an entry; comments above other entries stay. InvalidRequest: unknown name, or the file is not valid."""
    with _changing(path):
        old = {entry.name: entry for entry in read_keys(path)}
        if name not in old:
            raise InvalidRequest(f"name: {path} has no key of {name!r}; it has {', '.join(old) or 'none'}")
        text = _without(path.read_bytes().decode("utf-8-sig"), list(old).index(name))
        _replace(path, text, tuple(entry for entry in old.values() if entry.name != name))


def _state_of(path: Path) -> tuple[int, ...]:
    """Return values that change with each change of the file; () if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _expiry(value: object) -> datetime | None:
    """Read a day (from 00:00) or a moment, in TOML or text: 2027-01-01, 2027-01-01T12:00:00Z. Without a zone: UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", value))
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime) or not 1970 <= value.year < 9999:
        return None
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _digest(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value.lower()) else None


def _rate(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and value is not True and 0 < value < math.inf else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 1 else None


_COUNT_WANTED = "a whole number from 1 on, or leave it out for no limit"
_NAME_WANTED = "1 to 64 letters, digits, dots, dashes or underscores that begin with a letter or digit"
_RATE_WANTED = "a number above 0, or leave it out for no limit"
_FIELDS: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "name": (_name, _NAME_WANTED),
    "sha256": (_digest, "the SHA-256 of the key, 64 hexadecimal digits; `vivavoce keys add` writes it"),
    "owner": (_name, _NAME_WANTED),
    "may_publish": (lambda value: value if isinstance(value, bool) else None, "true or false"),
    "requests_per_minute": (_rate, _RATE_WANTED),
    "characters_per_minute": (_rate, _RATE_WANTED),
    "concurrent": (_count, _COUNT_WANTED),
    "priority": (lambda value: value if value in ("live", "batch") else None, "live or batch"),
    "jobs": (_count, _COUNT_WANTED),
    "job_characters": (_count, _COUNT_WANTED),
    "expires": (_expiry, "a day such as 2027-01-01"),
}
"""For each field, a function that turns a file's value into an entry's (None: refused), and the error message's end."""
_TWICE = {"name": "comes twice; give each key its own name", "sha256": "has another entry's key; make a new key"}


def _value(name: str, value: object, place: str = "") -> Any:
    read, wanted = _FIELDS[name]
    if (found := read(value)) is None:
        # The user may have pasted the key itself instead of its hash.
        shown = "what it holds" if name == "sha256" else repr(value)
        raise InvalidRequest(f"{place}{name}: {shown} cannot be; give {wanted}")
    return found


def _entries_of(values: Mapping[str, Any], path: Path) -> tuple[KeyEntry, ...]:
    for name in values.keys() - {"key"}:
        raise InvalidRequest(f"{path}: {name!r} is unknown; a key begins with [[key]]")
    tables = values.get("key", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidRequest(f"{path}: key is not an array of tables; begin each key with [[key]]")
    entries: list[KeyEntry] = []
    for number, table in enumerate(tables, 1):
        place = f"{path}: key {number}"
        for name in (name for name in table if name not in _FIELDS):
            raise InvalidRequest(f"{place}: {name!r} is unknown in [[key]]; {closest(name, _FIELDS)}")
        checked = {name: _value(name, value, f"{place}: ") for name, value in table.items()}
        for name, problem in _TWICE.items():
            if name not in checked:
                raise InvalidRequest(f"{place} lacks {name}; give it")
            if any(checked[name] == getattr(other, name) for other in entries):
                raise InvalidRequest(f"{place}: {name}: {checked['name']!r} {problem}")
        entries.append(KeyEntry(**{"owner": checked["name"], **checked}))
    return tuple(entries)


def _written(entry: KeyEntry) -> str:
    usual = {one.name: one.default for one in fields(entry)} | {"owner": entry.name}
    lines = ["[[key]]"]
    for name in _FIELDS:
        value = getattr(entry, name)
        if isinstance(value, datetime):
            value = value.astimezone(timezone.utc).isoformat().removesuffix("T00:00:00+00:00")
        elif isinstance(value, float) and value == int(value):
            value = int(value)
        if value != usual[name]:
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _without(text: str, index: int) -> str:
    """Remove the table number `index` (from 0) from the text: the lines from its header to its last field."""
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    if index >= len(headers):
        return text
    begin, end = headers[index], [*headers, len(lines)][index + 1]
    while end > begin and re.match(r"\s*(#.*)?$", lines[end - 1]):
        end -= 1
    return "".join(lines[:begin] + lines[end:]).lstrip("\r\n")


def _replace(path: Path, text: str, meant: tuple[KeyEntry, ...]) -> None:
    """Replace the file by `text`. InvalidRequest: the text does not parse as `meant`."""
    try:
        read = _entries_of(parse_toml(text, path), path)
    except InvalidRequest:
        read = None
    if read != meant:
        raise InvalidRequest(f"{FIELD}: {path} is written in a way that only a person can change; edit it by hand")
    path = path.resolve()  # if the path is a link, replace the link's target
    found = path.stat() if path.exists() else None
    with replacing(path, private=True, sync=True) as file:
        if found is not None:  # keep owner and mode, since the server may run as another user
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode) & 0o640)
        file.write(text.encode())


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Lock the file's folder, because the file itself is replaced."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InvalidRequest(f"{FIELD}: {path.parent} is missing; make the folder")
    try:
        with locked(folder):
            yield
    except OSError as error:
        raise InvalidRequest(
            f"{FIELD}: {path} cannot be written ({error.strerror}); check the place and its permissions"
        ) from None
