"""Compare two results of one benchmark, and list each figure that got worse by more than equal runs differ.

    python -m benchmarks.compare benchmarks/results/gpu/h200-loads.json /tmp/figures/gpu.json
    python -m benchmarks.compare OLD.json NEW.json --noise 0.05    # noise that you measured

The exit code is 1 if a figure is worse, or missing in the new file. The unit in a figure's name tells whether higher or
lower is better, and how much equal runs on one machine differ, the noise (`UNITS`). A file of repeated runs
(`benchmarks.gpu --repeat`) has each figure's minimum and maximum under `spread`: if they differ by more than the noise,
this difference is used. Figures without such a unit are settings, counts or descriptions, and are not compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAME_MACHINE = ("hardware", "device", "generation", "torch")
"""Keys whose values must be equal in both files."""


@dataclass(frozen=True)
class Unit:
    """The unit of figures whose names contain the pattern.

    noise: relative difference between equal runs on one machine; least: smallest difference that counts, in the
    figure's own unit.
    """

    pattern: str
    noise: float
    higher_is_better: bool = False
    least: float = 0.0


UNITS = (
    Unit(r"audio_s_per_s", 0.04, higher_is_better=True),  # 723 … 740 in equal runs, 3 % more between machines
    Unit(r"_tflops?\b|_gb_per_s|_per_s(?:_|$)", 0.05, higher_is_better=True),
    Unit(r"margin_ms", 0.15, higher_is_better=True, least=20.0),
    Unit(r"ttfb_ms_p99", 0.25, least=5.0),  # with few requests, the slowest one
    Unit(r"_ms(?:_|$)", 0.10, least=0.5),
    Unit(r"_rtf$|^rtf$", 0.10),
    Unit(r"_(?:failed|refused|underruns|underrun_requests)$", 0.0),
    Unit(r"^start_.*_s$", 0.20, least=2.0),
    Unit(r"_bytes$|_gb$", 0.03),
)
"""A figure has the first unit whose pattern fits its name."""


@dataclass(frozen=True)
class Worse:
    """A figure that got worse; new: None if it is missing; noise: the relative difference that is allowed."""

    name: str
    old: float
    new: float | None
    noise: float

    def __str__(self) -> str:
        if self.new is None:
            return f"{self.name}: {self.old:g} before, missing now"
        change = f"{(self.new - self.old) / abs(self.old):+.1%}" if self.old else "from nothing"
        return f"{self.name}: {self.old:g} before, {self.new:g} now ({change}, noise {self.noise:.1%})"


def main() -> None:
    """Print figures that are worse; exit code 1 if there are any, 2 if the files cannot be compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="result file of the version before")
    parser.add_argument("new", type=Path, help="result file of this version")
    parser.add_argument("--noise", type=float, help="relative difference between equal runs, for all units")
    options = parser.parse_args()
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (options.old, options.new))
    for key in SAME_MACHINE:
        if old.get(key) != new.get(key):
            print(f"{key}: {old.get(key)} and {new.get(key)}; measure both on one machine", file=sys.stderr)
            sys.exit(2)
    found = list(worse(old, new, options.noise))
    for one in found:
        print(one)
    print(f"{len(found)} of {len(compared(old))} figures are worse")
    sys.exit(bool(found))


def worse(old: Mapping[str, Any], new: Mapping[str, Any], noise: float | None = None) -> Iterator[Worse]:
    """Each figure of `old` that is missing in `new`, or worse there by more than the noise."""
    for name in compared(old):
        unit, before, now = unit_of(name), old[name], new.get(name)
        assert unit is not None
        allowed = max(unit.noise if noise is None else noise, _spread(old, name), _spread(new, name))
        if not _is_number(now):
            yield Worse(name, before, None, allowed)
            continue
        lost = (now - before) * (-1 if unit.higher_is_better else 1)
        if lost > max(allowed * abs(before), unit.least):
            yield Worse(name, before, now, allowed)


def compared(figures: Mapping[str, Any]) -> list[str]:
    """Names of the figures of a file that are compared."""
    return [name for name, value in figures.items() if unit_of(name) is not None and _is_number(value)]


def unit_of(name: str) -> Unit | None:
    """The unit of a figure; None: it is not compared."""
    return next((unit for unit in UNITS if re.search(unit.pattern, name)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spread(figures: Mapping[str, Any], name: str) -> float:
    """Relative difference of a figure between repeated runs of one version."""
    least, most = figures.get("spread", {}).get(name, (0.0, 0.0))
    return (most - least) / abs(figures[name]) if most > least and figures[name] else 0.0


if __name__ == "__main__":
    main()
