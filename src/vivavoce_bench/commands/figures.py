"""Print figures as tables or JSON, and check where reports and audio are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivavoce.cli.console import print_table
from vivavoce.cli.output import STDOUT, check_writable
from vivavoce_bench.measure import check_drawing, json_text, make_folder, save_json


def print_figures(
    keys: dict[str, Any], json_file: str | None, *tables: tuple[Sequence[str] | None, Sequence[Sequence[str]]]
) -> None:
    """Print the tables, or JSON if `json_file` is "-"; otherwise also save JSON if a file is named."""
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
    """Make the folder and check that every output can be written. `plot` needs matplotlib."""
    if json_file not in (None, STDOUT):
        check_writable(Path(str(json_file)), field="json")
    if plot is not None:
        check_drawing()
        check_writable(plot, field="plot")
    if folder is not None:
        make_folder(folder, field="output_dir")
        check_writable(folder / "probe.wav", field="output_dir")
