"""How much one namespace of voices may hold."""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.errors import InvalidRequest

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Quota:
    """The most voices, and the most bytes of them together; a voice of 30 s takes about one MiB."""

    voices: int = 1_000
    total_bytes: int = 1_024 * MEBIBYTE

    def check(self, voices: int, total_bytes: int, *, new: bool) -> None:
        """Refuse what the namespace would hold after a save; new: the voice takes no other's place.

        Raises:
            InvalidRequest: names the limit.
        """
        if new and voices > self.voices:
            raise too_many(self.voices)
        if total_bytes > self.total_bytes:
            raise too_large(self.total_bytes)


def too_many(limit: int) -> InvalidRequest:
    """The error for one voice more than the limit."""
    return InvalidRequest(f"voice: there are {limit} voices already, the limit; remove one, or replace it")


def too_large(limit: int) -> InvalidRequest:
    """The error for more bytes than the limit."""
    return InvalidRequest(
        f"voice: all voices together would take more than {limit / MEBIBYTE:g} MiB, the limit; remove one, or give "
        "a shorter recording"
    )
