"""`python -m training assemble` and `python -m training test-set`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.assemble import assemble as assemble_folder
from training.data.flite import Flite
from training.data.render import source_recording
from training.data.speakers import test_speakers
from training.options import FliteFolder
from training.record import log
from training.testset import Record, write_test_set

NUM_TEST_SPEAKERS = 8
"""Two of each voice, which differ clearly from one another."""


def assemble(
    parts: Annotated[Path, typer.Argument(help="Folder with llm.pt, flow.pt, hift.pt and the two .onnx files.")],
    folder: Annotated[Path, typer.Argument(help="Where the checkpoint goes.")],
    flite: FliteFolder = None,
) -> None:
    """Make a checkpoint in the official layout of trained parts, with stored voices that flite speaks."""
    assemble_folder(parts, folder, _recorder(flite))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    log.info("%s: %.2f MB", folder, size / 1e6)


def record_test_set(
    folder: Annotated[Path, typer.Argument(help="Where lists and recordings go.")],
    sentences: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Held-out sentences, one a line.")
    ] = Path("benchmarks/sentences/held_out.txt"),
    count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 100,
    flite: FliteFolder = None,
) -> None:
    """Record held-out speakers for `vivavoce eval`: prompts for cloning, and the sentences themselves as a ceiling."""
    lines = sentences.read_text(encoding="utf-8").splitlines()[:count]
    speakers = test_speakers()[:NUM_TEST_SPEAKERS]
    write_test_set(folder, lines, speakers, _recorder(flite))
    log.info("%s: %d sentences of %d speakers", folder, len(lines), len(speakers))


def _recorder(libraries: Path | None) -> Record:
    """Speakers as flite and the corpus's rendering give them."""
    synthesise = Flite(libraries)
    return lambda speaker, text: source_recording(speaker, text, synthesise)
