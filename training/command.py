"""`python -m training assemble` and `python -m training test-set`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from training.assemble import assemble as assemble_folder
from training.data.flite import Flite
from training.data.render import source_recording
from training.data.speakers import test_speakers
from training.data.store import SAMPLE_RATE, Speaker
from training.record import log
from training.testset import write_test_set

_Libraries = Annotated[
    Path | None, typer.Option("--flite", help="Folder with flite's libraries; else VIVAVOCE_FLITE, else the system's.")
]


def assemble(
    parts: Annotated[Path, typer.Argument(help="Folder with llm.pt, flow.pt, hift.pt and the two .onnx files.")],
    folder: Annotated[Path, typer.Argument(help="Where the checkpoint goes.")],
    flite: _Libraries = None,
) -> None:
    """Make a checkpoint in the official layout of trained parts, with stored voices that flite speaks."""
    synthesise = Flite(flite)

    def record(speaker: Speaker, text: str) -> NDArray[np.float32]:
        return source_recording(speaker, text, synthesise)

    assemble_folder(parts, folder, record)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    log.info("%s: %.2f MB", folder, size / 1e6)


def record_test_set(
    folder: Annotated[Path, typer.Argument(help="Where lists and recordings go.")],
    sentences: Annotated[Path, typer.Option(help="Held-out sentences, one a line.")] = Path(
        "benchmarks/sentences/held_out.txt"
    ),
    count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 100,
    flite: _Libraries = None,
) -> None:
    """Record held-out speakers for `vivavoce eval`: prompts for cloning, and the sentences themselves as a ceiling."""
    synthesise = Flite(flite)
    lines = sentences.read_text(encoding="utf-8").splitlines()[:count]

    def record(speaker: Speaker, text: str) -> NDArray[np.float32]:
        return source_recording(speaker, text, synthesise)

    write_test_set(folder, lines, test_speakers()[:8], record, SAMPLE_RATE)
    log.info("%s: %d sentences of %d speakers", folder, len(lines), 8)
