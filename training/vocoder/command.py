"""`python -m training vocoder`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from training.configs import checkpoint_config, mini_config
from training.loop import Budget
from training.options import CorpusFolder, Device, OutFolder, PieceSeconds, Seconds, Seed, Steps
from training.vocoder.run import train_vocoder
from vivavoce.errors import VivavoceError


def vocoder(
    corpus: CorpusFolder,
    out: OutFolder,
    seconds: Seconds = None,
    steps: Steps = None,
    piece_seconds: PieceSeconds = None,
    device: Device = "cuda",
    seed: Seed = 0,
    init: Annotated[
        Path | None,
        typer.Option(help="Start from a checkpoint folder, a hift.pt, or the vocoder.state.pt of a training."),
    ] = None,
    mels: Annotated[
        Path | None, typer.Option(help="The flow's mels of the corpus: .npy, float16 [tokens x 2, 80].")
    ] = None,
) -> None:
    """Train the vocoder on a corpus, or fine-tune one, and write hift.pt."""
    on = torch.device(device)
    if on.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
    config = checkpoint_config(init) if init is not None and init.is_dir() else mini_config()
    budget = Budget(seconds, steps, piece_seconds)
    try:
        train_vocoder(corpus, out, budget, on, config, seed=seed, init=init, flow_mels=mels)
    except (FileNotFoundError, ValueError, VivavoceError) as error:
        raise typer.BadParameter(str(error)) from None
