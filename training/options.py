"""Options that the training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer


def _present(name: str) -> str:
    """Refuse a device that is not there before any work is done."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError):
        raise typer.BadParameter(f"{name!r} is not there; `--device cpu` does for trying out") from None
    return name


FliteFolder = Annotated[
    Path | None,
    typer.Option("--flite", help="Folder with flite's libraries; else VIVAVOCE_FLITE, else the system's."),
]
CorpusFolder = Annotated[Path, typer.Argument(help="Folder of the corpus.")]
OutFolder = Annotated[Path, typer.Argument(help="Folder for weights, logs, curves and the state to continue from.")]
Seconds = Annotated[float | None, typer.Option(help="Length of the whole training, pieces together.")]
Steps = Annotated[int | None, typer.Option(help="Length of the whole training in steps.")]
PieceSeconds = Annotated[float | None, typer.Option(help="End this piece earlier; the next call continues.")]
Device = Annotated[str, typer.Option(callback=_present, help="cuda, cuda:1 or cpu.")]
Seed = Annotated[int, typer.Option(help="Of weights, batches and noise.")]
Init = Annotated[Path | None, typer.Option(help="Checkpoint folder to start from; sizes and tokenizer are its own.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
