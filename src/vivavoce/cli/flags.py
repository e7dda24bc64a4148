"""Declarations of commands: dataclasses whose fields become options, and options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from vivavoce.errors import InvalidText
from vivavoce.frontend.speech_options import SEED, SPEED

MODEL_VARIABLE = "VIVAVOCE_MODEL"
REQUIRED = dataclasses.MISSING
OLD_NAMES = {"prompt-text": "transcript", "text": "transcript", "instruct": "instructions"}
"""Former names of options, which still work."""
_DECLARED = "declared"


def flag(help: str, metavar: str | None = None, *names: str, default: Any = None, **settings: Any) -> Any:
    """Declare an option as a field's or parameter's default. names: the option's short names only, or all its names."""

    def declared(name: str) -> Any:
        own = () if any(one.startswith("--") for one in names) else (f"--{name.replace('_', '-')}",)
        return typer.Option(*own, *names, metavar=metavar, help=help, **settings)

    return dataclasses.field(default=default, metadata={_DECLARED: declared})


def argument(help: str, metavar: str, default: Any = None, **settings: Any) -> Any:
    declared = typer.Argument(metavar=metavar, help=help, **settings)
    return dataclasses.field(default=default, metadata={_DECLARED: lambda _: declared})


def shared(help: str, metavar: str | None, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **settings)


Command = Callable[..., None]


def with_flags(function: Command) -> Command:
    """Make `function` usable by typer: each parameter of a dataclass type is replaced by that dataclass's fields.

    Fields and other parameters are declared by `flag`, by `argument`, or by their types.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[inspect.Parameter] = []

    def add(name: str, kind: Any, default: Any) -> None:
        declared = default.metadata.get(_DECLARED) if isinstance(default, dataclasses.Field) else None
        kind = kind if declared is None else Annotated[kind, declared(name)]
        default = default.default if isinstance(default, dataclasses.Field) else default
        default = inspect.Parameter.empty if default is REQUIRED else default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
            add(parameter.name, kind, parameter.default)
            continue
        kinds, fields = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
        groups[parameter.name] = (kind, [field.name for field in fields])
        for field in fields:
            add(field.name, kinds[field.name], field)

    @functools.wraps(function)
    def run(**values: Any) -> None:
        grouped = {
            name: kind(**{field: values.pop(field) for field in names}) for name, (kind, names) in groups.items()
        }
        function(**grouped, **values)

    run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    del run.__wrapped__
    return run


class PlainCommand(TyperCommand):
    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._arguments: list[Any] = [one for one in self.params if one.param_type_name == "argument"]
        for one in self._arguments:
            one.get_help_record = functools.partial(self._help_record, one)

    def invoke(self, ctx: Any) -> Any:
        for name in (one.name for one in self.params if getattr(one, "metavar", None) == "TEXT"):
            ctx.params[name] = _as_utf8(f"{name}:", ctx.params[name])
        return super().invoke(ctx)

    @staticmethod
    def _help_record(one: Any, ctx: Any) -> tuple[str, str]:
        return one.metavar, type(one).get_help_record(one, ctx)[1]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [(f"{one.metavar}{'...' if one.nargs != 1 else ''}", one.required) for one in self._arguments]
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in names)]


def command(app: typer.Typer, *lines: str, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
    """Add a command to `app`. lines: examples for the help; settings: arguments of typer's own `command`."""

    def added(function: Command) -> Command:
        app.command(name, cls=PlainCommand, epilog=examples(*lines), **settings)(with_flags(function))
        return function

    return added


def group(help: str, *lines: str, during: Callable[[], AbstractContextManager[None]] = nullcontext) -> typer.Typer:
    """lines: examples; during: a context in which each command runs."""
    app = typer.Typer(help=help, epilog=examples(*lines), rich_markup_mode=None)

    @app.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        context.with_resource(during())
        if context.invoked_subcommand is None:
            print(context.get_help())

    return app


def examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _as_utf8(label: str, given: Any) -> Any:
    """Return arguments decoded as UTF-8; Python passes letters that the locale lacks as surrogate escapes."""
    if isinstance(given, (list, tuple)):
        return [_as_utf8(label, one) for one in given]
    return given and utf8(label, given.encode(errors="surrogateescape"))


def utf8(label: str, content: bytes) -> str:
    """Return the text of these bytes. InvalidText: they are not UTF-8; the message begins with `label`."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{content[error.start]:02x} at position {error.start}"
        raise InvalidText(f"{label} is not UTF-8 ({found}); give UTF-8 text") from None


def _gigabytes(given: str) -> float:
    try:
        return float(given.casefold().removesuffix("gb"))
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a number of gigabytes; give one, such as 16") from None


_OUT = "File to write, overwritten if it exists: .wav, .mp3, .opus, .aac, .flac or .pcm; - is stdout."
_VOICE = "A stored or built-in voice, or a recording of 0.5 to 30 s.  [default: the model's first voice]"
MODEL_HELP = "A downloaded model or a model folder.  [default: mini, a small demo in English]"
_VOICES = "Where voices are stored: a folder, or redis://HOST.  [default: the user's own folder]"
_MEMORY = "Limit of GPU memory, weights included.  [default: all]"
_KERNELS = "Use our own GPU kernels and CUDA graphs.  [default: where they are faster]"
FormatOption = Annotated[
    str | None, shared("Format of stdout: wav, mp3, opus, aac, flac or pcm.  [default: wav]", "NAME", "--format")
]
OutOption = Annotated[str, shared(_OUT, "PATH|-", "--out", "-o")]
VoiceOption = Annotated[str | None, shared(_VOICE, "NAME|RECORDING", "--voice", "-v")]
TagOption = Annotated[
    bool, shared("Say in the file that its speech is synthetic; see docs/provenance.md.", None, "--tag/--no-tag")
]
WatermarkOption = Annotated[
    bool, shared("Mark the speech as synthetic, inaudibly; see docs/provenance.md.", None, "--watermark")
]
TranscriptOption = Annotated[
    str, shared("Words of the recording; with them its manner is cloned, too.", "TEXT", "--transcript")
]
ModelOption = Annotated[str | None, shared(MODEL_HELP, "NAME|FOLDER", "--model", "-m", envvar=MODEL_VARIABLE)]
VoicesOption = Annotated[str | None, shared(_VOICES, "FOLDER|URL", "--voices", envvar="VIVAVOCE_VOICES")]
SpeedOption = Annotated[float, shared(SPEED.flag_help, "NUMBER", "--speed")]
SeedOption = Annotated[int, shared(SEED.flag_help, "NUMBER", "--seed")]
DeviceOption = Annotated[
    str, shared("auto (CUDA if available), cpu, cuda, cuda:N or mps (untested).", "NAME", "--device")
]
DtypeOption = Annotated[str, shared("auto (float16 on a GPU), float32, bfloat16 or float16.", "NAME", "--dtype")]
VariantOption = Annotated[
    str | None, shared("Use llm.NAME.pt, flow.NAME.pt and hift.NAME.pt where the model has them.", "NAME", "--variant")
]
MemoryOption = Annotated[float | None, shared(_MEMORY, "GB", "--memory", parser=_gigabytes)]
KernelsOption = Annotated[bool | None, shared(_KERNELS, None, "--kernels/--no-kernels")]
QuietOption = Annotated[bool, shared("Print errors only.", None, "--quiet", "-q")]
JsonOption = Annotated[bool, shared("Print JSON.", None, "--json")]
