"""Measure every row of the table in docs/performance.md on this machine's GPU, within ten minutes.

    python -m benchmarks.gpu --out benchmarks/results/gpu            # everything
    python -m benchmarks.gpu --only stages --out /tmp/figures        # stages | loads | bounded | startup
    python -m benchmarks.gpu --generation v3 --name h200-v3 --out benchmarks/results/gpu
    python -m benchmarks.gpu --only memory --out /tmp/figures        # are limits of 8, 16 and 24 GB kept?
    python -m benchmarks.gpu --only loads --repeat 3 --out /tmp/figures    # for `python -m benchmarks.compare`
    python -m benchmarks.gpu --generation v3 --no-kernels --only loads --loads stream1 offline256 --out /tmp/figures

The model has random weights in the release's sizes and is made on the first run (in the folder --model). On a CPU, or
with --tiny, sizes are tiny: such a run only tests this program, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu import loads, memory, report, stages
from benchmarks.gpu.model import make_model, origin, reader
from benchmarks.gpu.startup import startups
from vivavoce.api import Vivavoce, load
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.settings import EngineSettings, uses_kernels
from vivavoce.errors import MissingDependency
from vivavoce.models.build import build_models
from vivavoce_bench.measure import save_json
from vivavoce_bench.random_checkpoint import RELEASE, TINY

PARTS = ("stages", "loads", "bounded", "startup", "memory")
"""Without --only, all parts but the last are measured."""
Figures = dict[str, Any]


def main() -> None:
    """Run the parts, print figures as they are measured, and write JSON, a table and a picture."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tiny = options.tiny or not torch.cuda.is_available()
    generation = Generation(options.generation)
    folder = options.model or Path(f"/tmp/vivavoce-{generation.value}-{'tiny' if tiny else 'release'}")
    model = make_model(folder, TINY if tiny else RELEASE, generation)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures: Figures = origin("benchmarks.gpu", device)
    figures |= {"generation": generation.value, "flow_steps": options.flow_steps}
    begun = time.perf_counter()
    parts: dict[str, Callable[[], Iterable[Figures]]] = {
        "stages": lambda: _stages(model, tiny, options.no_kernels),
        "loads": lambda: _loads(
            model, tiny, options.no_kernels, loads.of(generation, options.loads), options.flow_steps
        ),
        "bounded": lambda: _bounded(model, tiny),
        "startup": lambda: [startups(model)],
        "memory": lambda: memory.bounds(model, tiny),
    }
    runs: list[Figures] = []
    for _ in range(options.repeat):
        runs.append({})
        for part in options.only or PARTS[:-1]:
            for found in parts[part]():
                runs[-1].update(found)
                print(f"[{time.perf_counter() - begun:5.0f} s]", _line(found), flush=True)
                save_json(figures | middle(runs), options.out / f"{options.name}.json")
    figures |= middle(runs)
    text = report.table(figures)
    (options.out / f"{options.name}.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    try:
        report.draw(figures, options.out / f"{options.name}.png")
    except MissingDependency as error:
        print(error)


def middle(runs: Sequence[Figures]) -> Figures:
    """Each float figure's median over the runs; `spread`: its minimum and maximum. Other values: of the last run."""
    if len(runs) == 1:
        return runs[0]
    values = {key: [run[key] for run in runs if isinstance(run.get(key), float)] for key in runs[-1]}
    several = {key: sorted(found) for key, found in values.items() if len(found) > 1}
    spread = {key: [found[0], found[-1]] for key, found in several.items()}
    return {**runs[-1], **{key: median(found) for key, found in several.items()}, "spread": spread}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--name", default="gpu", help="name of the result files")
    parser.add_argument("--model", type=Path, help="folder of the random model, made if it is missing")
    parser.add_argument(
        "--generation", choices=[one.value for one in Generation], default="v2", help="generation of the random model"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to run")
    names = [load.name for load in loads.LOADS]
    parser.add_argument("--loads", nargs="+", choices=names, default=names, help="loads to run; default: all")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run all N times; gives medians and their spread"
    )
    parser.add_argument("--tiny", action="store_true", help="use a model of tiny sizes")
    parser.add_argument("--flow-steps", choices=["official", "fast"], default="official", help="steps in loads")
    parser.add_argument("--no-kernels", action="store_true", help="use plain PyTorch, for comparison")
    return parser


def _stages(model: Path, tiny: bool, plain: bool) -> Iterable[Figures]:
    cuda = torch.cuda.is_available()
    models = build_models(model, torch.device("cuda" if cuda else "cpu"), torch.float16 if cuda else torch.float32)
    conditioning = reader()
    kernels = not plain and uses_kernels(models, EngineSettings())
    cases = stages.FLOW_CASES if not tiny else (stages.FlowCase(1, 30, 174), stages.FlowCase(2, 204))
    # CUDA graphs are recorded on a separate stream, as each lane of the engine has one.
    with torch.cuda.stream(torch.cuda.Stream()) if cuda else nullcontext():
        yield from stages.decode(models, conditioning, (1, 4) if tiny else (1, 8, 64, 256), kernels)
        yield from stages.flow(models, conditioning, cases, kernels)
        yield from stages.vocoder(models, ((1, 30), (2, 30)) if tiny else stages.VOCODER_CASES, kernels)


def _loads(model: Path, tiny: bool, plain: bool, which: tuple[loads.Load, ...], flow_steps: str) -> Iterable[Figures]:
    tts = _loaded(model, kernels=False if plain else None, flow_steps=flow_steps)
    try:
        if tiny:
            which = (loads.Load.listeners(2, tokens=25), loads.Load("offline2", 2, 2, offline=True, tokens=25))
        yield from loads.loads(tts, model, which)
        # JSON would make a list of a named tuple.
        yield {
            "costs": {
                stage: asdict(cost) | {"coefficients": cost.coefficients._asdict()}
                for stage, cost in vars(tts.costs).items()
            }
        }
    finally:
        tts.close()


def _bounded(model: Path, tiny: bool) -> Iterable[Figures]:
    """Run loads with a memory limit."""
    cases = ((60, loads.LOADS[-1]), (16, loads.Load.listeners(20)))
    for gigabytes, one in cases if not tiny else ((4, loads.Load.listeners(2, tokens=25)),):
        tts = _loaded(model, memory_bytes=int(gigabytes * 1e9))
        try:
            for found in loads.loads(tts, model, (one,), gigabytes):
                yield {f"bounded_{key}": value for key, value in found.items()}
        finally:
            tts.close()
            del tts


def _loaded(model: Path, **settings: Any) -> Vivavoce:
    tts = load(model, settings=EngineSettings(admission=AdmissionMode.ALL, **settings))
    begun = time.perf_counter()
    tts.warm_up()
    print(f"warm-up: {time.perf_counter() - begun:.1f} s", flush=True)
    return tts


def _line(found: Figures) -> str:
    return "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items()
    )


if __name__ == "__main__":
    main()
