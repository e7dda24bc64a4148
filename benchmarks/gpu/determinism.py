"""Compares tokens and audio of requests alone and with other requests, by default and in the deterministic mode.

python -m benchmarks.gpu.determinism --out benchmarks/results/gpu/determinism.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.model import make_model, origin, reader
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import RequestResult
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import Models, build_models
from vivavoce_bench.measure import save_json
from vivavoce_bench.random_checkpoint import RELEASE, TINY


def compare(models: Models, settings: EngineSettings, requests: int, tokens: int) -> dict[str, Any]:
    """Run some requests alone, then all at once, and compare."""
    with Engine(models, settings) as engine:
        engine.warm_up(0.0)
        asked = [_request(seed, tokens) for seed in range(requests)]
        alone = [engine.submit(one).result() for one in asked[: max(1, requests // 4)]]
        begun = time.perf_counter()
        together = [handle.result() for handle in [engine.submit(one) for one in asked]]
        seconds = time.perf_counter() - begun
    pairs = list(zip(alone, together, strict=False))
    same_tokens = [one.tokens == other.tokens for one, other in pairs]
    first_difference = [_first_difference(one, other) for one, other in pairs if one.tokens != other.tokens]
    return {
        "compared": len(pairs),
        "in_company_of": requests,
        "tokens_equal": sum(same_tokens),
        "first_different_token_mean": float(np.mean(first_difference)) if first_difference else None,
        "audio_bit_equal": sum(np.array_equal(one.samples, other.samples) for one, other in pairs),
        "audio_largest_difference_where_tokens_are_equal": max(
            (_difference(one, other) for (one, other), same in zip(pairs, same_tokens, strict=True) if same),
            default=None,
        ),
        "together_s": seconds,
    }


def _request(seed: int, tokens: int) -> EngineRequest:
    sampling = SamplingParams(exact_tokens=tokens)
    text = tuple((seed * 7 + place) % 256 for place in range(40))
    return EngineRequest(
        (SegmentRequest(reader(), text=text, sampling=sampling, seed=seed),), ChunkPolicy.low_latency()
    )


def _first_difference(one: RequestResult, other: RequestResult) -> int:
    pairs = enumerate(zip(one.tokens[0], other.tokens[0], strict=False))
    return next((place for place, (left, right) in pairs if left != right), len(one.tokens[0]))


def _difference(one: RequestResult, other: RequestResult) -> float:
    size = min(len(one.samples), len(other.samples))
    return float(np.abs(one.samples[:size] - other.samples[:size]).max())


def main() -> None:
    """Compare both modes in 16 bit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--generation", choices=[one.value for one in Generation], default="v2")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    folder = options.model or Path(f"/tmp/vivavoce-{options.generation}-{'release' if cuda else 'tiny'}")
    model = make_model(folder, RELEASE if cuda else TINY, Generation(options.generation))
    device = torch.device("cuda" if cuda else "cpu")
    found: dict[str, Any] = origin("benchmarks.gpu.determinism", device)
    for deterministic in (False, True):
        models = build_models(model, device, torch.float16 if cuda else torch.float32)
        settings = EngineSettings(
            slots=options.requests,
            memory_bytes=int(60e9) if cuda else None,
            admission=AdmissionMode.ALL,
            deterministic=deterministic,
        )
        figures = compare(models, settings, options.requests, options.tokens)
        found["deterministic" if deterministic else "default"] = figures
        print("deterministic" if deterministic else "default", figures, flush=True)
    save_json(found, options.out)


if __name__ == "__main__":
    main()
