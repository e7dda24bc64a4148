"""`python -m training corpus` and `python -m training sentences`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from training.data import build as corpus_build
from training.data.flite import Flite
from training.data.speakers import train_speakers
from training.data.texts.mix import held_out, training_texts
from training.data.texts.wordnet import WordNet
from training.options import FliteFolder
from training.record import log

_Wordnet = Annotated[
    Path | None, typer.Option(help="Folder with WordNet's data files; else VIVAVOCE_WORDNET, else the system's.")
]


def corpus(
    folder: Annotated[Path, typer.Argument(help="Where the corpus goes.")],
    hours: Annotated[float, typer.Option(min=0.001, help="Hours of audio.")] = 80.0,
    speakers: Annotated[int, typer.Option(min=1, help="Speakers, drawn evenly over flite's four voices.")] = 320,
    seed: Annotated[int, typer.Option(help="Decides texts, speakers and the draws in the sound.")] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes; else one per core.")] = None,
    flite: FliteFolder = None,
    wordnet: _Wordnet = None,
    sentences_only: Annotated[
        int | None, typer.Option(min=1, help="Write this many texts to FOLDER/sentences.txt and nothing else.")
    ] = None,
) -> None:
    """Speak sentences with flite's voices, changed into many speakers, and write them down with their phones."""
    started = time.monotonic()
    texts = training_texts(WordNet.read(wordnet), seed)
    if sentences_only is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_lines(folder / "sentences.txt", islice(texts, sentences_only))
        return
    with Progress(
        TextColumn("{task.fields[said]}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        task = bar.add_task("corpus", total=hours, said="starting")
        built = corpus_build.build(
            folder,
            hours,
            train_speakers(speakers, seed),
            texts,
            seed,
            jobs,
            partial(Flite, flite),
            lambda done: bar.update(
                task,
                completed=done.hours,
                said=f"{done.hours:.2f} h, {done.utterances} utterances, {done.failed} failed",
            ),
        )
    seconds = time.monotonic() - started
    log.info(
        "corpus: %d utterances, %.2f hours, %d speakers, %.0f s (%.2f s per hour of audio)",
        len(built), built.hours, speakers, seconds, seconds / built.hours,
    )  # fmt: skip


def sentences(
    file: Annotated[Path, typer.Argument(help="Where the sentences go, one a line.")],
    count: Annotated[int, typer.Option(min=2, help="How many; half from WordNet, half from the grammar.")] = 200,
    seed: Annotated[int, typer.Option(help="Decides which.")] = 7,
    known_words: Annotated[
        Path | None, typer.Option(help="A dictionary, its word first on each line: no other words are used.")
    ] = None,
    wordnet: _Wordnet = None,
) -> None:
    """Write sentences for tests; the corpus never has any of them."""
    known = None
    if known_words is not None:
        lines = known_words.read_text(encoding="utf-8").splitlines()
        known = {line.split()[0].lower() for line in lines if line.strip()}
    _write_lines(file, held_out(WordNet.read(wordnet), count, seed, known))


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
