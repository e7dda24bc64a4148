"""How long a client may be told to wait."""

from __future__ import annotations

from vivavoce.errors import InvalidRequest

MAX_TIMEOUT_S = 86_400.0
"""A day. What waits below this takes no number of seconds, however large: an infinite one is an error there."""


def check_timeout(timeout_s: float) -> None:
    """Refuse what is no time to wait, in seconds; `InvalidRequest`."""
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"timeout: {timeout_s:g} s is not above 0 and at most {MAX_TIMEOUT_S:g} s; choose another")
