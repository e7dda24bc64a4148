"""`vivavoce config`: a server's settings, checked, shown and explained."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, print_error, print_table
from vivavoce.errors import MissingDependency

app = typer.Typer(
    help="Settings of a server: check, show, schema, example.",
    epilog=options.examples("vivavoce config example > vivavoce.toml", "vivavoce config check vivavoce.toml"),
)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="A TOML file of settings.  [default: $VIVAVOCE_CONFIG, else none]"),
]

_EXIT_PROBLEMS = 2


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog=options.examples("vivavoce config check vivavoce.toml"))
def check(file: FileArgument = None, quiet: options.QuietOption = False) -> None:
    """Say all that is wrong with a file and the environment.

    Looks at the files and folders that they name, too. Exit code 2 if anything is wrong.
    """
    with needs_server():
        from vivavoce.service.operations.settings_checks import advice, missing
        from vivavoce.service.operations.settings_resolve import DEFAULT, try_settings

        resolved, problems = try_settings(file, os.environ, {})
    if resolved is not None:
        problems = list(missing(resolved.settings))
    for problem in problems:
        print_error(f"error: {problem}")
    if resolved is None or problems:
        raise typer.Exit(_EXIT_PROBLEMS)
    reporter = Reporter(quiet)
    for line in advice(resolved.settings):
        reporter.note(line)
    given = sum(origin != DEFAULT for origin in resolved.origins.values())
    reporter.report(f"the settings are right: {given} given, {len(resolved.origins) - given} by default")


@app.command(epilog=options.examples("vivavoce config show vivavoce.toml", "vivavoce config show --json"))
def show(file: FileArgument = None, as_json: options.JsonOption = False) -> None:
    """Show every setting and where it comes from. Passwords are left out."""
    with needs_server():
        from vivavoce.service.operations.settings_fields import hidden, plain, written
        from vivavoce.service.operations.settings_resolve import resolve_settings

        resolved = resolve_settings(file, os.environ)
    if as_json:
        shown = {
            name: {"value": hidden(plain(resolved.value(name))), "origin": origin}
            for name, origin in resolved.origins.items()
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    values = {name: hidden(resolved.value(name)) for name in resolved.origins}
    rows = [
        (name, "unset" if values[name] is None else written(values[name]), origin)
        for name, origin in resolved.origins.items()
    ]
    print_table(rows, ("setting", "value", "origin"))


@app.command(epilog=options.examples("vivavoce config schema > vivavoce.schema.json"))
def schema() -> None:
    """Print the JSON schema of a settings file."""
    with needs_server():
        from vivavoce.service.operations.settings import ServerSettings

        print(json.dumps(ServerSettings.model_json_schema(), indent=2, ensure_ascii=False))


@app.command(epilog=options.examples("vivavoce config example > vivavoce.toml"))
def example() -> None:
    """Print a settings file with every setting, its meaning and its default."""
    with needs_server():
        from vivavoce.service.operations.settings_text import example_file

        print(example_file(), end="")


@contextmanager
def needs_server() -> Iterator[None]:
    """Say what to install where a package of the server is missing.

    Raises:
        MissingDependency: it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "vivavoce").partition(".")[0] == "vivavoce":
            raise
        raise MissingDependency(
            f"server: the package {error.name} is missing; pip install 'vivavoce[server]'"
        ) from None
