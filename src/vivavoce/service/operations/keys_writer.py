"""Add and remove API keys: the file's own text is changed, so that its comments stay, and replaced in one step."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timezone
from pathlib import Path
from typing import TypeVar, overload

from vivavoce.errors import InvalidRequest
from vivavoce.service.operations.callers import Allowance
from vivavoce.service.operations.keys_file import (
    FIELD,
    KeyEntry,
    count,
    expiry,
    key_name,
    parse_keys,
    rate,
    read_keys,
)

T = TypeVar("T")

PREFIX = "vv_"
"""What every key begins with, so that one that was published by mistake is found."""
_KEY_BYTES = 32
_TABLE = re.compile(r"\s*\[")
_BLANK = re.compile(r"\s*(#.*)?$")


def new_key() -> str:
    """A key that nobody has: "vv_" and 43 letters, digits, dashes or underscores."""
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def new_entry(
    key: str,
    name: str,
    *,
    owner: str | None = None,
    may_publish: bool = False,
    requests_per_minute: float | None = None,
    characters_per_minute: float | None = None,
    concurrent: int | None = None,
    expires: str | None = None,
) -> KeyEntry:
    """The entry of a key; what is None is left out of the file. `keys_file` says what each means.

    Raises:
        InvalidRequest: a value is out of its limits.
    """
    _checked("name", name, key_name)
    owner = name if owner is None else _checked("owner", owner, key_name)
    allowance = Allowance(
        _checked("requests_per_minute", requests_per_minute, rate),
        _checked("characters_per_minute", characters_per_minute, rate),
        _checked("concurrent", concurrent, count),
    )
    digest = hashlib.sha256(key.encode()).hexdigest()
    return KeyEntry(name, digest, owner, may_publish, allowance, _checked("expires", expires, expiry))


def add_key(path: Path, entry: KeyEntry) -> None:
    """Append an entry; a new file gets the mode 0600.

    Raises:
        InvalidRequest: the file cannot be read or written, is malformed, or has a key of that name.
    """
    with _changing(path):
        old = read_keys(path) if path.exists() else ()
        text = _text_of(path) if path.exists() else ""
        if any(entry.name == other.name for other in old):
            raise InvalidRequest(f"name: {entry.name!r} has a key in {path} already; remove it, or choose another name")
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        new = text + gap + _written(entry)
        _replace(path, new, (*old, entry))


def remove_key(path: Path, name: str) -> None:
    """Remove the entry of that name; comments above other entries stay.

    Raises:
        InvalidRequest: there is none, or the file cannot be read, taken apart or written.
    """
    with _changing(path):
        old = read_keys(path)
        index = next((index for index, entry in enumerate(old) if entry.name == name), None)
        if index is None:
            known = ", ".join(entry.name for entry in old) or "none"
            raise InvalidRequest(f"name: {path} has no key of {name!r}; it has {known}")
        text = _without(_text_of(path), index)
        _replace(path, text, tuple(entry for entry in old if entry.name != name))


@overload
def _checked(field: str, value: None, check: Callable[[object], T]) -> None: ...


@overload
def _checked(field: str, value: object, check: Callable[[object], T]) -> T: ...


def _checked(field: str, value: object, check: Callable[[object], T]) -> T | None:
    try:
        return None if value is None else check(value)
    except ValueError as wanted:
        raise InvalidRequest(f"{field}: {value!r} cannot be; give {wanted}") from None


def _written(entry: KeyEntry) -> str:
    """The entry as TOML; its names need no escapes."""
    lines = ["[[key]]", f'name = "{entry.name}"', f'sha256 = "{entry.sha256}"']
    if entry.owner != entry.name:
        lines.append(f'owner = "{entry.owner}"')
    if entry.may_publish:
        lines.append("may_publish = true")
    for field in ("requests_per_minute", "characters_per_minute", "concurrent"):
        if (limit := getattr(entry.allowance, field)) is not None:
            lines.append(f"{field} = {int(limit) if limit == int(limit) else limit}")
    if entry.expires is not None:
        moment = entry.expires.astimezone(timezone.utc).isoformat()
        lines.append(f'expires = "{moment.removesuffix("T00:00:00+00:00")}"')
    return "\n".join(lines) + "\n"


def _text_of(path: Path) -> str:
    """The text with its own line ends; `read_keys` has seen that it is UTF-8."""
    return path.read_bytes().decode("utf-8-sig")


def _without(text: str, index: int) -> str:
    """The text without its n-th table, from its header to its last field."""
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if _TABLE.match(line)]
    if index >= len(headers):
        return text
    begin, end = headers[index], [*headers, len(lines)][index + 1]
    while end > begin and _BLANK.match(lines[end - 1].rstrip("\r\n")):
        end -= 1
    return "".join(lines[:begin] + lines[end:]).lstrip("\r\n")


def _replace(path: Path, text: str, meant: tuple[KeyEntry, ...]) -> None:
    """Put the text in the file's place, if it reads as it is meant to."""
    try:
        read = parse_keys(text, path)
    except InvalidRequest:
        read = None
    if read != meant:
        raise InvalidRequest(f"{FIELD}: {path} is written in a way that only a person can change; edit it by hand")
    path = path.resolve()  # a link stays a link
    found = path.stat() if path.exists() else None
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8", newline="") as file:
            if found is not None:  # the server that reads it may be another user
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), found.st_uid, found.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode) & 0o640)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """One at a time, in whatever process: the folder is locked, for the file itself is replaced."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidRequest(f"{FIELD}: {path.parent} cannot be opened ({error.strerror}); make the folder") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise InvalidRequest(
            f"{FIELD}: {path} cannot be written ({error.strerror}); check the place and its permissions"
        ) from None
    finally:
        os.close(folder)
