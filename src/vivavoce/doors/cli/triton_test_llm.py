"""`vivavoce triton test-llm`: whether a language model that will be served says something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter
from vivavoce.errors import InvalidRequest, StageFailed

if TYPE_CHECKING:
    from vivavoce.bench.offline import LanguageModel, Prompt, Sampling
    from vivavoce.doors.cli.bench_backends.choosing import Backend
    from vivavoce.doors.cli.bench_studio import Studio

EXAMPLES = options.examples(
    'vivavoce triton test-llm --model mini --input-text "Hello there."',
    "vivavoce triton test-llm --model CosyVoice2-0.5B --tokenizer-dir llm_hf --engine-dir trtllm_engine --top-k 50",
)
_TOKENS = 16
"""Enough to see that something comes out."""


def check_llm(
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="NAME", help="torch, hf or trtllm.  [default: trtllm for an engine, else torch]"
        ),
    ] = None,
    model: options.ModelOption = None,
    tokenizer_dir: Annotated[
        str | None,
        typer.Option(
            "--tokenizer-dir", metavar="FOLDER", help="The merged language model.  [default: made from the model]"
        ),
    ] = None,
    engine_dir: Annotated[
        Path | None, typer.Option("--engine-dir", metavar="FOLDER", help="An engine that trtllm-build made.")
    ] = None,
    input_text: Annotated[
        str, typer.Option("--input-text", metavar="TEXT", help="What it shall say.")
    ] = "Hello there.",
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="NUMBER", min=1, help="Of hf and trtllm: 50.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="NUMBER", min=0, max=1, help="Of hf and trtllm: 0.95.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="NUMBER", min=0, help="Of hf and trtllm: 0.8.")
    ] = None,
    device: options.DeviceOption = "auto",
    quiet: options.QuietOption = False,
) -> None:
    """Let a few speech tokens come out of a language model before it is served."""
    reporter = Reporter(quiet)
    with reporter.working("loading …"):
        from vivavoce.bench.offline import Sampling
        from vivavoce.doors.cli.bench_backends.choosing import Backend, check_installed, parse_backends
        from vivavoce.doors.cli.bench_studio import load_studio
        from vivavoce.doors.cli.bench_texts import Line
        from vivavoce.doors.cli.model import ModelChoice

        (chosen,) = parse_backends([backend or ("trtllm" if engine_dir is not None else "torch")])
        check_installed(chosen)
        drawing = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
        given: dict[str, Any] = {name: value for name, value in drawing.items() if value is not None}
        if given and chosen is Backend.TORCH:
            raise InvalidRequest(f"{min(given)}: our own model draws as its configuration says; leave it out")
        studio = load_studio(ModelChoice(model, device))
        prompt = studio.jobs([Line("test", input_text)], 42, None)[0].prompt
        prompt = replace(prompt, most=min(prompt.most, _TOKENS))
        speaker = _opened(chosen, studio, prompt, tokenizer_dir, engine_dir, replace(Sampling(), **given))
        try:
            (tokens,) = speaker.generate([prompt])
        finally:
            speaker.close()
    if not tokens:
        raise StageFailed(f"llm: {chosen.value} gave no speech token for {input_text!r}; convert the model again")
    reporter.report(f"{chosen.value}: {len(tokens)} speech tokens: {' '.join(map(str, tokens))}")


def _opened(
    backend: Backend,
    studio: Studio,
    prompt: Prompt,
    merged_dir: str | None,
    engine_dir: Path | None,
    sampling: Sampling,
) -> LanguageModel:
    from vivavoce.doors.cli.bench_backends.choosing import Backend, Load, open_backend
    from vivavoce.doors.cli.bench_backends.hf import HuggingFaceModel
    from vivavoce.doors.cli.bench_backends.merged import merged_model
    from vivavoce.doors.cli.bench_backends.trtllm import TensorRTModel
    from vivavoce.engine.settings import EngineSettings

    load, models = Load.of([prompt], 1), studio.models
    merged = None if backend is Backend.TORCH else merged_model(studio, None, merged_dir)
    if merged is not None and backend is Backend.HF:
        return HuggingFaceModel(merged, models.device, models.dtype, sampling)
    if merged is not None and backend is Backend.TRTLLM:
        return TensorRTModel(merged, models.dtype, load, engine_dir, sampling)
    return open_backend(backend, studio, EngineSettings(), load, merged, engine_dir)
