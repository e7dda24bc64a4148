"""Compares the planner's simulation of loads with figures of the engine under the same loads.

    python -m benchmarks.planner --loads 64,256,450 --beyond 600,700 --out benchmarks/results/planner/h200.json
    python -m benchmarks.planner --read benchmarks/results/planner/h200.json        # simulate again, measure nothing
    python -m benchmarks.planner --out /tmp/planner.json                            # on a CPU: tiny sizes

It measures batches of each stage alone, then each load several times, as `vivavoce bench --rate` does. The simulation
uses the costs of these batches ("here") or the costs that `vivavoce plan` uses ("stored"). It is right if its p50 of
the time to first audio is within 15 % of the runs' median, and its p99 within 25 % of their median or in their range.
It must also find the same limit: the largest load before the first load whose p99 or gaps exceed what is allowed. The
model has random weights in the release's sizes and is made on the first run. A CPU's figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu import stages
from benchmarks.gpu.loads import Load, measure
from benchmarks.gpu.model import make_model, origin, reader
from vivavoce.api import Vivavoce, load
from vivavoce.checkpoint.config import Generation, ModelConfig
from vivavoce.cli.console import print_table
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import policy_for
from vivavoce.engine.cost_model import CPU_PRIORS, BatchSize, CostModel, Priors, Stage
from vivavoce.engine.settings import CPU_SLOTS, CPU_STATE_BYTES, EngineSettings, MemoryPlan, uses_kernels
from vivavoce.models.build import build_models
from vivavoce_bench import OpenLoop
from vivavoce_bench.commands.plan import GAPS_ALLOWED
from vivavoce_bench.measure import percentile, save_json
from vivavoce_bench.planning import ALONE_COSTS, outline_models, plan_engine
from vivavoce_bench.random_checkpoint import RELEASE, TINY, release_config, write_settings
from vivavoce_bench.simulation import Machine, Simulation, Visit

FLOW_CASES = tuple(
    stages.FlowCase(*case) for case in ((1, 30, 174), (8, 30, 174), (1, 100, 374), (16, 100, 374), (48, 100, 374))
)
VOCODER_CASES = ((1, 30), (8, 30), (1, 100), (32, 100))
SLOTS = (1, 8, 32, 64)
ROWS, PAST = 149, 230
"""Rows of a prompt of `benchmarks.gpu.stages`, and positions of a slot halfway through its decode steps."""
WARM_UP, ROUNDS = 4, 30
KEYS = ("ttfb_ms_p50", "ttfb_ms_p99", "underrun_requests", "ok", "throughput_audio_s_per_s")

Figures = dict[str, Any]


def main() -> None:
    """Measure, or read earlier figures; simulate; print measured and simulated figures side by side."""
    asked = _parser().parse_args()
    figures = json.loads(asked.read.read_text(encoding="utf-8")) if asked.read else _measured(asked)
    priors = {"here": alone(figures)}
    if not figures["tiny"]:
        priors["stored"] = dict(ALONE_COSTS[Generation(figures["generation"])])
    machine = {name: Machine(*_engine(figures), costs, figures["device"] == "cpu") for name, costs in priors.items()}
    figures["simulated"] = {name: [simulated(one, run) for run in figures["loads"]] for name, one in machine.items()}
    figures["costs_alone"] = {stage.value: cost._asdict() for stage, cost in priors["here"].items()}
    rows, limits = compared(figures, asked.ttfb_p99)
    figures["compared"], figures["limits"] = rows, limits
    save_json(figures, asked.read or asked.out)
    texts = [[f"{one:.4g}" if isinstance(one, float) else str(one) for one in row.values()] for row in rows]
    print_table(texts, list(rows[0]))
    for name, one in limits.items():
        print(f"listeners with a p99 within {asked.ttfb_p99:g} ms, {name}: {one}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tiny = not torch.cuda.is_available()

    def numbers(given: str) -> list[int]:
        return [int(one) for one in given.split(",") if one]

    parser.add_argument("--read", type=Path, help="figures that were measured before")
    parser.add_argument("--out", type=Path, default=Path("planner.json"), help="file for the figures")
    parser.add_argument("--model", type=Path, help="folder of the random model, made if it is missing")
    parser.add_argument("--generation", choices=("v2", "v3"), default="v2", help="generation of the random model")
    parser.add_argument("--loads", type=numbers, default=[1, 2, 3] if tiny else [64, 256, 450], help="listeners")
    parser.add_argument("--beyond", type=numbers, default=[], help="loads that are measured once, to find the limit")
    parser.add_argument("--runs", type=int, default=3, help="runs of each load")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds in which a run's listeners come")
    parser.add_argument("--tokens", type=int, default=25 if tiny else 250, help="speech tokens of a request")
    parser.add_argument("--ttfb-p99", type=float, default=300.0, help="largest p99 that is allowed, in ms")
    return parser


def _measured(asked: argparse.Namespace) -> Figures:
    """Measure the stages alone, then the loads; write figures as they are measured."""
    cuda, generation = torch.cuda.is_available(), Generation(asked.generation)
    folder = asked.model or Path(f"/tmp/vivavoce-{generation.value}-{'release' if cuda else 'tiny'}")
    model = make_model(folder, RELEASE if cuda else TINY, generation)
    device = torch.device("cuda" if cuda else "cpu")
    figures = origin("benchmarks.planner", device) | {"generation": generation.value, "tiny": not cuda}
    figures |= {"tokens": asked.tokens, "seconds": asked.seconds, "stages": {}, "loads": []}
    figures["gpu_memory_bytes"] = torch.cuda.mem_get_info()[1] if cuda else None
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for found in _stages(model, device):
        figures["stages"].update(found)
        print(found, flush=True)
    tts = load(model, settings=EngineSettings(admission=AdmissionMode.ALL))
    try:
        tts.warm_up()
        for run in _runs(tts, model, asked):
            figures["loads"].append(run)
            print(run, flush=True)
            save_json(figures, asked.out)
        learnt = vars(tts.costs).items()
        figures["costs_learnt"] = {
            stage: asdict(cost) | {"coefficients": cost.coefficients._asdict()} for stage, cost in learnt
        }
    finally:
        tts.close()
    return figures


def _stages(model: Path, device: torch.device) -> Iterator[Figures]:
    """Milliseconds of batches that run alone on the device."""
    cuda = device.type == "cuda"
    models = build_models(model, device, torch.float16 if cuda else torch.float32)
    kernels = uses_kernels(models, EngineSettings())
    # CUDA graphs are recorded on a separate stream, as each queue of the engine has one.
    with torch.cuda.stream(torch.cuda.Stream()) if cuda else nullcontext():
        yield from stages.decode(models, reader(), SLOTS if cuda else (1, 4), kernels)
        yield from stages.flow(models, reader(), FLOW_CASES if cuda else FLOW_CASES[:3], kernels)
        yield from stages.vocoder(models, VOCODER_CASES if cuda else VOCODER_CASES[:3], kernels)


def _runs(tts: Vivavoce, model: Path, asked: argparse.Namespace) -> Iterator[Figures]:
    for listeners in (*asked.loads * asked.runs, *asked.beyond):
        rate = listeners / (asked.tokens / 25)
        one = Load(f"listeners{listeners}", max(2, round(rate * asked.seconds)), rate=rate, tokens=asked.tokens)
        report = measure(tts, model, one)
        yield {"listeners": listeners, "rate": rate, "requests": one.requests, **{key: report[key] for key in KEYS}}


def batches(figures: Mapping[str, float]) -> Iterator[tuple[Stage, BatchSize, float]]:
    """(stage, batch size, seconds) of each of the stages' figures."""
    for key, ms in figures.items():
        stage, *numbers = re.split(r"_step_ms_|_ms_|x|_past", key)
        if "floor" in key or "audio" in key or "steps_ms" in key or stage not in set(Stage):
            continue
        rows, frames, past = (*map(int, numbers), 0, 0)[:3]
        if stage == Stage.DECODE:
            past = PAST
        elif stage == Stage.PREFILL:
            frames = ROWS
        yield Stage(stage), BatchSize(rows, rows * frames, rows * past), ms / 1e3


def alone(figures: Figures) -> Priors:
    """Costs of batches that run alone, fitted by the engine's cost model."""
    priors = CPU_PRIORS if figures["tiny"] else ALONE_COSTS[Generation(figures["generation"])]
    costs = CostModel(dict(priors))
    for _ in range(ROUNDS):
        for batch in batches(figures["stages"]):
            costs.observe(*batch)
    found = {Stage(stage): cost.coefficients for stage, cost in vars(costs.snapshot()).items()}
    return {stage: cost._replace(fixed=max(cost.fixed, 1e-6)) for stage, cost in found.items()}  # priors must exceed 0


def _engine(figures: Figures) -> tuple[Any, MemoryPlan]:
    """Outlines of the networks (no weights), and the memory plan."""
    generation = Generation(figures["generation"])
    if figures["tiny"]:
        models = outline_models(_tiny(generation), torch.float32)
        return models, MemoryPlan(CPU_SLOTS, models.config.lm.max_positions, CPU_STATE_BYTES, None)
    planned = plan_engine(release_config(generation), torch.float16, figures["gpu_memory_bytes"], EngineSettings())
    return planned.models, planned.memory


def _tiny(generation: Generation) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        return write_settings(Path(folder), generation, TINY[generation])


def simulated(machine: Machine, run: Figures) -> Figures:
    """Simulate a measured run with the same arrivals; a few listeners come before, as in the measured run."""
    policy, tokens = policy_for(machine.models.config.generation, None), round(25 * run["listeners"] / run["rate"])
    before = OpenLoop(run["rate"]).arrivals(WARM_UP)
    begin = before[-1] + 100.0
    times = (*before, *(begin + at_s for at_s in OpenLoop(run["rate"]).arrivals(run["requests"])))
    settings = EngineSettings(admission=AdmissionMode.ALL)
    heard = Simulation(machine, settings, policy).run([Visit(at_s, tokens) for at_s in times])[WARM_UP:]
    first = [1e3 * (one.first_chunk_s or 0.0) for one in heard if one is not None]
    gaps = sum(one.underruns > 0 for one in heard if one is not None)
    return {"ttfb_ms_p50": percentile(first, 50), "ttfb_ms_p99": percentile(first, 99), "underrun_requests": gaps}


def compared(figures: Figures, allowed_ms: float) -> tuple[list[Figures], dict[str, int]]:
    """A row for each load and each simulation of it; and the limits, measured and simulated, in listeners."""
    loads = figures["loads"]
    sizes = sorted({run["listeners"] for run in loads})
    by_load = {size: [run for run in loads if run["listeners"] == size] for size in sizes}
    limits, rows = {"measured": _limit(by_load, allowed_ms)}, []
    for name, made in figures["simulated"].items():
        said = {size: [made[place] for place, run in enumerate(loads) if run["listeners"] == size] for size in sizes}
        requests = {size: [one | {"requests": by_load[size][0]["requests"]} for one in said[size]] for size in sizes}
        limits[name] = _limit(requests, allowed_ms)
        rows += [_row(size, name, by_load[size], said[size][0]) for size in sizes]
    return rows, limits


def _limit(by_load: Mapping[int, Sequence[Figures]], allowed_ms: float) -> int:
    """The largest load up to which the median run kept to the allowed p99 and share of gaps; 0: no load did."""
    most = 0
    for size, runs in by_load.items():
        gaps = median(run["underrun_requests"] / run["requests"] for run in runs)
        if median(run["ttfb_ms_p99"] for run in runs) > allowed_ms or gaps > GAPS_ALLOWED:
            break
        most = size
    return most


def _row(size: int, name: str, runs: Sequence[Figures], said: Figures) -> Figures:
    p50, p99 = ([run[f"ttfb_ms_p{percent}"] for run in runs] for percent in (50, 99))
    near = abs(said["ttfb_ms_p50"] / median(p50) - 1) <= 0.15
    far = abs(said["ttfb_ms_p99"] / median(p99) - 1) <= 0.25 or min(p99) <= said["ttfb_ms_p99"] <= max(p99)
    return {
        "costs": name,
        "listeners": size,
        "p50, ms": _span(p50),
        "simulated p50": said["ttfb_ms_p50"],
        "within": _said(near),
        "p99, ms": _span(p99),
        "simulated p99": said["ttfb_ms_p99"],
        "within ": _said(far),
        "with gaps": _span([run["underrun_requests"] for run in runs]),
        "simulated gaps": said["underrun_requests"],
    }


def _said(right: bool) -> str:
    return "yes" if right else "NO"


def _span(values: Iterable[float]) -> str:
    """The values of all runs as a text."""
    return " / ".join(f"{one:.0f}" for one in values)


if __name__ == "__main__":
    main()
