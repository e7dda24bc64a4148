"""The command line's app, and its boundary: every failure becomes one line on stderr and an exit code.

0: done. 1: an internal error, or `doctor` found something broken. 2: a mistake that the user can mend.
130: interrupted. 141: the reader of stdout has left.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup

from vivavoce.cli import config, doctor, download, info, keys, normalize, serve, speak, voice
from vivavoce.cli.console import DEBUG_VARIABLE, debugging, print_error, quiet_libraries
from vivavoce.cli.flags import OLD_NAMES, command, examples, flag, group, with_flags
from vivavoce.errors import MissingDependency, VivavoceError
from vivavoce.version import __version__
from vivavoce_bench.commands import bench, evaluate, plan
from vivavoce_export.commands import export
from vivavoce_triton.commands import client, triton

EXIT_INTERNAL, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 130, 141

# typer has no public name for the class that it calls ClickException, the base of all usage errors.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_COMPLETE_VARIABLE = "_VIVAVOCE_COMPLETE"
"""Set by a shell that asks what a line may go on with."""
_ORDER = (
    *("speak", "voice", "convert", "normalize", "download", "info", "doctor", "plan", "serve", "config", "keys"),
    *("client", "triton", "export", "bench", "eval", "train"),
)  # as the help lists them


class _Root(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)


class _TrainGroup(TyperGroup):
    """The commands of the package vivavoce_training, which is looked for when one of them is used."""

    @property
    def commands(self) -> Any:
        return _training().commands

    @commands.setter
    def commands(self, _: object) -> None:
        """Those of the empty group are none."""

    def invoke(self, ctx: Any) -> Any:
        _training()
        from vivavoce_training.record import shown

        with shown():
            return super().invoke(ctx)


@cache
def _training() -> Any:
    try:
        from vivavoce_training.commands import app as training
    except ModuleNotFoundError as error:
        if error.name != "vivavoce_training":
            raise
        raise MissingDependency(
            "train: the package vivavoce_training is missing; pip install '.[train]' in the repository brings it"
        ) from None
    return typer.main.get_command(training)


app = typer.Typer(
    name="vivavoce",
    cls=_Root,
    help="Text to speech with the CosyVoice model family: voice cloning, streaming, voice conversion.",
    epilog=examples('vivavoce speak "Hello there." --play', "vivavoce speak --help"),
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # --prompt_text and --prompt-text are the same option, and --transcript is its name today.
        "token_normalize_func": lambda token: OLD_NAMES.get(token := token.replace("_", "-"), token),
    },
)
command(app, *speak.EXAMPLES)(speak.speak)
command(app, *speak.CONVERT_EXAMPLES)(speak.convert)
app.add_typer(voice.app, name="voice")
app.add_typer(client.app, name="client")
command(app, *download.EXAMPLES)(download.download)
command(app, *evaluate.EXAMPLES, name="eval")(evaluate.evaluate)
app.add_typer(bench.app, name="bench")
command(app, *serve.EXAMPLES, cls=serve.ServeCommand)(serve.serve)
app.add_typer(config.app, name="config")
app.add_typer(keys.app, name="keys")
app.add_typer(triton.app, name="triton")
app.add_typer(export.app, name="export")
command(app, *normalize.EXAMPLES)(normalize.normalize)
command(app, *info.EXAMPLES)(info.info)
command(app, *doctor.EXAMPLES)(doctor.doctor)
command(app, *plan.EXAMPLES)(plan.plan)
_TRAIN = "Tune a model on your recordings, or make the mini model anew: prepare, lm, flow, pack and more."
app.add_typer(group(_TRAIN, "vivavoce train prepare recordings corpus --model mini"), name="train", cls=_TrainGroup)


@app.callback(invoke_without_command=True)
@with_flags
def _root(context: typer.Context, version: bool = flag("Print the version and stop.", default=False)) -> None:
    if version:
        print(f"vivavoce {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; `arguments` default to the program's own."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name must not fail for a terminal's narrow encoding
    try:
        with quiet_libraries():
            return _guarded(given)
    finally:
        _settle_stdout()


def _guarded(arguments: Sequence[str]) -> int:
    try:
        return _run(arguments)
    except VivavoceError as error:
        print_error(f"error: {error}")
        return error.exit_code
    except _UsageError as error:
        return _explain_usage(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_PIPE
    except OSError as error:  # a disk that is full, a place without permission: nothing that a traceback explains
        print_error(f"error: {error.filename or 'stdout'}: {error.strerror or error}; check the place and its space")
        return EXIT_USAGE
    except Exception as error:  # the last line of defence: it is reported, and with its traceback on request
        return _explain_defect(error)


def _run(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    if _COMPLETE_VARIABLE in os.environ:
        command.main(list(arguments), prog_name="vivavoce", complete_var=_COMPLETE_VARIABLE)
    if tuple(arguments[:2]) in (("convert", "hf"), ("convert", "trtllm")):
        print_error(f"note: `vivavoce convert {arguments[1]}` is called `vivavoce export {arguments[1]}` now")
        arguments = ["export", *arguments[1:]]
    try:
        with command.make_context("vivavoce", list(arguments)) as context:
            command.invoke(context)
        code = 0
    except typer.Exit as ending:
        code = ending.exit_code
    if sys.stdout is not None:
        sys.stdout.flush()
    return code


def _explain_usage(error: Any, arguments: Sequence[str]) -> int:
    words = ["vivavoce"]
    command: Any = typer.main.get_command(app)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        words.append(word)
    message = error.format_message()
    if words == ["vivavoce", "speak"] and "extra argument" in message:
        message = f"{message.rstrip('.')}; put the text in quotes"
    print_error(f"error: {message}")
    print_error(f"try `{' '.join(words)} --help`")
    return EXIT_USAGE


def _explain_defect(error: Exception) -> int:
    if isinstance(error, ModuleNotFoundError) and not (error.name or "vivavoce").startswith("vivavoce"):
        print_error(f"error: the package {error.name} is missing; `vivavoce doctor` says what to install")
        return EXIT_USAGE
    if debugging():
        traceback.print_exception(error)
    hint = "" if debugging() else f" (run with {DEBUG_VARIABLE}=1 for the traceback)"
    print_error(f"internal error: {type(error).__name__}: {error}{hint}")
    return EXIT_INTERNAL


def _settle_stdout() -> None:
    """Leave nothing in stdout's buffer that the interpreter would fail to write, and complain about, at its exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
