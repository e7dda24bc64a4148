"""`python -m training flow`."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from training.configs import checkpoint_config, mini_config
from training.data.store import Corpus
from training.flow.train import FlowRecipe, start_at_mean, train_flow
from training.flow.windows import SpeakerMajor
from training.loop import Budget, Recipe
from training.options import CorpusFolder, Device, Init, OutFolder, PieceSeconds, Rate, Seconds, Seed, Steps
from training.weights import load_part, save_part
from vivavoce.checkpoint.names import FLOW_NAMES
from vivavoce.models.flow.model import Flow


def flow(
    corpus: CorpusFolder,
    out: OutFolder,
    seconds: Seconds = None,
    steps: Steps = None,
    piece_seconds: PieceSeconds = None,
    device: Device = "cuda",
    seed: Seed = 0,
    init: Init = None,
    rate: Rate = 1e-3,
    batch: Annotated[float, typer.Option(help="Factor on the number of windows in a step.")] = 1.0,
) -> None:
    """Train the flow on a corpus with speech tokens and speaker embeddings, from scratch or from a checkpoint."""
    config = checkpoint_config(init) if init else mini_config()
    on = torch.device(device)
    speech = SpeakerMajor.load(Corpus.open(corpus), config.mel, on)
    torch.manual_seed(seed)
    model = Flow(config.flow).to(on)
    if init:
        load_part(model, init, "flow", FLOW_NAMES)
    else:
        start_at_mean(model, speech)
    windows = tuple((size, max(1, round(count * batch))) for size, count in FlowRecipe().windows)
    recipe = FlowRecipe(Recipe(rate, warmup_steps=500), windows=windows)
    budget = Budget(seconds, steps, piece_seconds)
    state = train_flow(model, speech, budget, out, device=on, recipe=recipe, seed=seed)
    save_part(out / "flow.pt", state, FLOW_NAMES)
