"""What is to be said, in whose voice and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from vivavoce.errors import InvalidRequest

_INT64 = 1 << 63


@dataclass(frozen=True)
class Utterance:
    """One text and the recording that tells whose voice says it."""

    name: str
    """Names its files; unique in a load."""
    text: str
    reference: Path | bytes | None = None
    """A recording, or the content of its file; None: the server's own voice."""
    reference_text: str = ""
    """What the recording says."""


@dataclass(frozen=True)
class Manner:
    """Inputs beyond those that the original deployment knows; None: not sent."""

    voice: str | None = None
    """A voice that the server keeps by name."""
    instruct_text: str | None = None
    seed: int | None = None
    """The same for all requests."""
    speed: float | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and not -_INT64 <= self.seed < _INT64:
            raise InvalidRequest(f"seed: {self.seed} does not fit in 64 bits; choose a smaller one")
        if self.speed is not None and not 0 < self.speed < math.inf:
            raise InvalidRequest(f"speed: {self.speed} is not a number above 0; 1 is as the model speaks")


def check_reference_text(reference: Path | None, text: str) -> None:
    """Refuse the text of a recording that is not there: it would not be sent; `InvalidRequest`."""
    if text and reference is None:
        raise InvalidRequest("reference_text: belongs to a recording; name it with --reference-audio, or leave it out")
