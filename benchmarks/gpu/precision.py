"""What int8 in the language model and fp8 in the flow gain, and what they cost: errors and words beside times.

    python -m benchmarks.gpu.precision --out benchmarks/results/gpu/precision.json
    python -m benchmarks.gpu.precision --only heard --mini --out words.json    # needs vivavoce[eval]

Errors are those of the kernels against the same weights in float32, random in the release's sizes (--model says where
they are, and they are made if they are not there): mel of the flow alone from given tokens, scores of the language
model that is fed the likeliest tokens. Random scores lie close together, so that the likeliest one changes sooner than
a trained model's. --mini lets a recogniser hear the model in the package; on a CPU that is the plain networks in
float32, rounded as the kernels would round, and the column of 16 bit is float32 as it is.

Without a CUDA device, or with --tiny, sizes are tiny: then errors and times show that the run works. On a CPU they need
Triton's interpreter (TRITON_INTERPRET=1), and many minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import errors, stages
from benchmarks.gpu.heard import words
from benchmarks.gpu.model import make_model, reader
from benchmarks.gpu.origin import origin
from vivavoce.bench.texts import SENTENCES
from vivavoce.checkpoint.babble_weights import RELEASE, TINY
from vivavoce.engine.precision import FlowLinear, LMWeights, Precision
from vivavoce.models.build import Models, build_models
from vivavoce.service.default_model import model_folder

Figures = dict[str, Any]
PARTS = ("errors", "times", "heard")
OPTIONS = {
    "16bit": Precision(),
    "int8_lm": Precision(lm_weights=LMWeights.INT8),
    "fp8_flow": Precision(flow_linear=FlowLinear.FP8),
    "both": Precision(LMWeights.INT8, FlowLinear.FP8),
}
SLOTS = (1, 64, 256)
CASES = (stages.FlowCase(1, 100, 374), stages.FlowCase(64, 100, 374), stages.FlowCase(32, 674))
SEQUENCES, TEXT, STEPS, TOKENS = 8, 40, 100, 125
"""Of the errors: sequences at once, ids of their texts, decode steps; tokens of the mel."""


def stage_errors(model: Path, device: torch.device, dtype: torch.dtype, *, tiny: bool) -> Iterator[Figures]:
    """Of each stage by itself, in 16 bit and in eight."""
    sequences, text, steps, tokens = (2, 4, 2, 4) if tiny else (SEQUENCES, TEXT, STEPS, TOKENS)
    exact, voice = build_models(model, device), reader()
    said = errors.Said.by(exact, sequences, text, steps)
    wanted = errors.mel(exact, voice, tokens, kernels=False)
    del exact
    models = build_models(model, device, dtype)
    for name, int8 in (("16bit", False), ("int8_lm", True)):
        yield _named(name, errors.language(models, said, int8=int8))
    for name, fp8 in (("16bit", False), ("fp8_flow", True)):
        made = errors.mel(models, voice, tokens, kernels=True, fp8=fp8)
        yield _named(name, errors.mel_error(made, wanted))


def stage_times(models: Models, slots: Sequence[int], cases: Sequence[stages.FlowCase]) -> Iterator[Figures]:
    """Of decode steps and flow batches, as the engine runs them."""
    voice = reader()
    for name, int8 in (("16bit", False), ("int8_lm", True)):
        for found in stages.decode(models, voice, slots, True, int8):
            yield _named(name, found)
    for name, fp8 in (("16bit", False), ("fp8_flow", True)):
        for found in stages.flow(models, voice, cases, True, fp8):
            yield _named(name, found)


def mini_words(sentences: tuple[str, ...]) -> Iterator[Figures]:
    """Word errors of the model in the package."""
    for name, precision in OPTIONS.items():
        yield _named(name, words(model_folder(None), precision, sentences, min(8, os.cpu_count() or 1)))


def table(figures: Figures) -> str:
    """One row for each figure, one column for each option, as Markdown."""
    keys = {key.split("/")[1]: None for key in figures if "/" in key}
    rows = [("figure", *OPTIONS), ("---",) * (1 + len(OPTIONS))]
    rows += [(key, *(_shown(figures.get(f"{option}/{key}")) for option in OPTIONS)) for key in keys]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print as it comes, write JSON."""
    options = _options(arguments)
    cuda = torch.cuda.is_available()
    tiny = options.tiny or not cuda
    device, dtype = (torch.device("cuda"), torch.float16) if cuda else (torch.device("cpu"), torch.float32)
    figures: Figures = origin("benchmarks.gpu.precision", device, arguments)
    for found in _measured(options, device, dtype, tiny=tiny):
        figures.update(found)
        print("  ".join(f"{key} {_shown(value)}" for key, value in found.items()), flush=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures))


def _measured(
    options: argparse.Namespace, device: torch.device, dtype: torch.dtype, *, tiny: bool
) -> Iterator[Figures]:
    parts = options.only or PARTS
    if {"errors", "times"} & set(parts):
        folder = options.model or Path(tempfile.gettempdir(), f"vivavoce-{'tiny' if tiny else 'release'}")
        model = make_model(folder, TINY if tiny else RELEASE)
        # Launches are recorded on a stream of their own, as the engine's lanes have one.
        stream: AbstractContextManager[Any] = nullcontext()
        if device.type == "cuda":
            stream = torch.cuda.stream(torch.cuda.Stream())
        with stream:
            if "errors" in parts:
                yield from stage_errors(model, device, dtype, tiny=tiny)
            if "times" in parts:
                cases = (stages.FlowCase(1, 204),) if tiny else CASES
                yield from stage_times(build_models(model, device, dtype), (1, 2) if tiny else SLOTS, cases)
    if "heard" in parts and options.mini:
        sentences = SENTENCES[: options.sentences]
        yield {"sentences": len(sentences)}
        yield from mini_words(sentences)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--model", type=Path, help="folder of the random model, made if it is not there")
    parser.add_argument("--mini", action="store_true", help="let a recogniser hear the mini model")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="that it hears")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to run")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes")
    options = parser.parse_args(arguments)
    if "heard" in (options.only or ()) and not options.mini:
        parser.error("--only heard: the recogniser hears the mini model only; add --mini")
    return options


def _named(option: str, found: Figures) -> Figures:
    return {f"{option}/{key}": value for key, value in found.items()}


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
