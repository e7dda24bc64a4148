"""The models that the program brings along: made, made again, or explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivavoce.errors import CheckpointError
from vivavoce.frontend.model_choice import BABBLE, model_folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the default model goes."""
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "models" / BABBLE


def test_it_has_a_name(place: Path, tmp_path: Path) -> None:
    assert model_folder("babble") == model_folder("Babble") == place
    (tmp_path / "babble").mkdir()
    assert model_folder("babble") == Path("babble")


def test_an_empty_folder_is_filled(place: Path) -> None:
    place.mkdir(parents=True)
    assert (model_folder("babble") / "llm.pt").is_file()


@pytest.mark.parametrize("lost", ["llm.pt", "vivavoce.json", "CosyVoice-BlankEN/merges.txt"])
def test_a_broken_one_says_what_to_do(place: Path, lost: str) -> None:
    (model_folder("babble") / lost).unlink()
    with pytest.raises(CheckpointError, match=f"^model: {place} is not the whole model babble; remove it"):
        model_folder("babble")


def test_a_home_that_cannot_be_written_says_what_to_do(place: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(CheckpointError, match=f"^model: {place} cannot be written .*; set VIVAVOCE_HOME"):
        model_folder("babble")
