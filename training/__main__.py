"""`python -m training COMMAND`: one command per part of the model."""

from __future__ import annotations

import logging
import sys

import typer

from training.command import assemble, record_test_set
from training.data.command import corpus, sentences
from training.encode import encode
from training.finetune.command import pack, prepare_recordings
from training.flow.command import flow
from training.lm.command import lm
from training.speaker.command import speaker
from training.text_tokenizer import text_tokenizer
from training.tokenizer.command import tokenizer
from training.vocoder.command import vocoder
from vivavoce.errors import VivavoceError

app = typer.Typer(
    help="Make the mini model, or train and fine-tune models of its family.", no_args_is_help=True, add_completion=False
)
for command in (corpus, sentences, text_tokenizer, tokenizer, speaker, lm, flow, vocoder, assemble, pack, encode):
    app.command()(command)
app.command("prepare")(prepare_recordings)
app.command("test-set")(record_test_set)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        app()
    except (VivavoceError, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
