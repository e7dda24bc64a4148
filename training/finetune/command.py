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
    recordings: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="Folder of audio files, each with a transcript name.txt."),
    ],
    corpus: Annotated[Path, typer.Argument(help="Folder for the corpus.")],
    model: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Checkpoint folder that is to be tuned.")],
) -> None:
    """Turn your recordings into a corpus for fine-tuning; subfolders are speakers."""
    made, skipped = prepare(find_recordings(recordings), model, corpus)
    for one in skipped:
        log.warning("left out %s: %s", one.audio, one.reason)
    speakers = len(set(made.speaker.tolist()))
    log.info("%s: %d recordings, %.2f h, %d speakers", corpus, len(made), made.hours, speakers)


def pack(
    model: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Checkpoint folder that was tuned.")],
    parts: Annotated[Path, typer.Argument(help="Folder with the tuned llm.pt, flow.pt or hift.pt.")],
    out: Annotated[Path, typer.Argument(help="Folder for the tuned checkpoint; it must not exist.")],
) -> None:
    """Copy a checkpoint with its tuned parts in place of the old ones."""
    tuned = [name for name in PARTS if (parts / name).is_file()]
    if not tuned:
        raise typer.BadParameter(f"{parts} holds none of {', '.join(PARTS)}; train one first")
    if out.exists():
        raise typer.BadParameter(f"{out} exists already; name a new folder")
    # Other forms of a tuned part (safetensors, which would be taken first, variants, exports for other programs) are
    # of the old weights.
    shutil.copytree(model, out, ignore=shutil.ignore_patterns(*(f"{Path(name).stem}.*" for name in tuned)))
    for name in tuned:
        shutil.copyfile(parts / name, out / name)
    log.info("%s: %s with tuned %s", out, model.name, ", ".join(tuned))
