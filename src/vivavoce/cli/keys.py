"""`vivavoce keys`: manage the API keys of a server."""

from __future__ import annotations

import fileinput
import os
import time
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.cli.console import Reporter, confirm_removal, print_json, print_table
from vivavoce.cli.flags import REQUIRED, JsonOption, QuietOption, argument, command, flag, group
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.server.keys import KeyEntry

app = group(
    "API keys of a server: add, list, remove, usage.",
    "vivavoce keys add team-a --file keys.toml --requests-per-minute 60",
    "vivavoce serve --keys keys.toml",
)

_FILE = flag(
    "The server's file of keys.",
    "FILE",
    "-f",
    default=REQUIRED,
    envvar="VIVAVOCE_AUTH_KEYS_FILE",
    callback=lambda path: Path(os.path.expanduser(path)),  # expands ~, as the server does
)
_NAME = argument("Name of the key, shown in logs and traces.", "NAME", default=REQUIRED)


@command(
    app,
    "vivavoce keys add team-a --file keys.toml",
    "vivavoce keys add trial --file keys.toml --requests-per-minute 10 --concurrent 2 --expires 2027-01-01",
)
def add(
    name: str = _NAME,
    file: Path = _FILE,
    owner: str | None = flag("Owner of the voices that the key can use and add.  [default: NAME]", "NAME"),
    may_publish: bool = flag("Allow adding and removing voices that all keys can use.", default=False),
    requests_per_minute: float | None = flag("Requests per minute.  [default: no limit]", "NUMBER"),
    characters_per_minute: float | None = flag("Characters of text per minute.  [default: no limit]", "NUMBER"),
    concurrent: int | None = flag("Concurrent requests.  [default: no limit]", "NUMBER"),
    priority: str | None = flag("live or batch; batch requests use only time that live ones leave.", "PRIORITY"),
    jobs: int | None = flag("Jobs that are kept at once.  [default: the server's setting]", "NUMBER"),
    job_characters: int | None = flag("Characters of unfinished jobs.  [default: the server's setting]", "NUMBER"),
    expires: str | None = flag("Refuse the key from this day on, such as 2027-01-01.  [default: never]", "DATE"),
    quiet: QuietOption = False,
) -> None:
    """Create a key and print it, only this once.

    The file keeps only the key's SHA-256 hash. A running server accepts the new key at once.
    """
    from vivavoce.server.keys import add_key, new_entry, new_key

    key = new_key()
    limits = {"requests_per_minute": requests_per_minute, "characters_per_minute": characters_per_minute}
    others = {
        **limits,
        "priority": priority,
        "jobs": jobs,
        "job_characters": job_characters,
        "concurrent": concurrent,
        "owner": owner,
        "may_publish": may_publish,
        "expires": expires,
    }
    entry = new_entry(key, name, **others)
    if entry.has_expired(time.time()):
        raise InvalidRequest(f"expires: {expires} is past, so the key could not be used; give a future day")
    add_key(file, entry)
    print(key)
    Reporter(quiet).report(f"the key of {name!r} is in {file}; it cannot be printed again")


@command(app, "vivavoce keys list --file keys.toml", "vivavoce keys list --file keys.toml --json", name="list")
def list_(file: Path = _FILE, as_json: JsonOption = False) -> None:
    """List the keys with their owners and limits."""
    from vivavoce.server.keys import read_keys

    entries = read_keys(file)
    if as_json:
        shown = [{**asdict(one), "expired": one.has_expired(time.time())} for one in entries]
        for one in shown:
            del one["sha256"]
        print_json(shown)
    elif rows := [_row(entry) for entry in entries]:
        print_table(rows, ("name", "owner", "publishes", "requests/min", "characters/min", "at once", "expires"))
    else:
        Reporter().report(f"{file} has no key; `vivavoce keys add NAME --file {file}` adds one")


@command(app, "vivavoce keys remove team-a --file keys.toml --yes")
def remove(
    name: str = _NAME,
    file: Path = _FILE,
    yes: bool = flag("Do not ask.", None, "-y", default=False),
    quiet: QuietOption = False,
) -> None:
    """Revoke a key. A running server refuses it from then on."""
    from vivavoce.server.keys import remove_key

    if not yes:
        confirm_removal("keys", name, "key of")
    remove_key(file, name)
    Reporter(quiet).report(f"the key of {name!r} is removed from {file}")


@command(
    app,
    "journalctl -u vivavoce -o cat --since -30days | vivavoce keys usage",
    "docker compose logs --no-log-prefix vivavoce | vivavoce keys usage",
    "vivavoce keys usage server.log server.log.1 --json",
)
def usage(
    logs: list[Path] = argument("JSON logs of a server.  [default: stdin]", "LOG", default=None),
    as_json: JsonOption = False,
) -> None:
    """Add up the use of each key from a server's log.

    The log must be in JSON (setting logging.format). The result covers the same time as the log.
    """
    from vivavoce.server.request_log import usage_in

    try:
        with fileinput.input(logs or ("-",), errors="replace") as lines:
            found = usage_in(lines)
    except OSError as error:
        raise InvalidRequest(f"log: {error.filename} cannot be read ({error.strerror}); name another file") from None
    if as_json:
        print_json({name: asdict(used) for name, used in found.items()})
    elif found:
        rows = [(name or "–", *map(str, astuple(used))) for name, used in sorted(found.items())]
        print_table(rows, ("name", "requests", "refused", "characters", "audio [s]", "last"))
    else:
        Reporter().report("the log has no request for speech; the server writes them with --log-format json")


def _row(entry: KeyEntry) -> tuple[str, ...]:
    expired = " expired" if entry.has_expired(time.time()) else ""
    limits = (entry.requests_per_minute, entry.characters_per_minute, entry.concurrent)
    return (
        entry.name,
        entry.owner,
        "yes" if entry.may_publish else "no",
        *("–" if limit is None else f"{limit:g}" for limit in limits),
        "never" if entry.expires is None else f"{entry.expires:%Y-%m-%d %H:%M}{expired}",
    )
