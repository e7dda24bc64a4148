"""Measures LoRA adapters in one batch: throughput against none, and whether a request's tokens are those it has alone.

python -m benchmarks.gpu.adapters --out benchmarks/results/gpu/adapters.json
"""

from __future__ import annotations

import argparse
import copy
import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.gpu.model import make_model, origin, reader
from benchmarks.random_adapter import make_random_adapter, merge_adapter
from vivavoce.checkpoint.config import Generation, qwen2_of
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import Models, build_models
from vivavoce_bench.measure import save_json
from vivavoce_bench.random_checkpoint import RELEASE, TINY

T = TypeVar("T")
SIZE = 0.3
"""Size of the adapters' changes: trained adapters change less than random ones of size 1."""


def request(seed: int, tokens: int, adapter: str = "") -> EngineRequest:
    text = tuple((seed * 7 + place) % 256 for place in range(40))
    sampling = SamplingParams(exact_tokens=tokens)
    return EngineRequest((SegmentRequest(reader(), text=text, sampling=sampling, seed=seed, adapter=adapter),))


def run(models: Models, settings: EngineSettings, work: Callable[[Engine], T]) -> T:
    """The result of `work` with a new engine, after the memory of earlier engines is freed."""
    gc.collect()
    if models.device.type == "cuda":
        torch.cuda.empty_cache()
    with Engine(models, settings) as engine:
        return work(engine)


def speak(engine: Engine, asked: Sequence[EngineRequest]) -> tuple[list[tuple[int, ...]], float]:
    """Speech tokens of requests that run at once, and seconds of audio per second."""
    begun = time.perf_counter()
    results = [handle.result() for handle in [engine.submit(one) for one in asked]]
    seconds = time.perf_counter() - begun
    audio_s = sum(len(one.samples) for one in results) / engine.models.config.rates.sample_rate  # type: ignore[union-attr]
    return [one.tokens[0] for one in results], audio_s / seconds


def throughput(models: Models, settings: EngineSettings, names: Sequence[str], options: Any) -> dict[str, float]:
    """Seconds of audio per second for the same requests: in an engine without adapters, in an engine whose adapters are
    not used, and with an adapter in each request.
    """
    found, plain = {}, replace(settings, adapters={})
    asked = [request(seed, options.tokens) for seed in range(options.requests)]
    mixed = [request(seed, options.tokens, names[seed % len(names)]) for seed in range(options.requests)]

    def measured(engine: Engine, requests: Sequence[EngineRequest]) -> float:
        engine.warm_up(0.0)
        speak(engine, requests)
        return median(speak(engine, requests)[1] for _ in range(options.repeat))

    for key, how, requests in (("none", plain, asked), ("unused", settings, asked), ("mixed", settings, mixed)):
        found[f"{key}_audio_s_per_s"] = run(models, how, partial(measured, requests=requests))
    return {**found, "mixed_over_none": found["mixed_audio_s_per_s"] / found["none_audio_s_per_s"]}


def sameness(models: Models, settings: EngineSettings, names: Sequence[str], options: Any) -> dict[str, int]:
    """Count requests, one per adapter and one without, with the same tokens alone and with other requests."""
    asked = [request(seed, options.tokens, name) for seed, name in enumerate((*names, ""))]
    company = [request(seed, options.tokens, names[seed % len(names)]) for seed in range(options.requests - len(asked))]

    def said(engine: Engine) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        engine.warm_up(0.0)
        return [speak(engine, [one])[0][0] for one in asked], speak(engine, [*asked, *company])[0]

    alone, together = run(models, replace(settings, deterministic=models.device.type == "cuda"), said)
    equal = sum(one == other for one, other in zip(alone, together, strict=False))
    return {"compared_with_alone": len(asked), "tokens_equal_alone": equal, "different_speech": len({*alone})}


def oracle(folder: Path, device: torch.device, settings: EngineSettings, options: Any) -> dict[str, int]:
    """Count batched requests with the tokens of a model with merged weights; in float32, with kernels on a GPU."""
    models = build_models(folder, device)
    cuda = device.type == "cuda"
    settings = replace(settings, kernels=cuda or None)
    names = list(settings.adapters)
    asked = [request(seed, options.tokens, name) for seed, name in enumerate(names)]
    said = run(models, settings, lambda engine: speak(engine, asked)[0])
    equal, prefix = 0, 0
    for seed, name in enumerate(names):
        lm, own = copy.deepcopy(models.lm), [request(seed, options.tokens)]
        merge_adapter(lm, Path(settings.adapters[name]))
        wanted = run(replace(models, lm=lm), replace(settings, adapters={}), partial(speak, asked=own))[0][0]
        equal += wanted == said[seed]
        prefix += next(
            (at for at, pair in enumerate(zip(wanted, said[seed], strict=True)) if pair[0] != pair[1]), len(wanted)
        )
    return {"compared_with_merged": len(names), "tokens_equal_merged": equal, "tokens_before_a_difference": prefix}


def main() -> None:
    """Measure (in 16 bit on CUDA), and compare with merged weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--generation", choices=["v2", "v3"], default="v2")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    folder = options.model or Path(f"/tmp/vivavoce-{options.generation}-{'release' if cuda else 'tiny'}")
    model = make_model(folder, RELEASE if cuda else TINY, Generation(options.generation))
    device = torch.device("cuda" if cuda else "cpu")
    found: dict[str, Any] = origin("benchmarks.gpu.adapters", device)

    def told(figures: Mapping[str, Any]) -> None:
        print(figures, flush=True)
        found.update(figures)

    with tempfile.TemporaryDirectory() as place:
        models = build_models(model, device, torch.float16 if cuda else torch.float32)
        config, folders = qwen2_of(models.config.lm), {}
        for number in range(options.adapters):
            folders[f"a{number}"] = make_random_adapter(
                Path(place) / f"a{number}", config, rank=options.rank, alpha=options.rank, seed=number, size=SIZE
            )
        settings = EngineSettings(
            slots=options.requests,
            memory_bytes=int(60e9) if cuda else None,
            admission=AdmissionMode.ALL,
            adapters=folders,
            max_adapter_rank=options.rank,
        )
        told(
            {"adapters": options.adapters, "rank": options.rank, "requests": options.requests, "tokens": options.tokens}
        )
        told(throughput(models, settings, list(folders), options))
        told(sameness(models, settings, list(folders), options))
        del models
        save_json(found, options.out)
        told(oracle(model, device, settings, options))
    save_json(found, options.out)


if __name__ == "__main__":
    main()
