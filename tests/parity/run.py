"""All comparisons of a reference folder."""

from __future__ import annotations

from collections.abc import Iterator

from tests.parity import (
    compare_audio,
    compare_e2e,
    compare_flow,
    compare_full,
    compare_hift,
    compare_llm,
    compare_modes,
    compare_text,
)
from tests.parity.check import Check, Skip, guarded
from tests.parity.reference import Golden, Reference

COMPARISONS = {
    "audio": compare_audio.compare,
    "text": compare_text.compare,
    "modes": compare_modes.compare,
    "llm": compare_llm.compare,
    "flow": compare_flow.compare,
    "hift": compare_hift.compare,
    "e2e": compare_e2e.compare,
    "full": compare_full.compare,
}
GENERATIONS = ("v1", "v2", "v3")


def compare_all(reference: Reference, only: str = "") -> Iterator[Check | Skip]:
    """Every golden that the folder holds, and a Skip for each one that cannot be compared, with the reason."""
    for golden in reference.goldens():
        if only in golden.label:
            yield from compare_one(golden, reference)


def compare_one(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    if golden.stage not in COMPARISONS:
        yield Skip(golden.label, "no comparison for this kind of file")
        return
    if golden.checkpoint is not None:
        manifest, _ = golden.checkpoint
        if missing := reference.missing(manifest):
            yield Skip(golden.label, missing)
            return
        generation = reference.generation(manifest)
        if generation not in GENERATIONS:
            yield Skip(golden.label, f"of generation {generation}, which does not speak yet")
            return
    yield from guarded(golden.label, COMPARISONS[golden.stage](golden, reference))
    for name in sorted(golden.arrays.names - golden.arrays.used):
        yield Skip(f"{golden.label} {name}", "arrays that no comparison reads")
