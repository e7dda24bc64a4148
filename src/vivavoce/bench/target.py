"""What a load is put on: anything that speaks utterances piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Utterance:
    """One request: what is said, in which voice (None: the target's default), with which seed."""

    number: int
    """Its place in the load, from 0."""
    text: str
    voice: str | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Piece:
    """Audio that has arrived; samples: [num_samples] float32 in ±1, where the target keeps them."""

    num_samples: int
    samples: NDArray[np.float32] | None = None


class Refused(Exception):
    """The target does not take the request now; it may be asked again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__(f"refused; try again after {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class Target(Protocol):
    """Speaks. All its methods are called in one event loop."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of all its audio."""
        ...

    def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """The utterance's audio, each piece as soon as it is there.

        Raises:
            Refused: while it is iterated: the target has too much to do.
            Exception: any other: the request has failed.
        """
        ...

    async def close(self) -> None:
        """Let go of what the target holds."""
        ...
