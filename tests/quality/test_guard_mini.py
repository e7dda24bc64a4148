"""The guard notices faults that are put into the mini model's own speech."""

from __future__ import annotations

import pytest

import vivavoce
from benchmarks.guard import FAULTS, measure


@pytest.mark.slow
def test_faults_in_minis_speech_are_noticed() -> None:
    with vivavoce.load() as engine:
        found = measure(engine, 8, seed=1000)
    assert found["faults_of_each"] >= 6, found["alarms"]
    assert set(found["noticed"]) == {*FAULTS, "leak"}
    for fault, share in found["noticed"].items():
        assert share >= (0.8 if fault == "skip" else 0.9), found
