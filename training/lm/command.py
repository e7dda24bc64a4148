"""`python -m training lm`."""

from __future__ import annotations

import time
from typing import Annotated

import torch
import typer

from training.configs import MINI, checkpoint_config, mini_config
from training.data.store import Corpus
from training.lm.sequences import build_rows
from training.lm.train import LMRecipe, train_lm
from training.loop import Budget, Recipe
from training.options import CorpusFolder, Device, Init, OutFolder, PieceSeconds, Rate, Seconds, Seed, Steps
from training.record import log
from training.weights import load_part, save_part
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.names import LM_NAMES
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.service.text.tokenizer import TextTokenizer

LENGTHS = (160, 288, 512)
"""Positions of a training row."""


def lm(
    corpus: CorpusFolder,
    out: OutFolder,
    seconds: Seconds = None,
    steps: Steps = None,
    piece_seconds: PieceSeconds = None,
    device: Device = "cuda",
    seed: Seed = 0,
    init: Init = None,
    rate: Rate = 1e-3,
    sequences: Annotated[int, typer.Option(help="Training sequences to draw from the corpus.")] = 300_000,
    positions: Annotated[int, typer.Option(help="Positions in one step.")] = 24_576,
    dropout: Annotated[float, typer.Option(help="Share of the layers' output that is dropped.")] = 0.1,
) -> None:
    """Train the language model on a corpus with speech tokens, from scratch or from a checkpoint (--init)."""
    started = time.monotonic()
    source = Corpus.open(corpus)
    folder = init or MINI
    config = (checkpoint_config(init) if init else mini_config()).lm
    tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
    rows = build_rows(source, tokenizer.encode, config, LENGTHS, sequences, seed)
    held = build_rows(source, tokenizer.encode, config, LENGTHS, max(64, sequences // 100), seed, validation=True)
    log.info("lm: %s sequences in %.0f s", [len(one) for one in rows], time.monotonic() - started)
    model = SpeechLM(config)
    if init:
        load_part(model, init, "llm", LM_NAMES)
    else:
        torch.manual_seed(seed)
        for table in (model.text_embedding, model.speech_embedding, model.control_embedding):
            torch.nn.init.normal_(table.weight, std=0.02)
    recipe = LMRecipe(Recipe(rate, warmup_steps=500, weight_decay=0.05), positions_per_step=positions, dropout=dropout)
    budget = Budget(seconds, steps, piece_seconds)
    state = train_lm(model, rows, held, budget, out, device=torch.device(device), recipe=recipe, seed=seed)
    save_part(out / "llm.pt", state, LM_NAMES)
