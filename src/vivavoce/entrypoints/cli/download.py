"""`vivavoce download`: a published model, fetched once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vivavoce.entrypoints.cli.console import Reporter, print_table, progress, size_text
from vivavoce.entrypoints.cli.flags import QuietOption, argument, flag
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.checkpoint.download import DownloadProgress

EXAMPLES = (
    "vivavoce download CosyVoice2-0.5B",
    "vivavoce download CosyVoice2-0.5B --from modelscope --to ./models/cosyvoice2",
    "vivavoce download --list",
)


def download(
    name: str | None = argument("A published model; --list names them.", "NAME"),
    source: str = flag("hf (Hugging Face) or modelscope.", "HUB", "--from", default="hf"),
    revision: str | None = flag("Branch, tag or commit.  [default: the newest, once]", "REV"),
    to: Path | None = flag("Where to.  [default: the user's own folder of models]", "FOLDER"),
    list_known: bool = flag("List the published models and stop.", None, "--list", default=False),
    quiet: QuietOption = False,
) -> None:
    """Download a published model. What was broken off goes on where it stopped; every file is checked."""
    if list_known:
        _list_known()
        return
    if name is None:
        raise InvalidRequest("model: none is named; `vivavoce download --list` shows the names")
    from vivavoce.checkpoint.download import download as fetch
    from vivavoce.checkpoint.folder import SUPPORTED
    from vivavoce.checkpoint.known_models import known_model

    hubs: dict[str, Literal["hf", "modelscope"]] = {"hf": "hf", "modelscope": "modelscope"}
    if source.lower() not in hubs:
        raise InvalidRequest(f"--from: {source!r} is no hub; choose hf or modelscope")
    reporter, model = Reporter(quiet), known_model(name)
    if model.generation not in SUPPORTED:
        reporter.note(f"{model.name} is of generation {model.generation.value}, which this version cannot run")
    with progress(reporter, size=True) as show:

        def show_file(now: DownloadProgress) -> None:
            line = f"{now.file}: {size_text(now.file_size)} ({size_text(now.total)} in all)"
            show(now.file, now.done, now.total, line)

        folder = fetch(model.name, source=hubs[source.lower()], revision=revision, target=to, progress=show_file)
    reporter.report(f"{model.name} is complete in {folder}")


def _list_known() -> None:
    from vivavoce.checkpoint.folder import SUPPORTED
    from vivavoce.checkpoint.known_models import KNOWN_MODELS, KnownModel, model_folder, read_record

    def state(model: KnownModel) -> str:
        folder = model_folder(model)
        record = read_record(folder)
        if record is not None:
            return "here" if record.is_whole(folder) else "here in part"
        return "to download" if model.generation in SUPPORTED else "not supported"

    rows = [(model.name, model.generation.value, state(model), model.summary) for model in KNOWN_MODELS.values()]
    print_table(rows, ("name", "generation", "state", "what it is"))
