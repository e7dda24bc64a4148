"""`python -m training COMMAND`: one command per part of the model."""

from __future__ import annotations

import logging

import typer

from training.data.command import corpus
from training.flow.command import flow
from training.lm.command import lm
from training.speaker.command import speaker
from training.tokenizer.command import tokenizer
from training.vocoder.command import vocoder

app = typer.Typer(
    help="Make the mini model, or train and fine-tune models of its family.", no_args_is_help=True, add_completion=False
)
for command in (corpus, tokenizer, speaker, lm, flow, vocoder):
    app.command()(command)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    app()
