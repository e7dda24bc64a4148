"""Stage 1: the language model in the form that its runtime reads, a built engine where that can be, and a try."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivavoce.doors.triton.pipeline.context import Context
from vivavoce.doors.triton.pipeline.settings import LanguageModelChoice
from vivavoce.doors.triton.plan import LanguageModel
from vivavoce.errors import MissingDependency

BUILDER = "trtllm-build"
MAX_BATCH, MAX_TOKENS = 16, 32768
_TRIED_WITH = {LanguageModel.ENGINE: "trtllm", LanguageModel.LLMAPI: "trtllm", LanguageModel.VIVAVOCE: "torch"}
"""The backend of `vivavoce triton test-llm` for each way to serve."""


def conversion_inputs(context: Context) -> dict[str, Any]:
    """What the result depends on."""
    return {
        "model": context.work.made(0),
        "language_model": context.settings.language_model.value,
        "dtype": context.settings.engine_dtype,
        "device": context.settings.device,
        "installed": [BUILDER] * (shutil.which(BUILDER) is not None) + ["tensorrt_llm"] * _api_installed(),
    }


def convert(context: Context) -> dict[str, Any]:
    """Convert, build, and let a few speech tokens come out.

    Raises:
        MissingDependency: an engine is asked for and cannot be built here.
        VivavoceError: a command failed.
    """
    work, model_dir = context.work, context.work.made(0)["model_dir"]
    chosen = choose(context.settings.language_model)
    context.vivavoce("convert", "hf", "--model", model_dir, "--out", work.merged, "--force", "--quiet")
    made: dict[str, Any] = {"language_model": chosen.value, "merged_dir": str(work.merged), "engine_dir": None}
    # Without the builder, the checkpoint and the line are what another machine builds the engine from.
    if context.settings.language_model in (LanguageModelChoice.AUTO, LanguageModelChoice.ENGINE):
        made["build"] = shlex.join(build_line(work.checkpoint, work.engine, context.settings.engine_dtype))
        _convert_for_engine(context, model_dir)
    if chosen is LanguageModel.ENGINE:
        _build(context)
        made["engine_dir"] = str(work.engine)
    context.say(why(context.settings.language_model, chosen))
    _try(context, model_dir, chosen)
    return made


def choose(wish: LanguageModelChoice) -> LanguageModel:
    """What serves, by what is installed.

    Raises:
        MissingDependency: what is asked for by name is not installed.
    """
    builder = shutil.which(BUILDER) is not None
    if wish is LanguageModelChoice.ENGINE and not builder:
        raise MissingDependency(
            f"llm: engine needs {BUILDER}, which is not on PATH; run in the container "
            "tritonserver:25.06-trtllm-python-py3, or choose auto"
        )
    if wish is LanguageModelChoice.LLMAPI and not _api_installed():
        raise MissingDependency(
            "llm: llmapi needs the package tensorrt_llm, which is not installed; run in one of NVIDIA's TensorRT-LLM "
            "containers, or choose auto"
        )
    if wish is not LanguageModelChoice.AUTO:
        return LanguageModel(wish.value)
    if builder:
        return LanguageModel.ENGINE
    return LanguageModel.LLMAPI if _api_installed() else LanguageModel.VIVAVOCE


def why(wish: LanguageModelChoice, chosen: LanguageModel) -> str:
    """One line on what serves the language model."""
    served = {
        LanguageModel.ENGINE: "the built engine serves the language model, by Triton's TensorRT-LLM backend",
        LanguageModel.LLMAPI: "TensorRT-LLM's LLM API serves the language model, from the merged folder",
        LanguageModel.VIVAVOCE: "this package's own language model serves, from the model's folder",
    }
    if wish is not LanguageModelChoice.AUTO or chosen is LanguageModel.ENGINE:
        return served[chosen]
    return f"{BUILDER} is not installed here (TensorRT-LLM to 1.2 has it): {served[chosen]}"


def build_line(checkpoint: Path, engine: Path, dtype: str) -> list[str]:
    """The command that builds the engine."""
    places = ["--checkpoint_dir", str(checkpoint), "--output_dir", str(engine)]
    limits = ["--max_batch_size", str(MAX_BATCH), "--max_num_tokens", str(MAX_TOKENS)]
    return [BUILDER, *places, *limits, "--gemm_plugin", dtype]


def _convert_for_engine(context: Context, model_dir: str) -> None:
    work, dtype = context.work, context.settings.engine_dtype
    arguments = ["--model-dir", model_dir, "--output-dir", work.checkpoint, "--dtype", dtype, "--force", "--quiet"]
    context.vivavoce("convert", "trtllm", *arguments)
    context.say("the engine's line: " + shlex.join(build_line(work.checkpoint, work.engine, dtype)))


def _build(context: Context) -> None:
    """An engine appears whole or not at all."""
    work = context.work
    new = work.engine.with_name(work.engine.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    context.run(build_line(work.checkpoint, new, context.settings.engine_dtype))
    shutil.rmtree(work.engine, ignore_errors=True)
    os.rename(new, work.engine)


def _try(context: Context, model_dir: str, chosen: LanguageModel) -> None:
    where = ["--model", model_dir, "--device", context.settings.device]
    arguments: Sequence[object] = ["--backend", _TRIED_WITH[chosen], *where]
    if chosen is not LanguageModel.VIVAVOCE:
        arguments = [*arguments, "--tokenizer-dir", context.work.merged]
    if chosen is LanguageModel.ENGINE:
        arguments = [*arguments, "--engine-dir", context.work.engine]
    context.vivavoce("triton", "test-llm", *arguments, "--quiet")


def _api_installed() -> bool:
    return importlib.util.find_spec("tensorrt_llm") is not None
