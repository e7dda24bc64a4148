"""`vivavoce plan`: plan an engine's memory, or the number of GPUs, without a GPU or model weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vivavoce.cli.console import print_table, size_text
from vivavoce.cli.flags import DtypeOption, JsonOption, MemoryOption, flag
from vivavoce.errors import InvalidRequest
from vivavoce_bench.measure import percentile

if TYPE_CHECKING:
    from vivavoce.checkpoint.config import ModelConfig
    from vivavoce.engine.handle import RequestTimings
    from vivavoce.rates import Rates
    from vivavoce_bench.planning import Card, EnginePlan
    from vivavoce_bench.simulation import Visit


GAPS_ALLOWED = 1e-3
SIMULATED_S, FEWEST = 30.0, 200
"""Simulated time in seconds, and the smallest number of simulated requests."""
_FLEET = ("GPUs", "listeners each", "TTFB p50, ms", "TTFB p99, ms", "with gaps, %", "refused, %", "per hour of audio")


def _time(given: str) -> float:
    found = re.fullmatch(r"(\d+\.?\d*) *(ms|s|)", given.casefold())
    if found is None:
        raise typer.BadParameter(f"{given!r} is not a time; give a time such as 300ms")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


@dataclass(frozen=True)
class Listeners:
    streams: int | None = flag(
        "Plan the number of GPUs for this number of concurrent listeners.", "NUMBER", min=1, max=1_000_000
    )
    ttfb_p99: float = flag(
        "Limit of the time to first audio for 99 % of the requests.", "TIME", default="1s", parser=_time
    )
    seconds: float = flag("Mean seconds of audio per request.", "NUMBER", default=10.0, min=1, max=120)
    voices: int = flag("Number of voices, which take turns.", "NUMBER", default=1, min=1)
    policy: str = flag("Chunk policy of streams, as in bench.", "NAME", default="low_latency")
    price: float | None = flag("Price of one GPU for an hour, in any currency.", "NUMBER", min=0)

    def visits(self, gpus: int, rates: Rates) -> list[Visit]:
        """Draw the requests of one of the GPUs. Lengths of speech are distributed like the lengths of bench texts."""
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
    """Simulated figures. ttfb_*: seconds, ∞ if no request is served; gaps, refused: shares of the requests."""

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
        """Return whether first audio is in time, almost no stream has gaps, and no request is refused."""
        return self.ttfb_p99_s <= ttfb_p99_s and self.gaps <= GAPS_ALLOWED and not self.refused


def fewest(expected: Callable[[int], Expected], ttfb_p99_s: float, guess: int, most: int) -> int:
    """Return the smallest number of GPUs that is fast enough.

    expected: number of GPUs → figures, which are never worse with more GPUs; guess: where to start; most: the limit.
    InvalidRequest: even `most` GPUs are too slow.
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
    """Return the numbers of GPUs and servers, and figures with as many GPUs, one fewer and one more, as JSON values."""
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
    servers = min(needed, ceil(streams / ENTRY_LISTENERS))  # each server needs at least one GPU of its own
    figures |= {"gpus": needed, "servers": servers, "server_listeners": ceil(streams / servers)}
    return {**figures, "expected": [row(gpus) for gpus in (needed - 1, needed, needed + 1)]}


EXAMPLES = (
    "vivavoce plan",
    "vivavoce plan --memory 8 --model CosyVoice2-0.5B",
    "vivavoce plan --streams 2000 --gpu h200 --ttfb-p99 300ms --price 2.50",
)
_CARDS = ("card", "memory, GB", "audio s per s, offline", "listeners at once")


def plan(
    model: str = flag("A known model, downloaded or not, or a folder.", "NAME", "-m", default="CosyVoice2-0.5B"),
    memory: MemoryOption = None,
    gpu: str | None = flag("One of the listed GPUs; --memory limits its memory.", "NAME"),
    dtype: DtypeOption = "auto",
    listeners: Listeners = Listeners(),
    as_json: JsonOption = False,
) -> None:
    """Plan an engine: the division of a GPU's memory and the number of listeners; with --streams, the number of GPUs.

    Memory is divided as the engine divides it. Speeds were measured on one H200. For other GPUs they are computed from
    data sheets. --streams simulates the engine with these speeds.
    """
    from vivavoce_bench.planning import CARDS, ENTRY_LISTENERS

    cards = [card for card in CARDS if gpu is None or card.name.casefold() == gpu.casefold()]
    if not cards:
        raise InvalidRequest(f"gpu: {gpu!r} is not known; use one of {', '.join(card.name for card in CARDS)}")
    if memory is None and gpu is not None:
        memory = cards[0].gb
    config = _config(model)
    division = None if memory is None else _division(planned_engine(config, dtype, memory))
    rows = card_rows(config, dtype, [card for card in cards if memory is None or card.gb >= memory], memory)
    if listeners.streams is not None:
        if gpu is None or not rows or rows[0]["listeners"] is None:
            raise InvalidRequest(
                "streams: the plan needs a known GPU and a released model; give --gpu h200 --model NAME"
            )
        found = fleet(listeners, planned_engine(config, dtype, rows[0]["memory_gb"]), cards[0])
        if as_json:
            print(json.dumps(found, ensure_ascii=False, indent=2))
            return
        _print_rows(found["expected"], _FLEET)
        kind = "costs were measured on this card" if found["measured"] else "computed from data sheets, never measured"
        asked = f"{listeners.streams} listeners and a p99 of {listeners.ttfb_p99 * 1e3:g} ms"
        print(f"{found['gpus']} × {cards[0].name} for {asked}, {found['gpus'] + 1} if one may fail. Simulated; {kind}.")
        if (entry := found["server_listeners"]) > ENTRY_LISTENERS or found["servers"] > 1:
            print(
                f"Servers: {found['servers']}, with some of the GPUs each. The entry process of each has {entry} "
                f"listeners; it was measured with up to {ENTRY_LISTENERS}, as docs/operating.md says."
            )
        return
    if as_json:
        print(json.dumps({"model": model, "plan": division, "cards": rows}, ensure_ascii=False, indent=2))
        return
    if division is not None:
        print_table([(key, _text(key, value)) for key, value in division.items() if value is not None])
        over = division["planned_bytes"] - division["memory_bytes"]
        print(f"Large batches want {size_text(over)} more.\n" if over > 0 else "")
    _print_rows(rows, _CARDS)


def _print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    texts = [
        ["–" if one is None else f"{one:g}" if isinstance(one, float) else str(one) for one in row.values()]
        for row in rows
    ]
    print_table(texts, columns)


def card_rows(config: ModelConfig, dtype: str, cards: list[Card], memory: float | None = None) -> list[dict[str, Any]]:
    """Return a row per card. Speeds are rounded; they are None for model sizes that were not measured.

    memory: GB to use, or None for all memory of the card.
    """
    from vivavoce_bench.random_checkpoint import release_config

    measured = planned_engine(release_config(config.generation), dtype, 1_000).weights
    rows: list[dict[str, Any]] = []
    for card in cards:
        planned = planned_engine(config, dtype, memory or card.gb)
        used, offline, listeners = memory or card.gb, None, None
        if planned.weights == measured:
            offline, listeners = _rounded(planned.offline(card)), _rounded(planned.listeners(card))
        rows.append({"card": card.name, "memory_gb": used, "offline_audio_s_per_s": offline, "listeners": listeners})
    return rows


def _rounded(value: float) -> int:
    step = 10 if value >= 100 else 5 if value >= 20 else 1
    return int(value / step) * step


def planned_engine(config: ModelConfig, dtype: str, memory_gb: float) -> EnginePlan:
    import torch

    from vivavoce.cli.model import EngineChoice
    from vivavoce.frontend.model_choice import choose_dtype
    from vivavoce_bench.planning import plan_engine

    settings = EngineChoice(memory=memory_gb).settings()
    assert settings.memory_bytes is not None
    return plan_engine(config, choose_dtype(dtype, torch.device("cuda")), settings.memory_bytes, settings)


def _division(planned: EnginePlan) -> dict[str, Any]:
    from vivavoce.engine.settings import CUDA_BYTES

    memory = planned.memory
    return {
        "memory_bytes": planned.memory_bytes,
        "cuda_bytes": CUDA_BYTES,
        **{f"{part}_weights_bytes": size for part, size in planned.weights.items()},
        "slots": memory.slots,
        "slots_bytes": memory.slots_bytes,
        "state_s": None if isinf(planned.state_s) else planned.state_s,
        "state_bytes": memory.state_bytes,
        "batch_frames": memory.batch_frames,
        "batches_bytes": memory.batches_bytes,
        "planned_bytes": planned.num_bytes,
    }


def _text(key: str, value: Any) -> str:
    return size_text(value) if key.endswith("_bytes") else f"{value:,}"


def _config(model: str) -> ModelConfig:
    from vivavoce.checkpoint.known_models import known_model
    from vivavoce.checkpoint.settings import read_config
    from vivavoce.checkpoint.weights import find_part, read_tensors
    from vivavoce.frontend.model_choice import is_packaged, model_folder
    from vivavoce_bench.random_checkpoint import release_config

    if not Path(model).is_dir() and not is_packaged(model):
        return release_config(known_model(model).generation)
    folder = model_folder(model)
    return read_config(folder, read_tensors(find_part(folder, "flow")))
