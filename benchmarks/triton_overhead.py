"""Measures what Triton adds to the engine: time to first chunk and to the whole answer with 1, 4 and 16 users.

    python -m benchmarks.triton_overhead --out benchmarks/results/triton --name epyc2-mini

It measures servers of the model sets `staged` and `fast`, then the engine in this process, with the same texts, voice,
chunks and seed. The language model of `cosyvoice2` samples as in the original deployment, so its speech has other
tokens: compare the seconds of audio, too.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.model import origin
from vivavoce.api import Vivavoce
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import choose_device, choose_dtype, model_folder
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce_bench.load import Outcome
from vivavoce_bench.measure import Arrival, rounded, save_json
from vivavoce_bench.texts import SENTENCES
from vivavoce_triton.client.load import measure
from vivavoce_triton.client.report import figures
from vivavoce_triton.client.utterance import LoadOptions, Manner, Utterance
from vivavoce_triton.model_repository import ModelSet, RepositoryPlan, render_repository
from vivavoce_triton.server import TritonServer, TritonServerSettings, find_installation

TASKS = (1, 4, 16)
SEED = 42
IN_PROCESS = "in process"
MODELS = {"cosyvoice2": ModelSet.STAGED, "vivavoce": ModelSet.FAST, IN_PROCESS: None}
"""Measured model → the server's model set, None: no server. This process is last, as it keeps a GPU's memory."""
Ask = Callable[[LoadOptions], Coroutine[Any, Any, Sequence[Outcome]]]
KEYS = (
    "ok", "failed", "first_chunk_ms_avg", "first_chunk_ms_p50", "first_chunk_ms_p95", "total_ms_avg", "total_ms_p50",
    "total_ms_p95", "audio_s", "rtf", "underruns",
)  # fmt: skip


def main() -> None:
    """Measure, print figures as they are measured, and write JSON and a table."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device, folder = choose_device(options.device), model_folder(options.model)
    found: dict[str, Any] = {**origin("benchmarks.triton_overhead", device), "model": folder.name}
    for model in MODELS:
        with _speaker(model, folder, options.device, options.env_dir) as ask:
            for tasks in options.tasks:
                kept = figures(asyncio.run(ask(_load(model, tasks, options.requests))))
                found[f"{model.replace(' ', '_')}_{tasks}"] = {key: kept[key] for key in KEYS}
                latencies = f"{kept['first_chunk_ms_p50']:.0f} ms, {kept['total_ms_p50']:.0f} ms"
                print(f"{model}, {tasks} at a time: {latencies}", flush=True)
    save_json(rounded(found), options.out / f"{options.name}.json")
    (options.out / f"{options.name}.md").write_text(table(found, options.tasks), encoding="utf-8")


def table(found: dict[str, Any], tasks: Sequence[int]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| users | speaks | first chunk, ms (p50, p95) | beside the engine | whole answer, ms (p50, p95) "
        "| beside the engine | RTF of the load |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(model, count, found) for count in tasks for model in reversed(MODELS)]
    return "\n".join(lines) + "\n"


def _row(model: str, tasks: int, found: dict[str, Any]) -> str:
    figure, engine = found[f"{model.replace(' ', '_')}_{tasks}"], found[f"in_process_{tasks}"]
    cells = [str(tasks), model if model == IN_PROCESS else f"`{model}`"]
    for name in ("first_chunk_ms", "total_ms"):
        cells.append(f"{figure[f'{name}_p50']:.0f}, {figure[f'{name}_p95']:.0f}")
        more = figure[f"{name}_p50"] - engine[f"{name}_p50"]
        cells.append("" if model == IN_PROCESS else f"{more:+.0f}")
    return f"| {' | '.join([*cells, format(figure['rtf'], '.3f')])} |"


def _load(model: str, tasks: int, requests: int) -> LoadOptions:
    requests = max(requests, 2 * tasks)
    texts = SENTENCES[:: max(len(SENTENCES) // requests, 1)]  # short and long texts
    utterances = [Utterance(f"text{place}", text) for place, text in enumerate(texts)]
    return LoadOptions(
        "", utterances, model, manner=Manner(seed=SEED), num_tasks=tasks, requests=requests, warmup=tasks
    )


async def _in_process(load: LoadOptions, synthesizer: Vivavoce) -> list[Outcome]:
    """Run the load without a server; each request is timed from its text to its chunks."""
    loop, zero_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    voice = next(iter(built_in_voices(synthesizer.front_end.folder).values()))
    places, outcomes = iter(range(load.total)), list[Outcome]()

    async def user() -> None:
        for place in places:
            utterance, start_s, arrivals = load.utterance(place), loop.time() - zero_s, list[Arrival]()
            handle = await asyncio.to_thread(
                synthesizer.stream,
                utterance.text,
                voice,
                options=SpeakOptions(seed=SEED),
                policy=ChunkPolicy.exponential(),
            )
            async for chunk in handle:
                arrivals.append(Arrival(loop.time() - zero_s, len(chunk.samples)))
            outcomes.append(
                Outcome(
                    start_s,
                    loop.time() - zero_s,
                    synthesizer.front_end.config.rates.sample_rate,
                    tuple(arrivals),
                    utterance=utterance,
                )
            )

    await asyncio.gather(*(user() for _ in range(load.num_tasks)))
    return outcomes


@contextmanager
def _speaker(model: str, folder: Path, device: str, environment: Path | None) -> Iterator[Ask]:
    """A function that runs a load on the engine in this process, or on a server of one model set."""
    models = MODELS[model]
    if models is not None:
        with _server(models, folder, device, environment) as server:
            yield lambda load: _served(replace(load, server=server.grpc_url))
        return
    where = choose_device(device)
    synthesizer = Vivavoce(*load_model(folder, (where,), choose_dtype("auto", where)))
    try:
        synthesizer.engine.warm_up()
        yield lambda load: _warm_and_here(load, synthesizer)
    finally:
        synthesizer.close()


@contextmanager
def _server(models: ModelSet, model: Path, device: str, environment: Path | None) -> Iterator[TritonServer]:
    with tempfile.TemporaryDirectory(prefix="vivavoce-triton-") as folder:
        repository = Path(folder) / "repository"
        values = {"model_dir": str(model), "device": device, "use_spk2info_cache": "true"}
        render_repository(RepositoryPlan(values, models=models), repository)
        settings = TritonServerSettings(http_port=0, grpc_port=0, metrics_port=0)
        installation = find_installation(environment, print)
        with TritonServer(installation, repository, Path(folder) / "server.log", settings) as server:
            yield server


async def _served(load: LoadOptions) -> Sequence[Outcome]:
    return (await measure(load)).outcomes


async def _warm_and_here(load: LoadOptions, synthesizer: Vivavoce) -> Sequence[Outcome]:
    await _in_process(replace(load, requests=load.warmup), synthesizer)
    return await _in_process(load, synthesizer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--name", default="triton", help="name of the result files")
    parser.add_argument("--model", default="mini", help="name or folder")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--env-dir", type=Path, help="the server's environment; default: the user's own")
    parser.add_argument("--tasks", type=int, nargs="+", default=TASKS, help="users at a time")
    parser.add_argument("--requests", type=int, default=16, help="requests; at least two per user")
    return parser


if __name__ == "__main__":
    main()
