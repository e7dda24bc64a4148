"""What every store of voices offers, wherever it keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.summary import StoredSummary
from vivavoce.service.voices.voice import Voice


class NamedVoices(Protocol):
    """The voices of one namespace, by name. Safe between threads and processes.

    Every method may raise `VoiceStoreError` (a damaged voice, a disk that refuses) and `VoiceStoreAway` (a store on
    another machine that cannot be reached, asked for what has no copy here).
    """

    def save(self, voice: Voice, *, replace: bool = False, quota: Quota | None = None) -> None:
        """Store the voice under its name; in place of another of that name if `replace`. Done whole or not at all.

        Raises:
            InvalidRequest: not a possible name, a voice out of the bounds in `bounds.py`, a full quota.
            VoiceExists: the name is taken, or, even with `replace`, differs from a taken one in case only.
        """

    def load(self, name: str) -> Voice:
        """Read a voice.

        Raises:
            InvalidRequest: not a possible name.
            VoiceNotFound: no voice has the name.
        """

    def remove(self, name: str) -> None:
        """Delete a voice; errors as in `load`."""

    def version(self, name: str) -> str | None:
        """Which content the voice has now, without reading it: no two saves have one version. None: no such voice."""

    def summaries(self) -> list[StoredSummary]:
        """All voices by name, sorted, without their tensors; what is no voice is left out."""

    def names(self) -> list[str]:
        """The names of all voices, sorted."""

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object) -> bool: ...


class VoicePlace(Protocol):
    """The namespaces of one folder or server: that of the public voices, and one for each owner."""

    def of(self, owner: str) -> NamedVoices:
        """The owner's own voices; "": the public ones. Any string is an owner, and no two share a namespace."""

    def state(self) -> str:
        """Tell "ok", or what is wrong in one line, without secrets; a store on another machine is asked for it."""

    def close(self) -> None:
        """Let go of connections."""
