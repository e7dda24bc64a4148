"""Who asks a server, and how much they may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowance:
    """What one caller may ask for; None: no limit.

    requests_per_minute, characters_per_minute: mean rates, with bursts of up to one minute's worth; concurrent:
    requests that run or wait at once.
    """

    requests_per_minute: float | None = None
    characters_per_minute: float | None = None
    concurrent: int | None = None


@dataclass(frozen=True)
class Caller:
    """Who asks.

    name: of the API key, "" where none is needed; owner: the namespace of its voices, "" for nobody's; may_publish: it
    may add and remove voices that everybody sees.
    """

    name: str = ""
    owner: str = ""
    may_publish: bool = True
    allowance: Allowance = Allowance()


ANYBODY = Caller()
"""The caller of a server that wants no keys."""
