"""The options that `vivavoce bench offline` and `vivavoce bench streaming` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli.options import MODEL_VARIABLE

NumTextsOption = Annotated[
    int | None,
    typer.Option(
        "--num-texts", "-n", metavar="NUMBER", min=1, help="Take the first texts only.  [default: all of a list]"
    ),
]
TextFileOption = Annotated[
    Path | None,
    typer.Option("--text-file", "-f", metavar="FILE", help="One text per line.  [default: built-in English sentences]"),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--manifest", "--manifest-path", metavar="FILE", help="Lines of id|prompt text|prompt recording|text, or JSON."
    ),
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--huggingface-dataset",
        metavar="NAME",
        help="With the columns id, prompt_text, prompt_audio, target_text; needs datasets.",
    ),
]
SplitOption = Annotated[
    str | None, typer.Option("--split-name", metavar="NAME", help="Of the data set.  [default: train]")
]
TokensOption = Annotated[
    int | None,
    typer.Option("--tokens", metavar="NUMBER", help="Let speech last exactly so many tokens (25 per second)."),
]
OutputDirOption = Annotated[
    Path | None, typer.Option("--output-dir", metavar="FOLDER", help="Keep the audio as WAV files here.")
]
JsonFileOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is stdout.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        "--token2wav-path",
        metavar="NAME|FOLDER",
        envvar=MODEL_VARIABLE,
        help="A downloaded model or a model folder.  [default: mini, a small demo in English]",
    ),
]
