"""`python -m benchmarks.plain`: the figures of `vivavoce bench`, measured with the plain loop."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.plain.talker import PlainTalker
from vivavoce.api import Vivavoce
from vivavoce.cli.console import Reporter, print_error
from vivavoce.cli.model import EngineChoice, ModelChoice
from vivavoce.errors import VivavoceError
from vivavoce.frontend.model_choice import model_folder
from vivavoce_bench.commands.bench import BenchLoad, BenchOutput, BenchRequest, run_bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 1 if a request failed, 2 if the command is wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    try:
        request = _request(options, shlex.join(["python", "-m", "benchmarks.plain", *given]))
        return int(run_bench(request, Reporter(), _load))
    except VivavoceError as error:
        print_error(f"error: {error}")
        return error.exit_code


def _load(request: BenchRequest) -> Vivavoce:
    choice = request.model
    name = choice.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    auto = torch.float16 if device.type == "cuda" else torch.float32
    dtype = auto if choice.dtype == "auto" else getattr(torch, choice.dtype)
    voices = None if choice.voices is None else Path(choice.voices)
    return cast(Vivavoce, PlainTalker(model_folder(choice.model), device, dtype, choice.variant, voices))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.plain", description=__doc__)
    parser.add_argument("--concurrency", type=int, help="users who send a request after each answer (default: 1)")
    parser.add_argument("--rate", type=float, help="or: requests per second, at random times")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--text-file", type=Path)
    parser.add_argument("--words", help="words per text, MIN-MAX")
    parser.add_argument("--tokens", type=int, help="exact number of speech tokens of each request")
    parser.add_argument("--voice", action="append", default=[])
    parser.add_argument("--transcript", action="append", default=[])
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--policy")
    parser.add_argument("--first-hop", type=int)
    parser.add_argument("--lookahead", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--json", dest="json_file", metavar="FILE|-")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--variant")
    parser.add_argument("--voices")
    return parser


def _request(given: argparse.Namespace, command: str) -> BenchRequest:
    def chosen(kind: type[Any]) -> Any:
        return kind(**{one.name: getattr(given, one.name, one.default) for one in fields(kind)})

    return BenchRequest(chosen(BenchLoad), EngineChoice(), chosen(BenchOutput), chosen(ModelChoice), command)


if __name__ == "__main__":
    raise SystemExit(main())
