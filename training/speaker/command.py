"""`python -m training speaker`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from training.loop import Budget
from training.options import Device, Seed
from training.speaker.run import Sizes, train_speaker


def speaker(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder; embeddings.npy is written into it.")],
    out: Annotated[Path, typer.Argument(help="Folder for state, log, curves and campplus.onnx.")],
    seconds: Annotated[float, typer.Option(help="Training time of the whole schedule.")] = 75.0,
    device: Device = "cuda",
    seed: Seed = 0,
    hours: Annotated[float, typer.Option(help="How much of the corpus to learn from.")] = 15.0,
    others: Annotated[
        Path | None, typer.Option(help="Corpus folder of other speakers to measure by; gets embeddings.npy too.")
    ] = None,
) -> None:
    """Train the speaker encoder on a corpus, or go on with it, export it, and write the corpus's embeddings."""
    sizes = replace(Sizes(), hours=hours)
    train_speaker(corpus, out, Budget(seconds=seconds), torch.device(device), seed=seed, others=others, sizes=sizes)
