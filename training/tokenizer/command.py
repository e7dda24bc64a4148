"""`python -m training tokenizer`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from training.loop import Budget
from training.options import Device, Seed
from training.tokenizer.run import Sizes, train_tokenizer


def tokenizer(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder; tokens.npy is written into it.")],
    out: Annotated[Path, typer.Argument(help="Folder for state, log, curves and speech_tokenizer_v2.onnx.")],
    seconds: Annotated[float, typer.Option(help="Training time of the whole schedule.")] = 130.0,
    device: Device = "cuda",
    seed: Seed = 0,
    hours: Annotated[float, typer.Option(help="How much of the corpus to learn from.")] = 25.0,
    others: Annotated[
        Path | None, typer.Option(help="Corpus folder of other speakers to measure by; gets tokens.npy too.")
    ] = None,
) -> None:
    """Train the speech tokenizer on a corpus, or go on with it, export it, and write the corpus's speech tokens."""
    sizes = replace(Sizes(), hours=hours)
    train_tokenizer(corpus, out, Budget(seconds=seconds), torch.device(device), seed=seed, others=others, sizes=sizes)
