"""`vivavoce keys`: the API keys of a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, is_terminal, print_table
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.service.operations.keys_file import KeyEntry

app = typer.Typer(
    help="API keys of a server: add, list, remove.",
    epilog=options.examples(
        "vivavoce keys add team-a --file keys.toml --requests-per-minute 60", "vivavoce serve --keys keys.toml"
    ),
)

FileOption = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        envvar="VIVAVOCE_AUTH_KEYS_FILE",
        callback=lambda path: Path(os.path.expanduser(path)),  # as the server reads it
        help="The server's file of keys.",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, as logs and traces call it.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    epilog=options.examples(
        "vivavoce keys add team-a --file keys.toml",
        "vivavoce keys add trial --file keys.toml --requests-per-minute 10 --concurrent 2 --expires 2027-01-01",
    )
)
def add(
    name: NameArgument,
    file: FileOption,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose voices it sees and keeps.  [default: its own, under NAME]"),
    ] = None,
    may_publish: Annotated[
        bool, typer.Option("--may-publish", help="It may add and remove voices that everybody sees.")
    ] = False,
    requests_per_minute: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Requests in a minute.  [default: no limit]")
    ] = None,
    characters_per_minute: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Characters of text in a minute.  [default: no limit]")
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Requests at once.  [default: no limit]")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DATE", help="From that day on it is refused.  [default: never]")
    ] = None,
    quiet: options.QuietOption = False,
) -> None:
    """Make a key and print it, this once.

    The file keeps only its SHA-256. A server that runs takes the new key at once.
    """
    from vivavoce.service.operations.keys_writer import add_key, new_entry, new_key

    key = new_key()
    entry = new_entry(
        key,
        name,
        owner=owner,
        may_publish=may_publish,
        requests_per_minute=requests_per_minute,
        characters_per_minute=characters_per_minute,
        concurrent=concurrent,
        expires=expires,
    )
    add_key(file, entry)
    print(key)
    Reporter(quiet).report(f"the key of {name!r} is in {file}; nobody can print it again")


@app.command("list", epilog=options.examples("vivavoce keys list --file keys.toml"))
def list_(file: FileOption) -> None:
    """List the keys: names, owners and limits."""
    from vivavoce.service.operations.keys_file import read_keys

    rows = [_row(entry) for entry in read_keys(file)]
    if rows:
        print_table(rows, ("name", "owner", "publishes", "requests/min", "characters/min", "at once", "expires"))
    else:
        Reporter().report(f"{file} has no key; `vivavoce keys add NAME --file {file}` adds one")


@app.command(epilog=options.examples("vivavoce keys remove team-a --file keys.toml --yes"))
def remove(
    name: NameArgument,
    file: FileOption,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Take a key back. A server that runs refuses it from then on."""
    from vivavoce.service.operations.keys_writer import remove_key

    if not yes:
        if not is_terminal(sys.stdin):
            raise InvalidRequest(f"keys: removing {name!r} cannot be undone; confirm it with --yes")
        if not typer.confirm(f"Remove the key of {name!r} for good?", err=True):
            raise typer.Exit(1)
    remove_key(file, name)
    Reporter(quiet).report(f"the key of {name!r} is removed from {file}")


def _row(entry: KeyEntry) -> tuple[str, ...]:
    allowance = entry.allowance
    limits = (allowance.requests_per_minute, allowance.characters_per_minute, allowance.concurrent)
    return (
        entry.name,
        entry.owner,
        "yes" if entry.may_publish else "no",
        *("–" if limit is None else f"{limit:g}" for limit in limits),
        "never" if entry.expires is None else f"{entry.expires:%Y-%m-%d %H:%M}",
    )
