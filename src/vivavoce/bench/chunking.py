"""Where a row of speech tokens, all there, is cut for token2wav that is to be heard chunk by chunk."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from vivavoce.errors import InvalidRequest

LEAST_SIZE, GREATEST_SIZE = 5, 1000
"""Speech tokens of a chunk: a vocoder that holds back the end of its first one for the next gives nothing for less."""


class Strategy(str, Enum):
    """How chunks follow one another."""

    EQUAL = "equal"
    """All of one size."""
    EXPONENTIAL = "exponential"
    """Each twice as long as the one before."""


class Cut(NamedTuple):
    """One chunk; amounts in speech tokens, places from the first one.

    hop: that become audio; seen: the place up to which tokens are given, the lookahead included; final: nothing
    follows.
    """

    hop: int
    seen: int
    final: bool


def cuts(num_tokens: int, size: int, strategy: Strategy, lookahead: int) -> list[Cut]:
    """The chunks of that many tokens: one is cut as long as the tokens left are its own and the lookahead at least.

    Raises:
        InvalidRequest: the size is out of its limits.
    """
    if not LEAST_SIZE <= size <= GREATEST_SIZE:
        raise InvalidRequest(f"chunk_size: {size} is outside of {LEAST_SIZE} … {GREATEST_SIZE}; choose a number inside")
    found: list[Cut] = []
    spoken, hop = 0, size
    # One token at least stays for the last chunk.
    while num_tokens - spoken >= hop + max(1, lookahead):
        spoken += hop
        found.append(Cut(hop, spoken + lookahead, final=False))
        hop = hop * 2 if strategy is Strategy.EXPONENTIAL else hop
    return [*found, Cut(num_tokens - spoken, num_tokens, final=True)]
