"""`vivavoce download`: a published model, fetched once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, is_terminal, print_table, size_text
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.checkpoint.hub.fill import DownloadProgress

EXAMPLES = options.examples(
    "vivavoce download CosyVoice2-0.5B",
    "vivavoce download CosyVoice2-0.5B --from modelscope --to ./models/cosyvoice2",
    "vivavoce download --list",
)


def download(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A published model; --list names them.")] = None,
    source: Annotated[str, typer.Option("--from", metavar="HUB", help="hf (Hugging Face) or modelscope.")] = "hf",
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit.  [default: the newest, once]")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to.  [default: the user's own folder of models]")
    ] = None,
    list_known: Annotated[bool, typer.Option("--list", help="List the published models and stop.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Download a published model. What was broken off goes on where it stopped; every file is checked."""
    if list_known:
        _list_known()
        return
    if name is None:
        raise InvalidRequest("model: none is named; `vivavoce download --list` shows the names")
    from vivavoce.checkpoint.folder import SUPPORTED
    from vivavoce.checkpoint.hub.download import download as fetch
    from vivavoce.checkpoint.hub.registry import known_model

    reporter, model = Reporter(quiet), known_model(name)
    if model.generation not in SUPPORTED:
        reporter.note(f"{model.name} is of generation {model.generation.value}, which this version cannot run")
    with _progress(reporter) as progress:
        folder = fetch(model.name, source=_hub(source), revision=revision, target=to, progress=progress)
    reporter.report(f"{model.name} is complete in {folder}")


def _hub(source: str) -> Literal["hf", "modelscope"]:
    match source.lower():
        case "hf":
            return "hf"
        case "modelscope":
            return "modelscope"
    raise InvalidRequest(f"--from: {source!r} is no hub; choose hf or modelscope")


def _list_known() -> None:
    from vivavoce.checkpoint.folder import SUPPORTED
    from vivavoce.checkpoint.hub.locate import model_folder
    from vivavoce.checkpoint.hub.record import read_record
    from vivavoce.checkpoint.hub.registry import KNOWN_MODELS, KnownModel

    def state(model: KnownModel) -> str:
        folder = model_folder(model)
        record = read_record(folder)
        if record is not None:
            return "here" if record.is_whole(folder) else "here in part"
        return "to download" if model.generation in SUPPORTED else "not supported"

    rows = [(model.name, model.generation.value, state(model), model.summary) for model in KNOWN_MODELS.values()]
    print_table(rows, ("name", "generation", "state", "what it is"))


@contextmanager
def _progress(reporter: Reporter) -> Iterator[Callable[[DownloadProgress], None]]:
    """What `download` calls with its progress: a bar on a terminal, else a line when a file begins."""
    if reporter.quiet or not is_terminal(sys.stderr):
        yield _lines(reporter)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("asking the hub …", total=None)
        yield lambda now: bar.update(task, description=now.file, completed=now.done, total=now.total)


def _lines(reporter: Reporter) -> Callable[[DownloadProgress], None]:
    begun: set[str] = set()

    def show(now: DownloadProgress) -> None:
        if now.file not in begun:
            begun.add(now.file)
            reporter.report(f"{now.file}: {size_text(now.file_size)} ({size_text(now.total)} in all)")

    return show
