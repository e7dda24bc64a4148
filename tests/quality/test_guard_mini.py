"""The guard notices faults that are put into the mini model's own speech."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

import vivavoce
from benchmarks.guard import FAULTS, measure
from vivavoce.engine.engine import Engine


@pytest.mark.slow
def test_faults_in_minis_speech_are_noticed() -> None:
    with vivavoce.load() as engine:
        found = measure(engine, 16, seed=1000)
    assert found["faults_of_each"] >= 12, found["alarms"]
    assert set(found["noticed"]) == {*FAULTS, "leak"}
    least = {"skip": 0.8, "leak": 0.7}  # of 236 leaks it notices 91 %
    for fault, share in found["noticed"].items():
        assert share >= least.get(fault, 0.9), found


@pytest.mark.slow
def test_the_heads_of_mini_come_with_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    monkeypatch.setattr(Engine, "find_heads", Mock(side_effect=AssertionError("they are looked for")))
    with vivavoce.load("mini") as tts:
        assert tts.speak("It rained.", word_times=True).words[0].estimated is False
