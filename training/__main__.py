"""`python -m training COMMAND`: one command per part of the model."""

from __future__ import annotations

import logging
import sys

import typer

from training.commands import (
    assemble,
    corpus,
    encode,
    flow,
    lm,
    pack,
    prepare_recordings,
    record_test_set,
    sentences,
    speaker,
    tokenizer,
    vocoder,
)
from training.text_tokenizer import text_tokenizer
from vivavoce.entrypoints.cli.flags import with_flags
from vivavoce.errors import VivavoceError

app = typer.Typer(
    help="Make the mini model, or train and fine-tune models of its family.", no_args_is_help=True, add_completion=False
)
for command in (corpus, sentences, text_tokenizer, tokenizer, speaker, lm, flow, vocoder, assemble, pack, encode):
    app.command(command.__name__.replace("_", "-"))(with_flags(command))
app.command("prepare")(prepare_recordings)
app.command("test-set")(record_test_set)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        app()
    except (VivavoceError, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
