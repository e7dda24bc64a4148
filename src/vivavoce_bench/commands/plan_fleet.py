"""Find the number of GPUs for some listeners by simulating one GPU with its share of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import typer

from vivavoce.cli.flags import flag
from vivavoce.errors import InvalidRequest
from vivavoce_bench.measure import percentile

if TYPE_CHECKING:
    from vivavoce.engine.handle import RequestTimings
    from vivavoce.rates import Rates
    from vivavoce_bench.planning import Card, EnginePlan
    from vivavoce_bench.simulation import Visit

GAPS_ALLOWED = 1e-3
SIMULATED_S, FEWEST = 30.0, 200
"""Length of the simulation in seconds, and its smallest number of visits."""
COLUMNS = ("GPUs", "listeners each", "TTFB p50, ms", "TTFB p99, ms", "with gaps, %", "refused, %", "per hour of audio")


def _time(given: str) -> float:
    found = re.fullmatch(r"(\d+\.?\d*) *(ms|s|)", given.casefold())
    if found is None:
        raise typer.BadParameter(f"{given!r} is not a time; give one, such as 300ms")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


@dataclass(frozen=True)
class Listeners:
    streams: int | None = flag(
        "Compute the number of GPUs for this many concurrent listeners.", "NUMBER", min=1, max=1_000_000
    )
    ttfb_p99: float = flag(
        "Limit of the time to first audio for 99 % of the requests.", "TIME", default="1s", parser=_time
    )
    seconds: float = flag("Mean seconds of audio per request.", "NUMBER", default=10.0, min=1, max=120)
    voices: int = flag("Number of voices, which speak in turn.", "NUMBER", default=1, min=1)
    policy: str = flag("Chunk policy of streams, as in bench.", "NAME", default="low_latency")
    price: float | None = flag("Price of one GPU for an hour, in any currency.", "NUMBER", min=0)

    def visits(self, gpus: int, rates: Rates) -> list[Visit]:
        """Draw visits of one GPU's share of the listeners; lengths are distributed as the texts of bench."""
        from vivavoce_bench import OpenLoop, Workload
        from vivavoce_bench.simulation import Visit

        workload, rate = Workload(), (self.streams or 0) / gpus / self.seconds
        count = max(FEWEST, round(SIMULATED_S * rate))
        letter = self.seconds * rates.tokens_per_second * len(workload.texts) / sum(map(len, workload.texts))
        return [
            Visit(at_s, round(letter * len(one.text)), one.number % self.voices)
            for at_s, one in zip(OpenLoop(rate).arrivals(count), workload.utterances(count), strict=True)
        ]


@dataclass(frozen=True)
class Expected:
    """ttfb_*: seconds, ∞ if no visit is served; gaps, refused: shares of the visits."""

    ttfb_p50_s: float = inf
    ttfb_p99_s: float = inf
    gaps: float = 0.0
    refused: float = 1.0

    @classmethod
    def of(cls, heard: Sequence[RequestTimings | None]) -> Expected:
        served = [one for one in heard if one is not None]
        gaps = sum(one.underruns > 0 for one in served) / max(1, len(served))
        p50, p99 = (percentile([one.first_chunk_s or inf for one in served] or [inf], percent) for percent in (50, 99))
        return cls(p50, p99, gaps, 1 - len(served) / len(heard))

    def within(self, ttfb_p99_s: float) -> bool:
        """First audio is in time, almost no stream has gaps, and no request is refused."""
        return self.ttfb_p99_s <= ttfb_p99_s and self.gaps <= GAPS_ALLOWED and not self.refused


def fewest(expected: Callable[[int], Expected], ttfb_p99_s: float, guess: int, most: int) -> int:
    """The smallest sufficient number of GPUs.

    expected: number of GPUs → figures, never worse with more GPUs; most: number at which each GPU has one listener.
    InvalidRequest: more GPUs would not help.
    """
    low, high = 0, max(1, min(guess, most))
    while not (found := expected(high)).within(ttfb_p99_s):
        if high == most:
            p99 = f"{found.ttfb_p99_s * 1e3:.0f} ms, the p99 of a single listener"
            raise InvalidRequest(
                f"ttfb-p99: {ttfb_p99_s * 1e3:g} ms is below {p99}; allow more, or choose a faster GPU"
            )
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if expected(middle).within(ttfb_p99_s) else (middle, high)
    return high


def fleet(asked: Listeners, planned: EnginePlan, card: Card) -> dict[str, Any]:
    """JSON values: the number of GPUs and of servers, and figures for one GPU fewer, this number, and one more."""
    from vivavoce.engine.admission import AdmissionMode
    from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
    from vivavoce.engine.settings import EngineSettings
    from vivavoce_bench.planning import ENTRY_LISTENERS, H200
    from vivavoce_bench.simulation import Simulation

    streams, price, config = asked.streams or 0, asked.price, planned.models.config
    machine, policy = planned.machine(card), policy_for(config.generation, ChunkPolicy.parse(asked.policy))
    known, settings = {0: Expected()}, EngineSettings(admission=AdmissionMode.AUTO)

    def expected(gpus: int) -> Expected:
        if gpus not in known:
            known[gpus] = Expected.of(Simulation(machine, settings, policy).run(asked.visits(gpus, config.rates)))
        return known[gpus]

    def row(gpus: int) -> dict[str, Any]:
        one = expected(gpus)
        served = streams * (1 - one.refused)
        return {
            "gpus": gpus,
            "listeners_each": round(streams / gpus) if gpus else None,
            "ttfb_p50_ms": round(one.ttfb_p50_s * 1e3) if served else None,
            "ttfb_p99_ms": round(one.ttfb_p99_s * 1e3) if served else None,
            "gaps_percent": round(100 * one.gaps, 2),
            "refused_percent": round(100 * one.refused, 2),
            "price_per_audio_hour": round(price * gpus / served, 6) if served and price is not None else None,
        }

    needed = fewest(expected, asked.ttfb_p99, ceil(streams / max(1, planned.listeners(card))), streams)
    figures = {"card": card.name, "measured": card is H200, "streams": streams, "ttfb_p99_ms": asked.ttfb_p99 * 1e3}
    servers = min(needed, ceil(streams / ENTRY_LISTENERS))  # each has a GPU of its own, or more
    figures |= {"gpus": needed, "servers": servers, "server_listeners": ceil(streams / servers)}
    return {**figures, "expected": [row(gpus) for gpus in (needed - 1, needed, needed + 1)]}
