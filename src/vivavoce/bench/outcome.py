"""What became of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from vivavoce.bench.target import Utterance


class Ending(str, Enum):
    """How a request ended."""

    OK = "ok"
    REFUSED = "refused"
    """It was not taken; a server that protects those it has taken does so."""
    FAILED = "failed"


@dataclass(frozen=True, eq=False)
class Arrival:
    """A piece of audio and the time at which it came; samples: [num_samples] float32, None where not kept."""

    at_s: float
    num_samples: int
    samples: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """One request; times are seconds of the event loop's clock."""

    utterance: Utterance
    sample_rate: int
    start_s: float
    """When its user asked: in an open loop the planned moment, also if the program came to it later."""
    end_s: float
    arrivals: tuple[Arrival, ...] = ()
    ending: Ending = Ending.OK
    problem: str = ""
    """Why it failed."""
    retry_after_s: float = 0.0
    """What a refusal told its user to wait."""

    @property
    def ttfb_s(self) -> float:
        """Seconds from the call to the first audio."""
        return self.arrivals[0].at_s - self.start_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between neighbouring arrivals."""
        return [later.at_s - earlier.at_s for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def audio_s(self) -> float:
        """Seconds of audio."""
        return sum(arrival.num_samples for arrival in self.arrivals) / self.sample_rate

    @property
    def rtf(self) -> float:
        """Seconds that the request took per second of its audio."""
        return (self.end_s - self.start_s) / self.audio_s

    @property
    def samples(self) -> NDArray[np.float32]:
        """The audio of a request whose target keeps it: [n] float32."""
        return np.concatenate([arrival.samples for arrival in self.arrivals if arrival.samples is not None])


def those(outcomes: Sequence[Outcome], ending: Ending) -> list[Outcome]:
    """The requests that ended so."""
    return [outcome for outcome in outcomes if outcome.ending is ending]
