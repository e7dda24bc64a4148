"""`vivavoce triton`: deploy a model on NVIDIA's Triton Inference Server, in stages."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import typer

from vivavoce.cli import flags as shared
from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import REQUIRED, argument, command, examples, flag, with_flags
from vivavoce.errors import InvalidRequest, StageFailed

T = TypeVar("T")
_TEST_TOKENS = 16

EXAMPLES = (
    "vivavoce triton --stage 0 --stop-stage 6 --model mini --work-dir ./triton",
    "vivavoce triton --stage 0 --stop-stage 3 --model CosyVoice2-0.5B --model-set fast --mode offline",
    "vivavoce triton --stage 0 --stop-stage 3 --model Fun-CosyVoice3-0.5B --model-set cosyvoice3",
    "vivavoce triton fill-template -i config.pbtxt model_dir:/models/cosyvoice2,decoupled_mode:True",
    "vivavoce triton env --dir ./server-env",
)
app = typer.Typer(
    help=(
        "Deploy on NVIDIA's Triton Inference Server, in stages: 0 download the model, 1 convert its language model "
        "and build an engine, 2 create the model repository, 3 start the server, 4 test HTTP, 5 measure over gRPC, "
        "6 measure batches without a server.\n\nFinished stages are skipped. Stage 3 stays in the foreground "
        "if it is the last one."
    ),
    epilog=examples(*EXAMPLES),
)


@dataclass(frozen=True)
class StageFlags:
    stage: int | None = flag("The first stage.", "NUMBER")
    stop_stage: int | None = flag("The last stage.  [default: the first]", "NUMBER")
    model: shared.ModelOption = None
    work_dir: Path = flag("Folder for all results.", "FOLDER", default=Path("triton"))
    source: str = flag("Hub to download from: hf (Hugging Face) or modelscope.", "HUB", "--from", default="hf")
    spk2info: str | None = flag("Stored speakers that replace the model's own.", "FILE|URL")
    llm: str = flag("Runtime of the model tensorrt_llm: auto, engine, llmapi or vivavoce.", "NAME", default="auto")
    engine_dtype: str = flag("Data type of the engine: bfloat16, float16 or float32.", "NAME", default="bfloat16")
    mode: str = flag("streaming, or offline (one response per request).", "NAME", default="streaming")
    models: str = flag(
        "Models to serve: staged (cosyvoice2 and its four models), fast (vivavoce), both, cosyvoice3 or dit.",
        "NAME",
        "--model-set",
        default="staged",
    )
    device: shared.DeviceOption = "auto"
    settings: list[str] | None = flag("Set a variable of the templates; may be repeated.", "KEY=VALUE", "--set")


@dataclass(frozen=True)
class ServerFlags:
    host: str = flag("Address at which the server listens.", "ADDRESS", default="127.0.0.1")
    http_port: int = flag("HTTP port; 0: any free port.", "NUMBER", default=8000, min=0, max=65535)
    grpc_port: int = flag("gRPC port; 0: any free port.", "NUMBER", default=8001, min=0, max=65535)
    metrics_port: int = flag("Metrics port; 0: any free port.", "NUMBER", default=8002, min=0, max=65535)
    ready_timeout: float = flag("Time limit for loading all models.", "SECONDS", default=300.0, min=1)


@dataclass(frozen=True)
class ClientFlags:
    target_text: str | None = flag("Text that clients request.  [default: an English text]", "TEXT")
    reference_audio: Path | None = flag("Recording of the voice.  [default: a stored voice]", "FILE")
    reference_text: str = flag("Transcript of the recording.", "TEXT", default="")
    manifest_path: Path | None = flag("File with the texts of stages 5 and 6.", "FILE")
    num_tasks: int = flag("Concurrent users in stage 5.", "NUMBER", default=4)


@app.callback(invoke_without_command=True)
@with_flags
def _pipeline(
    *,
    context: typer.Context,
    flags: StageFlags,
    server: ServerFlags,
    env_dir: Path | None = flag("Folder of the server's environment.  [default: beside the models]", "FOLDER"),
    client: ClientFlags,
    backend: list[str] | None = flag("Backend of stage 6; may be repeated.  [default: torch]", "NAME"),
    batch_size: str | None = flag("Batch sizes of stage 6.  [default: 16,8,4,2,1, as texts allow]", "NUMBERS"),
    force: bool = flag("Repeat finished stages.", default=False),
    quiet: shared.QuietOption = False,
) -> None:
    """Run the chosen stages of the pipeline."""
    if context.invoked_subcommand is not None:
        return
    if flags.stage is None:
        print(context.get_help())
        return
    from vivavoce_triton.client.utterance import LoadMode
    from vivavoce_triton.model_repository import LanguageModelRuntime, ModelSet, parse_values
    from vivavoce_triton.pipeline import DEFAULT_TEXT, PipelineSettings, run_pipeline
    from vivavoce_triton.server import TritonServerSettings

    values = parse_values(flags.settings or [])
    if flags.device != "auto":
        values.setdefault("device", flags.device)
    settings = PipelineSettings(
        first=flags.stage,
        last=flags.stage if flags.stop_stage is None else flags.stop_stage,
        work=flags.work_dir,
        model=flags.model or "mini",
        hub=flags.source.lower(),
        spk2info=flags.spk2info,
        language_model=_one_of("llm", flags.llm, {"auto": None, **{one.value: one for one in LanguageModelRuntime}}),
        engine_dtype=flags.engine_dtype,
        mode=_one_of("mode", flags.mode, {one.value: one for one in LoadMode}),
        models=_one_of("models", flags.models, {one.value: one for one in ModelSet}),
        values=values,
        server=TritonServerSettings(*vars(server).values()),
        environment=None if env_dir is None else env_dir.expanduser().absolute(),
        text=client.target_text or DEFAULT_TEXT,
        reference=client.reference_audio,
        reference_text=client.reference_text,
        manifest=client.manifest_path,
        num_tasks=client.num_tasks,
        backends=backend or ["torch"],
        batch_sizes=None if batch_size is None else _numbers("batch_size", batch_size),
        device=flags.device,
        force=force,
    )
    with _termination_unwinds():
        run_pipeline(settings, Reporter(quiet).report)


@command(
    app,
    'vivavoce triton test-llm --model mini --input-text "Hello there."',
    "vivavoce triton test-llm --model CosyVoice2-0.5B --tokenizer-dir llm_hf --engine-dir trtllm_engine --top-k 50",
    name="test-llm",
)
def check_llm(
    backend: str | None = flag("Backend: torch, vllm or trtllm.  [default: trtllm with an engine, else torch]", "NAME"),
    model: shared.ModelOption = None,
    tokenizer_dir: str | None = flag("Folder of the merged language model.  [default: made from the model]", "FOLDER"),
    engine_dir: Path | None = flag("Folder of an engine that trtllm-build made.", "FOLDER"),
    input_text: str = flag("Text to speak.", "TEXT", default="Hello there."),
    top_k: int | None = flag("Only with --engine-dir.  [default: 50]", "NUMBER", min=1),
    top_p: float | None = flag("Only with --engine-dir.  [default: 0.95]", "NUMBER", min=0, max=1),
    temperature: float | None = flag("Only with --engine-dir.  [default: 0.8]", "NUMBER", min=0),
    device: shared.DeviceOption = "auto",
    quiet: shared.QuietOption = False,
) -> None:
    """Test a language model before it is served: generate the speech tokens of a text."""
    reporter = Reporter(quiet)
    with reporter.working("loading …"):
        from vivavoce.engine.settings import EngineSettings
        from vivavoce_bench import halves as backends
        from vivavoce_bench.halves import BenchModel
        from vivavoce_triton.client.utterance import Utterance

        (chosen,) = backends.check_backends([backend or ("trtllm" if engine_dir is not None else "torch")])
        given: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
        given = {name: value for name, value in given.items() if value is not None}
        if given and engine_dir is None:
            raise InvalidRequest(f"{min(given)}: is only for engines; leave it out, or give --engine-dir")
        loaded = BenchModel.load(model, device)
        prompt = loaded.jobs([Utterance("test", input_text)], 42, None)[0].prompt
        prompt = replace(prompt, max_tokens=min(prompt.max_tokens, _TEST_TOKENS))
        sampling = backends.BackendSampling(**given)
        opened = backends.open_backend(chosen, loaded, EngineSettings(), 1, tokenizer_dir, engine_dir, sampling)
        try:
            (tokens,) = opened.generate([prompt])
        finally:
            opened.close()
    if not tokens:
        raise StageFailed(f"llm: {chosen} gave no speech token for {input_text!r}; convert the model again")
    reporter.report(f"{chosen}: {len(tokens)} speech tokens: {' '.join(map(str, tokens))}")


@command(
    app,
    "vivavoce triton fill-template -i token2wav/config.pbtxt model_dir:/models/cosyvoice2,triton_max_batch_size:16",
    "vivavoce triton fill-template config.pbtxt model_dir=/models/a,b:c -o filled.pbtxt",
    name="fill-template",
)
def fill_template(
    file: Path = argument("A config.pbtxt with variables.", "FILE", default=REQUIRED),
    values: list[str] = argument(
        "Values: key:value,key:value, or any number of key=value.", "VALUES...", default=REQUIRED
    ),
    in_place: bool = flag("Overwrite the template file.", None, "-i", default=False),
    out: Path | None = flag("Output file.  [default: stdout]", "FILE", "-o"),
) -> None:
    """Fill in the variables of a template. An unknown or missing variable is an error."""
    from vivavoce_triton import model_repository

    if in_place and out is not None:
        raise InvalidRequest("out: excludes --in-place; leave one out")
    if not file.is_file():
        raise InvalidRequest(f"file: {file} is not a file; give a config.pbtxt")
    text = file.read_text(encoding="utf-8")
    filled = model_repository.fill_template(text, model_repository.parse_values(values), name=str(file))
    target = file if in_place else out
    if target is None:
        sys.stdout.write(filled)
    else:
        target.write_text(filled, encoding="utf-8")


@command(app, "vivavoce triton env --dir ./server-env")
def env(
    folder: Path | None = flag("Its folder.  [default: beside the downloaded models]", "FOLDER", "--dir"),
    remove: bool = flag("Remove the environment.", default=False),
    quiet: shared.QuietOption = False,
) -> None:
    """Create or complete the environment of the wheel's Triton server, and print its folder."""
    from vivavoce_triton.server import default_folder, ensure_environment, remove_environment

    target = default_folder() if folder is None else folder.expanduser().absolute()
    if remove:
        remove_environment(target)
        return
    print(ensure_environment(target, Reporter(quiet).report).folder)


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """Handle SIGTERM (which stops containers) and SIGHUP like Ctrl-C, so that the Triton server is stopped, too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_of(field: str, value: str, known: Mapping[str, T]) -> T:
    if value not in known:
        raise InvalidRequest(f"{field}: {value!r} is unknown; choose one of {', '.join(known)}")
    return known[value]


def _numbers(field: str, value: str) -> list[int]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InvalidRequest(f"{field}: {value!r} must be numbers from 1 on, such as 16,4,1")
    return [int(part) for part in parts]
