"""API keys: who may ask a server, by a file of hashes that is read again when it changes.

A key is 32 random bytes, so that one SHA-256 of it is all that the file needs to hold: nobody can try them all.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from vivavoce.errors import InvalidRequest, Unauthorized
from vivavoce.service.operations.callers import ANYBODY, Caller
from vivavoce.service.operations.keys_file import KeyEntry, read_keys

_log = logging.getLogger(__name__)

_HOW = "send yours as `Authorization: Bearer KEY`"
_BEARER = "bearer "

_State = tuple[int, int, int, int] | None
"""What of a file tells that it has changed: when, its size, and which it is; None: it is not there."""


class KeyRing:
    """The keys that are known now. Made by `load` or `none`; used in one event loop."""

    def __init__(self, entries: Sequence[KeyEntry], path: Path | None, clock: Callable[[], float]) -> None:
        self._entries = tuple(entries)
        self._path = path
        self._clock = clock
        self._state = _state_of(path) if path is not None else None

    @classmethod
    def load(cls, path: Path, *, clock: Callable[[], float] = time.time) -> KeyRing:
        """The keys of a file (see `keys_file`); a file without any lets nobody in. clock: seconds since 1970.

        Raises:
            InvalidRequest: the file is missing, malformed, or others may write it.
        """
        ring = cls((), path, clock)  # its state is noted before the file is read, so that no change is missed
        ring._entries = read_keys(path)
        return ring

    @classmethod
    def none(cls) -> KeyRing:
        """No keys are wanted: everyone is `ANYBODY`."""
        return cls((), None, time.time)

    @property
    def required(self) -> bool:
        """Whether a key is wanted at all."""
        return self._path is not None

    def caller(self, token: str | None) -> Caller:
        """Who has this key; None: none was sent. Its time does not tell how much of a key is right.

        Raises:
            Unauthorized: a key is wanted, and it is missing, unknown or expired. The message never holds the key.
        """
        if self._path is None:
            return ANYBODY
        if not token:
            raise Unauthorized(f"API key: none was sent, and this server wants one; {_HOW}")
        self._refresh(self._path)
        entry = self._find(token)
        if entry is None:
            raise Unauthorized(f"API key: the one that was sent is unknown; {_HOW}, or ask the operator for one")
        if entry.expires is not None and self._clock() >= entry.expires.timestamp():
            raise Unauthorized(
                f"API key: that of {entry.name!r} has expired at {_utc(entry.expires)}; ask the operator for a new one"
            )
        return entry.caller

    def _find(self, token: str) -> KeyEntry | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        found = None
        for entry in self._entries:  # all of them, so that the time does not tell which one fits
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        return found

    def _refresh(self, path: Path) -> None:
        state = _state_of(path)
        if state == self._state:
            return
        self._state = state
        try:
            self._entries = read_keys(path)
        except InvalidRequest as error:
            # A slip of the pen must not lock everyone out; the keys that were known go on.
            _log.error("%s (the %d keys read before stay valid)", error, len(self._entries))
        else:
            _log.info("%s has changed: %d keys", path, len(self._entries))


def token_in(headers: Mapping[str, str]) -> str | None:
    """The key that a request brings as `authorization: Bearer KEY`, `x-api-key: KEY` or `xi-api-key: KEY`; None: none.

    headers: of HTTP or gRPC's metadata, by names in lower case.
    """
    authorization = headers.get("authorization", "")
    if authorization.lower().startswith(_BEARER):
        return authorization[len(_BEARER) :].strip() or None
    return headers.get("x-api-key") or headers.get("xi-api-key") or None


def _state_of(path: Path) -> _State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _utc(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
