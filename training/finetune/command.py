"""`python -m training prepare` and `python -m training pack`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from training.finetune.prepare import find_recordings, prepare
from training.record import log

PARTS = ("llm.pt", "flow.pt", "hift.pt")


def prepare_recordings(
    recordings: Annotated[Path, typer.Argument(help="Folder of audio files, each with a transcript name.txt.")],
    corpus: Annotated[Path, typer.Argument(help="Folder for the corpus.")],
    model: Annotated[Path, typer.Option(help="Checkpoint folder that is to be tuned.")],
) -> None:
    """Turn your recordings into a corpus for fine-tuning; subfolders are speakers."""
    try:
        made, skipped = prepare(find_recordings(recordings), model, corpus)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    for one in skipped:
        log.warning("left out %s: %s", one.audio, one.reason)
    log.info("%s: %d recordings, %.2f h, %d speakers", corpus, len(made), made.hours, len(made.speakers))


def pack(
    model: Annotated[Path, typer.Argument(help="Checkpoint folder that was tuned.")],
    parts: Annotated[Path, typer.Argument(help="Folder with the tuned llm.pt, flow.pt or hift.pt.")],
    out: Annotated[Path, typer.Argument(help="Folder for the tuned checkpoint; it must not exist.")],
) -> None:
    """Copy a checkpoint with its tuned parts in place of the old ones."""
    tuned = [name for name in PARTS if (parts / name).is_file()]
    if not tuned:
        raise typer.BadParameter(f"{parts} holds none of {', '.join(PARTS)}; train one first")
    if out.exists():
        raise typer.BadParameter(f"{out} exists already; name a new folder")
    shutil.copytree(model, out)
    for name in tuned:
        # A part's safetensors file would be taken before the tuned one.
        (out / name).with_suffix(".safetensors").unlink(missing_ok=True)
        shutil.copyfile(parts / name, out / name)
    log.info("%s: %s with tuned %s", out, model.name, ", ".join(tuned))
