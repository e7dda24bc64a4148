"""Measures the engine under loads, as `vivavoce bench` does, in one process with one loaded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.cli.console import Reporter
from vivavoce.cli.model import EngineChoice, ModelChoice
from vivavoce.engine.settings import EngineSettings
from vivavoce_bench.commands.bench import BenchLoad, BenchOutput, BenchRequest, measured

TOKENS = 250
"""Speech tokens of a request: ten seconds of speech."""
RECORDING = Path(__file__).parents[2] / "docs" / "samples" / "warm.mp3"
"""The recording of loads with fresh voices; it is altered for each request."""
SPEECH_S = TOKENS / 25


@dataclass(frozen=True)
class Load:
    """One call of `vivavoce bench`."""

    name: str
    requests: int
    concurrency: int | None = None
    rate: float | None = None
    offline: bool = False
    tokens: int = TOKENS
    fresh: bool = False
    """Each request brings a new recording of a voice."""

    @classmethod
    def listeners(cls, count: int, tokens: int = TOKENS) -> Load:
        """Users arrive at random; on average `count` listen at once, each as long as the speech lasts."""
        return cls(f"listeners{count}", round(1.8 * count), rate=count / (tokens / 25), tokens=tokens)

    def options(self) -> str:
        """The options as on a command line."""
        load = f"--rate {self.rate:g}" if self.rate else f"--concurrency {self.concurrency}"
        fresh = f" --voice {RECORDING.name} --fresh-voice" if self.fresh else ""
        how = fresh + (" --offline" if self.offline else "")
        return f"{load} --requests {self.requests} --tokens {self.tokens}{how}"


LOADS = (
    Load("first", 1, concurrency=1),
    Load("stream1", 16, concurrency=1),
    Load("fresh10", 100, rate=10, fresh=True),
    Load.listeners(64),
    Load("rate20", 300, rate=20),
    Load.listeners(300),
    Load.listeners(450),
    Load.listeners(600),
    Load("offline256", 256, concurrency=256, offline=True),
)


def of(generation: Generation, names: Sequence[str]) -> tuple[Load, ...]:
    """The loads with these names; CosyVoice 1 needs twice as many tokens for the same length."""
    scale = 2 if generation is Generation.V1 else 1
    return tuple(replace(load, tokens=scale * load.tokens) for load in LOADS if load.name in names)


KEYS = (
    "ttfb_ms_p50", "ttfb_ms_p95", "ttfb_ms_p99", "rtf", "underruns", "underrun_requests", "margin_ms_min",
    "throughput_audio_s_per_s", "ok", "failed", "refused", "wall_s", "gpu_memory_reserved_bytes",
)  # fmt: skip


def loads(
    tts: Vivavoce, model: Path, which: tuple[Load, ...], memory_gb: float | None = None
) -> Iterator[dict[str, Any]]:
    """Figures of each load, under keys that begin with its name, and the command that measures them.

    tts: loaded with the limit `memory_gb`, if given, and warmed up.
    """
    bound = f"--memory {memory_gb:g} " if memory_gb else ""
    if (steps := tts.engine.settings.flow_steps) != EngineSettings().flow_steps:
        bound += f"--flow-steps {steps} "
    for load in which:
        report = measure(tts, model, load, memory_gb)
        yield {
            f"{load.name}_command": f"vivavoce bench --model {model} --admission all {bound}{load.options()}",
            **{f"{load.name}_{key}": report[key] for key in KEYS},
        }


def measure(tts: Vivavoce, model: Path, load: Load, memory_gb: float | None = None) -> Mapping[str, Any]:
    """The report of one load, as `vivavoce bench --json` writes it."""
    asked = BenchRequest(
        BenchLoad(
            load.concurrency,
            load.rate,
            load.requests,
            0,
            tokens=load.tokens,
            offline=load.offline,
            voice=[str(RECORDING)] if load.fresh else None,
            fresh_voice=load.fresh,
        ),
        EngineChoice("all", memory_gb),
        BenchOutput(),
        ModelChoice(str(model)),
        load.options(),
    )
    asked.check()
    return measured(asked, tts, Reporter(quiet=True)).to_json()
