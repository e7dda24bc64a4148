"""Records of a training: a log of JSON lines, lines on the terminal, and a picture of the curves."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("training")


@contextmanager
def shown() -> Iterator[None]:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def write_measures(part: str, folder: Path, measures: Mapping[str, Mapping[str, float]]) -> None:
    """Log the measures of a finished part, a line for each corpus, and write `folder/part.measures.json`."""
    for name, found in measures.items():
        log.info("%s: %s  %s", part, name, "  ".join(f"{key} {value:.4g}" for key, value in found.items()))
    (folder / f"{part}.measures.json").write_text(json.dumps(measures, indent=1), encoding="utf-8")


class Record:
    """Writes the log of one part, `folder/part.log.jsonl` (a later run appends), and its curves, `folder/part.png`."""

    def __init__(self, folder: Path, part: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._part, self._path, self._picture = part, folder / f"{part}.log.jsonl", folder / f"{part}.png"
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def note(self, text: str) -> None:
        log.info("%s: %s", self._part, text)

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add one step's scalars to the sums, which stay on the device."""
        for name, value in values.items():
            if name in self._sums:
                self._sums[name] += value
                self._counts[name] += 1
            else:
                self._sums[name], self._counts[name] = value.clone(), 1

    def flush(self, step: int, seconds: float, rate: float, steps_per_s: float) -> None:
        """Write the means of the values that were added since the last line of the log."""
        import torch

        means = {name: round(float(total) / self._counts[name], 5) for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        entry = {"step": step, "seconds": round(seconds, 1), "lr": rate, "steps_per_s": round(steps_per_s, 2), **means}
        if torch.cuda.is_available():
            entry["gpu_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        self._write(entry)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in means.items())
        self.note(f"step {step}  {seconds:.0f} s  {steps_per_s:.1f} steps/s  lr {rate:.1e}  {shown}")

    def validation(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        named = {f"valid_{name}": round(value, 5) for name, value in values.items()}
        self._write({"step": step, "seconds": round(seconds, 1), **named})
        self.note(f"step {step}  " + "  ".join(f"{name} {value:.4g}" for name, value in named.items()))

    def _write(self, entry: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def plot(self) -> None:
        """Draw every logged value over the steps; without matplotlib the picture is left out."""
        try:
            import matplotlib
        except ImportError:
            self.note("draws no curves, as matplotlib is not installed")
            return
        matplotlib.use("Agg")
        from matplotlib import pyplot

        entries = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        fixed = {"step", "seconds", "lr", "steps_per_s", "gpu_gib"}
        names = sorted({name for entry in entries for name in entry} - fixed)
        if not names:
            return  # the training ended before its first line in the log
        columns = min(4, len(names))
        rows = -(-len(names) // columns)
        figure, axes = pyplot.subplots(rows, columns, figsize=(4 * columns, 2.6 * rows), squeeze=False)
        for axis, name in zip(axes.flat, names, strict=False):
            points = [(entry["step"], entry[name]) for entry in entries if name in entry]
            axis.plot(*zip(*points, strict=True))
            axis.set_title(name, fontsize=9)
        for axis in axes.flat[len(names) :]:
            axis.axis("off")
        figure.tight_layout()
        figure.savefig(self._picture, dpi=80)
        pyplot.close(figure)
