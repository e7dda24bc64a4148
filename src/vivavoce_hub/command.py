"""The command `vivavoce download`, which fetches a published model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vivavoce.cli.console import Reporter, print_json, print_table, progress, size_text
from vivavoce.cli.flags import JsonOption, QuietOption, argument, flag
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.checkpoint.known_models import KnownModel
    from vivavoce_hub.download import DownloadProgress

EXAMPLES = (
    "vivavoce download CosyVoice2-0.5B",
    "vivavoce download CosyVoice2-0.5B --from modelscope --to ./models/cosyvoice2",
    "vivavoce download --list",
)
_PROGRAM_BYTES = 1_000_000_000


def download(
    name: str | None = argument("A published model; --list names them.", "NAME"),
    source: str = flag("hf (Hugging Face) or modelscope.", "HUB", "--from", default="hf"),
    revision: str | None = flag("Branch, tag or commit.  [default: the newest at the first download]", "REV"),
    to: Path | None = flag("Folder to download to.  [default: NAME in the user's folder of models]", "FOLDER"),
    list_known: bool = flag(
        "List the published models, with sizes and licences, and stop.", None, "--list", default=False
    ),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Download a published model. An interrupted download resumes where it stopped; every file is verified."""
    if list_known:
        _list_known(as_json)
        return
    if as_json:
        raise InvalidRequest("json: belongs to --list; add that, or leave --json out")
    if name is None:
        raise InvalidRequest("model: none is named; `vivavoce download --list` shows the names")
    from vivavoce.checkpoint.known_models import known_model
    from vivavoce_hub.download import download as fetch

    hubs: dict[str, Literal["hf", "modelscope"]] = {"hf": "hf", "modelscope": "modelscope"}
    if source.lower() not in hubs:
        raise InvalidRequest(f"--from: {source!r} is not a known hub; choose hf or modelscope")
    reporter, model = Reporter(quiet), known_model(name)
    with progress(reporter, size=True) as show:

        def show_file(now: DownloadProgress) -> None:
            line = f"{now.file}: {size_text(now.file_size)} ({size_text(now.total)} in all)"
            show(now.file, now.done, now.total, line)

        folder = fetch(model.name, source=hubs[source.lower()], revision=revision, target=to, progress=show_file)
    reporter.report(f"{model.name} is complete in {folder}")


def _list_known(as_json: bool) -> None:
    from vivavoce.checkpoint.known_models import KNOWN_MODELS

    models = [_described(model) for model in KNOWN_MODELS.values()]
    if as_json:
        print_json(models)
        return
    rows = [
        (
            *(one["name"], one["generation"], one["state"]),
            *("–" if size is None else size_text(size) for size in (one["bytes"], one["memory_bytes"])),
            *(one["licence"], one["summary"]),
        )
        for one in models
    ]
    print_table(rows, ("name", "generation", "state", "disk", "RAM (CPU)", "licence", "what it is"))


def _described(model: KnownModel) -> dict[str, Any]:
    """Describe a model in JSON values. bytes: size of the downloaded files, else of the published files, or None."""
    from vivavoce.checkpoint.known_models import is_begun, model_folder, read_record

    folder = model_folder(model)
    record = read_record(folder)
    if record is not None and record.is_whole(folder):
        state = "here"
    elif record is not None or is_begun(folder):
        state = "here in part"
    else:
        state = "to download"
    size = model.num_bytes if record is None else sum(file.size for file in record.files.values())
    return {
        "name": model.name,
        "generation": model.generation.value,
        "state": state,
        "bytes": size,
        # On a CPU, weights take the same memory as on disk: they are float32 in both places.
        "memory_bytes": None if size is None else size + _PROGRAM_BYTES,
        "licence": model.licence,
        "summary": model.summary,
    }
