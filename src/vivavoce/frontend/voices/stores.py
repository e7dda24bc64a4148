"""Voice stores: their interface, quotas, and a function that opens a store."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vivavoce.checkpoint.known_models import user_folder
from vivavoce.errors import InvalidRequest, VoiceExists, VoiceNotFound, check_kind
from vivavoce.frontend.voices.names import PUBLIC, VoiceSummary, check_voice_name, is_voice_name, unknown_voice
from vivavoce.frontend.voices.voice import Voice, encode_voice

MEBIBYTE = 1 << 20

_ATTEMPTS = 8
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True)
class Quota:
    """Limits for each owner: number of voices, and bytes of all voices together; a voice of 30 s takes 1 to 2 MiB."""

    voices: int = 1_000
    total_bytes: int = 2_048 * MEBIBYTE

    def too_many(self) -> InvalidRequest:
        return InvalidRequest(f"voice: there are {self.voices} voices already, the limit; remove one, or replace it")

    def too_large(self) -> InvalidRequest:
        return InvalidRequest(
            f"voice: all voices together would take more than {self.total_bytes / MEBIBYTE:g} MiB, the limit; remove "
            "one, or give a shorter recording"
        )


class VoiceStore(ABC):
    """The voices of all owners, by name. Safe to use from several threads and processes.

    Any string can be an owner; two owners may use the same name for different voices. The owner "" has the public
    voices. Every method may raise `VoiceStoreError` (a damaged voice, a disk error) and `VoiceStoreAway` (an
    unreachable store). The abstract methods with a leading underscore get names that are already checked."""

    @abstractmethod
    def summaries(self, owner: str = PUBLIC) -> Iterable[VoiceSummary]:
        """Return the summaries of all voices of an owner, sorted by name; files that are not voices are left out."""

    def load(self, name: str, owner: str = PUBLIC) -> Voice:
        """Read a voice.

        Raises:
            InvalidRequest: the name is not allowed.
            VoiceNotFound: no voice has this name; the message lists some names.
        """
        name = check_voice_name(name)
        voice = self._load(name, owner)
        if voice is None:
            raise self._unknown(name, owner)
        return voice.named(name)

    def save(self, voice: Voice, owner: str = PUBLIC, *, replace: bool = False, quota: Quota | None = None) -> None:
        """Store a voice under its name, atomically. replace: overwrite a stored voice of this name.

        Raises:
            InvalidRequest: the name is not allowed, the voice exceeds a limit in `voice.py`, or the quota is full.
            VoiceExists: the name is taken, or (even with `replace`) differs from a taken name only in case.
        """
        check_kind("voice", voice, Voice, "give the voice that extract_voice gave")
        voice = voice.named(check_voice_name(voice.name))
        self._save(voice, encode_voice(voice), owner, replace, quota)

    def add_features(self, voice: Voice, features: Voice, owner: str = PUBLIC, quota: Quota | None = None) -> bool:
        """Add another model's features to a stored voice; two processes that do so at the same time lose no features.

        Return False, and add nothing, if the owner has no voice of this name with this recording, or if other processes
        change it all the time. Raises the errors of `save`."""
        for _ in range(_ATTEMPTS):
            version = self.version(voice.name, owner)
            stored = None if version is None else self._load(voice.name, owner)
            if version is None or stored is None or stored.recording != voice.recording:
                return False
            if stored.of(features.fingerprint) is not None:
                return True
            whole = stored.named(voice.name).including(features)
            if self._save(whole, encode_voice(whole), owner, True, quota, version):
                return True
        return False

    def remove(self, name: str, owner: str = PUBLIC) -> None:
        """Delete a voice; raises the errors of `load`."""
        name = check_voice_name(name)
        if not self._remove(name, owner):
            raise self._unknown(name, owner)

    def version(self, name: str, owner: str = PUBLIC) -> str | None:
        """Return a string that changes with each save of the voice, without reading the voice; None without a voice."""
        return self._version(check_voice_name(name), owner) if is_voice_name(name) else None

    @abstractmethod
    def state(self) -> str:
        """Return "ok", or the problem in one line without secrets. A store on another machine is contacted."""

    def close(self) -> None:  # noqa: B027
        """Close connections; the next call opens them again."""

    def names(self, owner: str = PUBLIC) -> list[str]:
        return [summary.name for summary in self.summaries(owner)]

    def __iter__(self) -> Iterator[str]:
        return (summary.name for summary in self.summaries())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.version(name) is not None

    def _unknown(self, name: str, owner: str) -> VoiceNotFound:
        return unknown_voice(name, (summary.name for summary in self.summaries(owner)))

    @abstractmethod
    def _load(self, name: str, owner: str) -> Voice | None: ...

    @abstractmethod
    def _save(
        self, voice: Voice, content: bytes, owner: str, replace: bool, quota: Quota | None, expected: str | None = None
    ) -> bool:
        """Save a voice. With `expected`, replace only this version; return False if the store has another version."""

    @abstractmethod
    def _remove(self, name: str, owner: str) -> bool:
        """Delete a voice; return False if it does not exist."""

    @abstractmethod
    def _version(self, name: str, owner: str) -> str | None: ...


def taken_name(name: str, by: str | None = None) -> VoiceExists:
    """Return the error for a taken name. by: the stored name, if it differs from `name` in case."""
    if by is None:
        return VoiceExists(f"voice: {name!r} is stored already; choose another name, or replace it")
    return VoiceExists(f"voice: {name!r} differs from the stored {by!r} in case only; choose another name")


def namespace_id(owner: str) -> str:
    """Return the SHA-256 of an owner in hexadecimal: a name for the owner's folder or key that hides the owner."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()


def open_voice_store(place: str | Path | None) -> VoiceStore:
    """Open a voice store, without reading or connecting yet.

    place: a folder (None means `voices_home()`), or `redis://[user:password@]host[:port][/number]`; `rediss://` uses
    TLS. Raises InvalidRequest for another URL, and MissingDependency if the package redis is not installed."""
    from vivavoce.frontend.voices.folder_store import FolderStore

    check_kind("voices", place, str | os.PathLike | None, "give a folder, or the URL of a Redis server")
    scheme = _SCHEME.match(place) if isinstance(place, str) else None
    if scheme is None:
        return FolderStore(Path(os.path.expanduser(place)) if place else voices_home())
    if scheme[1].lower() not in ("redis", "rediss"):
        raise InvalidRequest(
            f"voices: {scheme[0]} cannot hold voices; give a folder's path, or a URL with redis:// or rediss://"
        )
    from vivavoce_fleet.redis_store import RedisStore

    return RedisStore(scheme[1].lower() + scheme.string[scheme.end(1) :])


def voices_home() -> Path:
    """Return the user's folder of voices: `$VIVAVOCE_HOME/voices`, or `voices` in the user's data folder."""
    return user_folder("data") / "voices"
