"""Output of commands: one line per message on stderr, tables on stdout, a spinner on a terminal."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import typer

from vivavoce.errors import InvalidRequest

DEBUG_VARIABLE = "VIVAVOCE_DEBUG"
"""Environment variable; any value but "" and "0" shows tracebacks and library warnings."""

_UNTRAINED_LOGGER = "vivavoce.untrained"
_PIPE_WIDTH = 10_000
TELL_EVERY_S = 10.0
"""Seconds between two lines of progress if stderr is a file or a pipe."""


def debugging() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


def is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()


def one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "�" for character in " ".join(text.split()))


def print_error(text: str) -> None:
    print(one_line(text), file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def size_text(num_bytes: int) -> str:
    for unit, bytes_of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= bytes_of:
            return f"{num_bytes / bytes_of:.3g} {unit}"
    return f"{num_bytes} bytes"


def confirm_removal(field: str, name: str, what: str) -> None:
    """Ask the user. InvalidRequest: stdin is not a terminal. typer.Exit: the user says no."""
    if not is_terminal(sys.stdin):
        raise InvalidRequest(f"{field}: removing {name!r} cannot be undone; confirm it with --yes")
    if not typer.confirm(f"Remove the {what} {name!r} for good?", err=True):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Reporter:
    quiet: bool = False

    def report(self, line: str) -> None:
        if not self.quiet:
            print(one_line(line), file=sys.stderr)

    def note(self, line: str) -> None:
        self.report(f"note: {line}")

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        if self.quiet or not is_terminal(sys.stderr):
            yield lambda _: None
            return
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(text)) as status:
            yield lambda changed: status.update(Text(changed))


Show = Callable[[str, int, int | None, str], None]
"""Shows progress: name of the part, amount done, total amount, and a line that is printed if there is no bar."""


@contextmanager
def progress(reporter: Reporter, *, size: bool = False, share: bool = False, transient: bool = False) -> Iterator[Show]:
    """Yield a function that shows progress. size: in bytes; share: in per cent; transient: hide the finished bar."""
    if reporter.quiet or not is_terminal(sys.stderr):
        begun: set[str] = set()
        told = time.monotonic()

        def say(part: str, done: int, total: int | None, line: str) -> None:
            nonlocal told
            now = time.monotonic()
            if part not in begun and line:
                reporter.report(line)
            elif total and now - told >= TELL_EVERY_S:
                told = now
                reporter.report(f"{part}: {done / total:.0%}")
            begun.add(part)

        yield say
        return
    from rich import progress as rich_progress
    from rich.console import Console

    count = rich_progress.TaskProgressColumn() if share else rich_progress.MofNCompleteColumn()
    columns: list[rich_progress.ProgressColumn] = [
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        *((rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()) if size else (count,)),
        rich_progress.TimeRemainingColumn(),
    ]
    # Parts of a book take minutes each, so the remaining time is estimated from the whole run.
    period_s = 1e9 if share else 30.0
    console = Console(stderr=True)
    with rich_progress.Progress(*columns, console=console, transient=transient, speed_estimate_period=period_s) as bar:
        task = bar.add_task("…", total=None)
        yield lambda part, done, total, _: bar.update(task, description=part, completed=done, total=total)


def print_table(rows: Iterable[Sequence[str]], header: Sequence[str] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header is not None)
    lines = [[one_line(cell) for cell in row] for row in rows]
    for index, title in enumerate(header or [""] * len(lines[0]) if lines else []):
        last = index == len(lines[0]) - 1
        table.add_column(title, no_wrap=not last, overflow="fold" if last else "ellipsis")
    for line in lines:
        table.add_row(*map(Text, line))
    console = Console(width=None if is_terminal(sys.stdout) else _PIPE_WIDTH, highlight=False)
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide warnings of libraries; vivavoce's own warnings become notes. `VIVAVOCE_DEBUG=1` shows all."""
    if debugging():
        yield
        return
    silence, notes = logging.NullHandler(), logging.StreamHandler()
    notes.setFormatter(logging.Formatter("note: %(message)s"))
    notes.setLevel(logging.WARNING)
    # `model.note_if_no_real_model` prints a note instead, after the work.
    notes.addFilter(lambda record: record.name != _UNTRAINED_LOGGER)
    root, own = logging.getLogger(), logging.getLogger("vivavoce")
    root.addHandler(silence)
    own.addHandler(notes)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(silence)
        own.removeHandler(notes)
