"""`vivavoce config`: check, show and explain the settings of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from vivavoce.cli.console import Reporter, print_error, print_json, print_table
from vivavoce.cli.flags import JsonOption, QuietOption, argument, command, group
from vivavoce.errors import MissingDependency

app = group(
    "Settings of a server: check, show, schema, example.",
    "vivavoce config example > vivavoce.toml",
    "vivavoce config check vivavoce.toml",
)

_FILE = argument("A TOML file of settings.  [default: $VIVAVOCE_CONFIG, else none]", "FILE")

_EXIT_PROBLEMS = 2


@command(app, "vivavoce config check vivavoce.toml")
def check(file: Path | None = _FILE, quiet: QuietOption = False) -> None:
    """Report all problems of a settings file and the environment.

    Files and folders that the settings name are checked, too. The exit code is 2 if anything is wrong.
    """
    with needs_server():
        from vivavoce.server.settings_checks import advice, missing
        from vivavoce.server.settings_sources import DEFAULT, try_settings, unread_variables
    resolved, problems = try_settings(file, os.environ, {})
    if resolved is not None:
        problems = list(missing(resolved.settings))
    for problem in problems:
        print_error(f"error: {problem}")
    if resolved is None or problems:
        raise typer.Exit(_EXIT_PROBLEMS)
    reporter = Reporter(quiet)
    for line in (*advice(resolved.settings), *unread_variables(os.environ)):
        reporter.note(line)
    given = sum(origin != DEFAULT for origin in resolved.origins.values())
    reporter.report(f"the settings are right: {given} given, {len(resolved.origins) - given} by default")


@command(app, "vivavoce config show vivavoce.toml", "vivavoce config show --json")
def show(file: Path | None = _FILE, as_json: JsonOption = False) -> None:
    """Show every setting and its origin. Passwords are left out."""
    with needs_server():
        from vivavoce.server.settings_sources import plain, resolve_settings, written
    resolved = resolve_settings(file, os.environ)
    values = {name: plain(resolved.value(name)) for name in resolved.origins}
    if as_json:
        shown = {name: {"value": values[name], "origin": origin} for name, origin in resolved.origins.items()}
        print_json(shown)
        return
    rows = [(name, written(values[name]), origin) for name, origin in resolved.origins.items()]
    print_table(rows, ("setting", "value", "origin"))


@command(app, "vivavoce config schema > vivavoce.schema.json")
def schema() -> None:
    """Print the JSON schema of a settings file."""
    with needs_server():
        from vivavoce.server.settings import ServerSettings
    print_json(ServerSettings.model_json_schema())


@command(app, "vivavoce config example > vivavoce.toml")
def example() -> None:
    """Print a settings file with the meaning and the default of every setting."""
    with needs_server():
        from vivavoce.server.settings_sources import example_file
    print(example_file(), end="")


@contextmanager
def needs_server() -> Iterator[None]:
    """Turn a missing package of the server into `MissingDependency`, which says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "vivavoce").partition(".")[0] == "vivavoce":
            raise
        raise MissingDependency(
            f"server: the package {error.name} is missing; pip install 'vivavoce[server]'"
        ) from None
