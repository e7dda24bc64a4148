"""The default sentences of load tests and evaluations."""

from __future__ import annotations

from importlib.resources import files


def _read(name: str) -> tuple[str, ...]:
    return tuple((files("vivavoce_bench") / "data" / name).read_text(encoding="utf-8").splitlines())


SENTENCES = _read("load.txt")
"""Simple English without numbers or names. Sentences have 3 to 34 words, half of them 11 or fewer."""
EVALUATION_SENTENCES = _read("evaluation.txt")
"""Simple English, half of it with numbers, times and names. Every word is in the CMU dictionary."""
