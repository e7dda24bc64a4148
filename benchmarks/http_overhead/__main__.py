"""Measures what HTTP adds to the engine: time to first byte and to the whole answer at 1, 4, 16 and 64 streams.

    python -m benchmarks.http_overhead --output http.json                                  # the mini model
    python -m benchmarks.http_overhead --model /tmp/full --random release --exact-tokens 125 --output http.json

Three processes run on one machine: the engine behind the Python API, a `vivavoce serve`, and the server's clients.
Engine and server get the same texts, voices, seeds and chunks in turns; the other is idle. On a GPU each has two fifths
of the memory, or --memory GB. Each of N users sends a request as soon as the last answer is complete; other requests
warm each side up before. Then a second server, which records when a request passes its stages, shows where time goes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.http_overhead.client import KINDS
from benchmarks.http_overhead.loads import Child, Load, Result, child
from benchmarks.http_overhead.report import ENGINE, overhead, section
from benchmarks.http_overhead.trace import FOLDER, mean_spans, read_traces
from benchmarks.serve_process import ServeProcess, serve_process
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import Schedule
from vivavoce.server.settings import EngineSection, ModelSection, ServerSettings, VoicesSection
from vivavoce_bench.load import Ending, Workload, with_ending
from vivavoce_bench.measure import percentile, rounded, save_json, window_s
from vivavoce_bench.report import figures

USERS = (1, 4, 16, 64)
TURNS = 2
"""Number of turns of each side at each load; every second turn is in reverse order."""
MEMORY_SHARE = 0.4
KEYS = (
    "requests", "ok", "refused", "failed", "ttfb_ms_mean", "ttfb_ms_p50", "ttfb_ms_p99", "underrun_requests", "audio_s",
)  # fmt: skip
Found = dict[str, Any]


def main() -> None:
    """Measure, print figures as they are measured, and write JSON."""
    options = _parser().parse_args()
    # The engine here gets the same setting as the server's processes: see cli/main.py.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    with tempfile.TemporaryDirectory(prefix="vivavoce-http-") as name:
        found = _measure(options, _settings(options, Path(name) / "voices"), Path(name))
    save_json(rounded(found), options.output)
    print(section(found))


def _measure(options: argparse.Namespace, settings: ServerSettings, folder: Path) -> Found:
    with ExitStack() as stack:
        engine = stack.enter_context(child("benchmarks.http_overhead.engine", settings.model_dump_json()))
        found = _about(options, settings, engine)
        print(f"{found['hardware']}: the engine is ready", flush=True)
        loads = _loads(options, engine)
        with ExitStack() as serving:
            server = serving.enter_context(serve_process(_flags(settings), folder / "server.log"))
            found["server_start_s"] = server.start_s
            print(f"the server is ready after {server.start_s:.1f} s", flush=True)
            sides = {ENGINE: engine}
            for kind in options.client:
                sides[kind] = serving.enter_context(child("benchmarks.http_overhead.client", server.url, kind))
            for users, load in loads.items():
                found |= _side_by_side(users, load, sides)
        with _traced(settings, folder) as server:
            client = stack.enter_context(child("benchmarks.http_overhead.client", server.url, options.client[0]))
            for users, load in loads.items():
                found |= _spans(users, load, client, folder)
    return found


def _side_by_side(users: int, load: tuple[Load, Load], sides: dict[str, Child]) -> Found:
    """Run one load through each side, the engine and the kinds of clients, in turns."""
    warm_up, measured = load
    for child_ in sides.values():
        child_.run(warm_up)
    results: dict[str, list[Result]] = {side: [] for side in sides}
    for turn in range(TURNS):
        # Every part holds about the same mix of texts.
        part = replace(measured, name=f"{measured.name}-{turn}", utterances=measured.utterances[turn::TURNS])
        order = list(sides) if turn % 2 == 0 else list(reversed(sides))
        for side in order:
            results[side].append(sides[side].run(part))
    found: Found = {f"{side}_{users}": _figures(results[side]) for side in sides}
    for side in sides:
        if side != ENGINE:
            found[f"{side}_{users}_adds"] = overhead(found[f"{side}_{users}"], found[f"{ENGINE}_{users}"])
        one = found[f"{side}_{users}"]
        print(
            f"{users} streams, {side}: first {one['ttfb_ms_p50']:.1f} / {one['ttfb_ms_p99']:.1f} ms, whole "
            f"{one['whole_ms_p50']:.0f} / {one['whole_ms_p99']:.0f} ms, {one['audio_s']:.0f} s of audio, "
            f"{one['failed'] + one['refused']} not answered",
            flush=True,
        )
    return found


def _figures(results: Sequence[Result]) -> Found:
    outcomes = [outcome for result in results for outcome in result.outcomes]
    ok = with_ending(outcomes, Ending.OK)
    if not ok:
        raise SystemExit(f"no request was answered: {outcomes[0].ending.value} {outcomes[0].problem}")
    whole_ms = [1000 * (one.end_s - one.start_s) for one in ok]
    kept = figures(outcomes)
    wall_s = sum(window_s(result.outcomes) for result in results)
    found = {
        **{key: kept[key] for key in KEYS},
        "whole_ms_mean": sum(whole_ms) / len(whole_ms),
        "whole_ms_p50": percentile(whole_ms, 50),
        "whole_ms_p99": percentile(whole_ms, 99),
        "throughput_audio_s_per_s": kept["audio_s"] / wall_s,
    }
    told = [
        (result.accepted_s[one.utterance.number] - one.start_s, one.ttfb_s)
        for result in results
        for one in with_ending(result.outcomes, Ending.OK)
        if one.utterance.number in result.accepted_s
    ]
    if told:
        found["front_ms"] = 1000 * sum(front_s for front_s, _ in told) / len(told)
        found["engine_ms"] = 1000 * sum(ttfb_s - front_s for front_s, ttfb_s in told) / len(told)
    return found


def _spans(users: int, load: tuple[Load, Load], client: Child, folder: Path) -> Found:
    """Mean time of each stage of a request until the first byte."""
    warm_up, measured = load
    client.run(warm_up)
    outcomes = client.run(measured).outcomes
    ids = [measured.request_id(one.number) for one in measured.utterances]
    found = mean_spans(outcomes, ids, read_traces(folder))
    means = ", ".join(f"{name} {value:.2f}" for name, value in found.items() if not name.endswith("p50"))
    print(f"{users} streams: {means}", flush=True)
    return {f"spans_{users}": found}


@contextmanager
def _traced(settings: ServerSettings, folder: Path) -> Iterator[ServeProcess]:
    variables = {FOLDER: str(folder)}
    module = "benchmarks.http_overhead.traced"
    with serve_process(_flags(settings), folder / "traced.log", module=module, variables=variables) as server:
        yield server


def _about(options: argparse.Namespace, settings: ServerSettings, engine: Child) -> Found:
    about = {key: value for key, value in engine.about.items() if key != "text_tokens"}
    command = shlex.join(("python", "-m", "benchmarks.http_overhead", *sys.argv[1:]))
    return {
        **about,
        "command": command,
        "server_flags": shlex.join(_flags(settings)),
        "admission": settings.engine.admission.value,
        "memory_gb": settings.model.memory_gb,
        "policy": options.policy,
        "exact_tokens": options.exact_tokens,
        "users": options.users,
        "clients": options.client,
        "rounds": options.rounds,
        "turns": TURNS,
    }


def _loads(options: argparse.Namespace, engine: Child) -> dict[int, tuple[Load, Load]]:
    """Number of users → (load for warming up, load to measure)."""
    ratios = {} if options.exact_tokens is None else _ratios(options.exact_tokens, engine.about["text_tokens"])
    texts = tuple(ratios) or tuple(engine.about["text_tokens"])
    workload = Workload(texts, engine.about["voices"])
    loads = {}
    for users in options.users:
        count = max(options.requests, options.rounds * users)
        utterances = workload.utterances(count), workload.utterances(max(users, 4), "warm-up")
        measured, warm_up = (Load("", users, some, options.policy, ratios) for some in utterances)
        loads[users] = replace(warm_up, name=f"warm{users}"), replace(measured, name=f"load{users}")
    return loads


def _ratios(tokens: int, text_tokens: dict[str, int]) -> dict[str, float]:
    """Text → speech tokens per text token that give it `tokens` speech tokens; only ratios from 1 to 50."""
    # Half a token is added, because the product is rounded down.
    ratios = {text: (tokens + 0.5) / size for text, size in text_tokens.items()}
    kept = {text: ratio for text, ratio in ratios.items() if 1 <= ratio <= 50}
    if not kept:
        raise SystemExit(f"exact_tokens: {tokens} is not 1 to 50 times the text tokens of a sentence; choose about 100")
    return kept


def _settings(options: argparse.Namespace, voices: Path) -> ServerSettings:
    model = None if options.model is None else str(options.model)
    if options.random:
        model = _random_model(Path(model or f"/tmp/vivavoce-{options.random}"), options.random)
    return ServerSettings(
        model=ModelSection(
            model=model, device=options.device, dtype=options.dtype, memory_gb=options.memory or _memory(options.device)
        ),
        engine=EngineSection(admission=AdmissionMode(options.admission)),
        voices=VoicesSection(place=str(voices)),
    )


def _memory(device: str) -> float | None:
    """GB of one GPU for each of two engines; None without a GPU."""
    from vivavoce.frontend.model_choice import choose_device

    where = choose_device(device)
    if where.type != "cuda":
        return None
    import torch

    return round(MEMORY_SHARE * torch.cuda.get_device_properties(where).total_memory / 1e9, 1)


def _random_model(folder: Path, sizes: str) -> str:
    from benchmarks.gpu.model import make_model
    from vivavoce_bench.random_checkpoint import RELEASE, TINY

    return str(make_model(folder, RELEASE if sizes == "release" else TINY))


def _flags(settings: ServerSettings) -> list[str]:
    """The command line that gives a server these settings."""
    model = settings.model
    flags = ["--device", model.device, "--dtype", model.dtype, "--admission", settings.engine.admission.value]
    flags += ["--voices", str(settings.voices.place)]
    if model.model is not None:
        flags += ["--model", model.model]
    if model.memory_gb is not None:
        flags += ["--memory", f"{model.memory_gb:g}"]
    return flags


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.http_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--model", type=Path, help="name or folder; default: mini")
    parser.add_argument("--random", choices=("tiny", "release"), help="random weights of this size, made if missing")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--memory", type=float, metavar="GB", help="GPU memory of each of the two engines")
    parser.add_argument("--admission", default="all", choices=("queue", "all"), help="for streams beyond the capacity")
    parser.add_argument("--policy", default="low_latency", choices=[one.value for one in Schedule], help="chunk policy")
    parser.add_argument("--client", nargs="+", choices=KINDS, default=["openai"], help="clients of the server")
    parser.add_argument("--users", type=_counts, default=list(USERS), metavar="N,N", help="streams at the same time")
    parser.add_argument("--rounds", type=int, default=4, help="requests of each user")
    parser.add_argument("--requests", type=int, default=40, help="least number of requests in each load")
    parser.add_argument(
        "--exact-tokens", type=int, metavar="N", help="speech tokens of each request, for random weights"
    )
    return parser


if __name__ == "__main__":
    main()
