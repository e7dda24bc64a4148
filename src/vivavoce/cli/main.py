"""The command line: finds the command, and turns every failure into one line on stderr and an exit code.

Exit codes: 0: done. 1: an internal error, or `doctor` found something broken. 2: a mistake that the user can mend.
130: interrupted. 141: the reader of stdout has closed it.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from vivavoce.cli.console import DEBUG_VARIABLE, debugging, print_error, quiet_libraries
from vivavoce.cli.flags import OLD_NAMES, command, examples, flag, with_flags
from vivavoce.errors import MissingDependency, VivavoceError
from vivavoce.version import __version__

EXIT_INTERNAL, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 130, 141

# typer has no public name for the class that it calls ClickException, the base of all usage errors.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_COMPLETE_VARIABLE = "_VIVAVOCE_COMPLETE"


class _Listed(NamedTuple):
    """Where a command is declared: its module, and the names there of its function or group and of its examples."""

    module: str
    attribute: str
    summary: str
    examples: str = "EXAMPLES"


_SOURCES = {
    "speak": _Listed("vivavoce.cli.speak", "speak", "Speak a text of any length into an audio file."),
    "read": _Listed("vivavoce_books.commands", "read", "Read a book into an audiobook with chapters."),
    "voice": _Listed(
        "vivavoce.cli.voice", "app", "Keep voices by name: add, check, list, show, remove, import, export."
    ),
    "adapter": _Listed(
        "vivavoce_fleet.adapter_command", "app", "LoRA adapters of a running server: list, add, remove."
    ),
    "convert": _Listed(
        *("vivavoce.cli.speak", "convert", "Repeat a recording's words in another voice.", "CONVERT_EXAMPLES")
    ),
    "normalize": _Listed("vivavoce.cli.normalize", "normalize", "Show a text as it will be read, all in words."),
    "download": _Listed("vivavoce_hub.command", "download", "Download a published model."),
    "info": _Listed("vivavoce_inspect.info", "info", "Show the contents of a model and its problems."),
    "doctor": _Listed("vivavoce_inspect.doctor", "doctor", "Check this machine, the installation and a model."),
    "plan": _Listed("vivavoce_bench.commands.plan", "plan", "Plan the memory of a GPU, or the GPUs of a service."),
    "serve": _Listed("vivavoce.cli.serve", "serve", "Serve speech over HTTP, WebSockets and gRPC."),
    "config": _Listed("vivavoce.cli.config", "app", "Settings of a server: check, show, schema, example."),
    "keys": _Listed("vivavoce.cli.keys", "app", "API keys of a server: add, list, remove, usage."),
    "client": _Listed("vivavoce_triton.commands.client", "app", "Send requests to a Triton server, one or a load."),
    "triton": _Listed("vivavoce_triton.commands.triton", "app", "Serve with NVIDIA's Triton Inference Server."),
    "export": _Listed("vivavoce_export.commands.export", "app", "Write networks for other runtimes."),
    "bench": _Listed("vivavoce_bench.commands.bench", "app", "Measure latency and throughput under load."),
    "eval": _Listed("vivavoce_bench.commands.evaluate", "evaluate", "Measure the quality of speech."),
    "detect": _Listed("vivavoce_provenance.commands", "detect", "Tell whether recordings carry vivavoce's mark."),
    "sign": _Listed(
        *("vivavoce_provenance.commands", "sign", "Sign audio files as made by a machine (C2PA).", "SIGN_EXAMPLES")
    ),
    "train": _Listed("vivavoce_training.commands", "app", "Fine-tune a model on your recordings."),
}


class DeferredCommand(TyperCommand):
    """A command whose module is imported when the command is used, which keeps help and completion fast."""

    def __init__(self, name: str) -> None:
        self.source = _SOURCES[name]
        super().__init__(name, help=self.source.summary)

    @cached_property
    def loaded(self) -> Any:
        try:
            module = import_module(self.source.module)
        except ModuleNotFoundError as error:
            if error.name != "vivavoce_training":
                raise
            raise MissingDependency(
                "train: the package vivavoce_training is missing; pip install '.[train]' in the repository brings it"
            ) from None
        declared = getattr(module, self.source.attribute)
        holder = typer.Typer(rich_markup_mode=None)
        if isinstance(declared, typer.Typer):
            holder.add_typer(declared, name=self.name)
        else:
            command(holder, *getattr(module, self.source.examples), name=self.name)(declared)
        return typer.main.get_group(holder).commands[self.name or ""]

    def make_context(self, *given: Any, **extra: Any) -> Any:
        return self.loaded.make_context(*given, **extra)


class _Root(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {name: DeferredCommand(name) for name in _SOURCES}})


app = typer.Typer(
    name="vivavoce",
    cls=_Root,
    help="Text to speech with the CosyVoice model family: voice cloning, streaming, voice conversion.",
    epilog=examples('vivavoce speak "Hello there." --play', "vivavoce speak --help"),
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # Options may have _ in place of -. Former names still work, such as --prompt-text for --transcript.
        "token_normalize_func": lambda token: OLD_NAMES.get(token := token.replace("_", "-"), token),
    },
)


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
    if sys.stderr is None:  # closed: the next opened file would get stderr's descriptor, and the messages written to it
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not encode all names
    try:
        with quiet_libraries():
            return _run(given)
    except VivavoceError as error:
        print_error(f"error: {error}")
        return error.exit_code
    except _UsageError as error:
        return _explain_usage(error, given)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_PIPE
    except OSError as error:  # a full disk or a missing permission: a traceback would not help
        print_error(f"error: {error.filename or 'stdout'}: {error.strerror or error}; check the place and its space")
        return EXIT_USAGE
    except Exception as error:  # a defect of the program
        return _explain_defect(error)
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    if _COMPLETE_VARIABLE in os.environ:
        command.main(list(arguments), prog_name="vivavoce", complete_var=_COMPLETE_VARIABLE)
    if arguments[:1] == ["version"]:
        arguments = ["--version"]
    elif arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
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
        command = getattr(command, "loaded", command)
    message = error.format_message().rstrip(".")
    if words == ["vivavoce", "speak"] and "extra argument" in message:
        message += "; put the text in quotes"
    if "No such option" in message and any(one.startswith("-") and not one[1:2].isalpha() for one in arguments):
        message += "; put -- before a text that begins with a dash"
    print_error(f"error: {message}; try `{' '.join(words)} --help`")
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
