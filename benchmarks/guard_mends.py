"""Measures how often the guard repairs faults that are forced on the language model, offline and in streams.

    python -m benchmarks.guard_mends [--model NAME] [--count NUMBER] [--seed NUMBER] [--json FILE]

Each sentence is spoken once with tokens that the model chooses. Then a fault is put into these speech tokens, and they
are forced on the model, so that the guard sees the attention of a model which has left its text. Only the first attempt
is forced; in the guard's further attempts the model chooses its tokens. `noticed` is the share of faulty speeches in
which the guard finds a fault. `mended` is the share of these whose last attempt speaks the whole text without a fault,
and in which no part of the fault became audio. A stream leaves less time for this than offline work. `runaways` counts
speeches that ended only at their length limit.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vivavoce
from benchmarks.guard import FAULTS, Row, broken, guarded, heads_of
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import RequestResult
from vivavoce.engine.lm_stage.slots import SamplingState, repetition_aware
from vivavoce.engine.request import EngineRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce_bench.hardware import machine
from vivavoce_bench.measure import tell

AT_ONCE = 64
SHORTEST_IDS = 12
WAYS = {"offline": None, "stream": ChunkPolicy.low_latency()}


class Forced:
    """A `Chooser` that gives a seed's forced tokens in order, and samples all others (repetition-aware sampling)."""

    def __init__(self) -> None:
        self.tokens: dict[int, Sequence[int]] = {}

    def __call__(self, scores: Tensor, state: SamplingState) -> Tensor:
        chosen = repetition_aware(scores, state)
        if not self.tokens:
            return chosen
        for place, (seed, count) in enumerate(zip(state.seeds.tolist(), state.counts.tolist(), strict=True)):
            forced = self.tokens.get(seed, ())
            if count < len(forced):
                chosen[place] = forced[count]
        return chosen


def spoken(engine: Engine, requests: Sequence[EngineRequest]) -> Iterator[RequestResult]:
    """The results in order. On a CPU, streams run one at a time, as more would be slower than real time."""
    at_once = 1 if engine.models.device.type == "cpu" and requests[0].policy else AT_ONCE
    for first in range(0, len(requests), at_once):
        handles = [engine.submit(one) for one in requests[first : first + at_once]]
        yield from (handle.result() for handle in handles)


def measure(loaded: vivavoce.Vivavoce, count: int, seed: int) -> dict[str, Any]:
    heads, dice, forced = heads_of(loaded), random.Random(seed), Forced()
    models = loaded.engine.models
    silent, stop = models.config.lm.vocabulary.silent.ids, models.config.lm.vocabulary.eos
    long = (one.request for _, one in guarded(loaded, seed) if len(one.request.text) >= SHORTEST_IDS)
    requests = list(islice(long, count))
    alarms, ways, runaways = Counter[str](), dict[str, Any](), 0
    with Engine(models, EngineSettings(slots=AT_ONCE), chooser=forced) as engine:
        engine.watch(heads)
        clean = list(spoken(engine, [EngineRequest((one,)) for one in requests]))
        for one in clean:
            alarms.update(fault for fault, _ in one.faults)
            runaways += any(one.cut)
        good = [(request, one.tokens[0]) for request, one in zip(requests, clean, strict=True) if not one.faults]
        for way, policy in WAYS.items():
            found: dict[str, Any] = {}
            for fault in (*FAULTS, *(["silence"] if silent else [])):
                asked = []
                for request, tokens in good:
                    seed += 1
                    forced.tokens[seed] = [*with_fault(fault, tokens, silent, dice), stop]
                    asked.append(EngineRequest((replace(request, seed=seed),), policy))
                results = list(spoken(engine, asked))
                noticed = [one for one in results if one.faults]
                mended = sum(all(done for _, done in one.faults) for one in noticed)
                runaways += sum(any(one.cut) for one in results)
                found[fault] = {"noticed": share(len(noticed), len(results)), "mended": share(mended, len(noticed))}
            ways[way] = found
    alarming = {"at_once": AT_ONCE, "sentences": len(requests), "false_alarms": dict(alarms)}
    return {**alarming, "faults_of_each": len(good), **ways, "runaways": runaways}


def with_fault(fault: str, tokens: Sequence[int], silent: Sequence[int], dice: random.Random) -> list[int]:
    if fault == "silence":
        at = dice.randrange(len(tokens) // 4, len(tokens) // 2)
        return [*tokens[:at], *(dice.choice(silent) for _ in range(80))]
    rows: list[Row] = [None] * len(tokens)
    return broken(fault, list(tokens), rows, dice)[0]


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    with vivavoce.load(asked.model) as engine, torch.inference_mode():
        found = {"model": engine.card.name, **machine(engine.device), **measure(engine, asked.count, asked.seed)}
    found["seconds"] = round(time.perf_counter() - began, 1)
    tell(found, asked.json)


if __name__ == "__main__":
    main()
