"""Whisper as a recogniser, with the package played by a stand-in."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_bench.commands.evaluate import recogniser_factory
from vivavoce_bench.evaluate.recogniser import Task, Whisper, listen, prepare


class StandIn:
    """Hears its model's name, and how long the audio is, in two segments."""

    def __init__(self, model: str, **settings: object) -> None:
        if model == "missing":
            raise RuntimeError("no such model")
        self._model = model

    def transcribe(self, samples: np.ndarray, *, language: str | None, **settings: object) -> tuple[list, None]:
        assert settings["condition_on_previous_text"] is False  # earlier audio must not change the result
        return [SimpleNamespace(text=f" {self._model}"), SimpleNamespace(text=f" {len(samples)} {language}")], None


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("faster_whisper")
    module.WhisperModel = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "faster_whisper", module)


@pytest.mark.usefixtures("package")
def test_segments_are_joined_and_the_model_is_the_named_one() -> None:
    wave = prepare(np.zeros(16_000, np.float32), 16_000)
    (heard,) = listen([Task(wave, ("a",))], recogniser_factory("whisper", "some/folder"))
    assert heard.free == f"some/folder {len(wave)} None"
    assert (heard.closed, heard.phones) == (None, None)
    assert Whisper(language="en").transcribe(np.zeros(8, np.float32)) == "base 8 en"


@pytest.mark.usefixtures("package")
def test_a_model_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"whisper: 'missing' cannot be loaded \(no such model\); name a model"):
        Whisper("missing")


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(MissingDependency, match="pip install faster-whisper"):
        recogniser_factory("whisper")()
