"""The default sentences of load tests and of evaluations."""

from __future__ import annotations

from importlib.resources import files


def _read(name: str) -> tuple[str, ...]:
    return tuple((files("vivavoce_bench") / "data" / name).read_text(encoding="utf-8").splitlines())


SENTENCES = _read("load.txt")
"""Plain English without numbers or names, 3 to 34 words long, half of them with 11 or fewer."""
EVALUATION_SENTENCES = _read("evaluation.txt")
"""Plain English, half of it with numbers, times and names; every word is in the CMU dictionary."""
