"""Options that several commands share, the voices for these options, and the output of figures."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from vivavoce.cli.console import print_table
from vivavoce.cli.flags import shared
from vivavoce.cli.output import STDOUT, check_writable
from vivavoce.errors import InvalidRequest
from vivavoce_bench.measure import check_drawing, json_text, make_folder, save_json

T = TypeVar("T")

TranscriptsOption = Annotated[
    list[str] | None, shared("Transcript of a recording; one per recording, in order.", "TEXT", "--transcript")
]
TokensOption = Annotated[
    int | None, shared("Exact length of the speech in tokens (25 per second; CosyVoice 1: 50).", "NUMBER", "--tokens")
]
JsonFileOption = Annotated[str | None, shared("Write the results as JSON; - is stdout.", "FILE|-", "--json")]
PlotOption = Annotated[Path | None, shared("Draw a PNG file; needs vivavoce[eval].", "FILE", "--plot")]


def named_voices(
    names: Sequence[str], transcripts: Sequence[str], known: Sequence[str], resolve: Callable[[Any, str], T]
) -> dict[str, T]:
    """Map each name or recording to its voice.

    transcripts: one for each recording in `names`, in order, or an empty list; known: names of stored and built-in
    voices; resolve: (name or recording, transcript) → voice.
    """
    recordings = [name for name in names if unicodedata.normalize("NFC", name) not in known]
    if transcripts and len(transcripts) != len(recordings):
        raise InvalidRequest(
            f"transcript: {len(transcripts)} given for {len(recordings)} recordings among the voices; give one "
            "per recording, in order, or none"
        )
    said = dict(zip(recordings, transcripts, strict=True)) if transcripts else {}
    return {name: resolve(name, said.get(name, "")) for name in names}


def print_figures(
    keys: dict[str, Any], json_file: str | None, *tables: tuple[Sequence[str] | None, Sequence[Sequence[str]]]
) -> None:
    """Print the tables, or JSON if `json_file` is "-". If `json_file` is another name, also save JSON there."""
    if json_file == STDOUT:
        print(json_text(keys))
        return
    for index, (header, rows) in enumerate(tables):
        if index:
            print()
        print_table(rows, header)
    if json_file is not None:
        save_json(keys, Path(json_file))


def check_report_places(json_file: str | None, plot: Path | None = None, folder: Path | None = None) -> None:
    """Create the folder, and check that every output can be written. `plot` needs matplotlib."""
    if json_file not in (None, STDOUT):
        check_writable(Path(str(json_file)), field="json")
    if plot is not None:
        check_drawing()
        check_writable(plot, field="plot")
    if folder is not None:
        make_folder(folder, field="output_dir")
        check_writable(folder / "probe.wav", field="output_dir")
