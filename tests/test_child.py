"""Processes of our own take nothing from the folder in which they are started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from vivavoce.child import python_command


def _run(folder: Path, *arguments: str, **variables: str) -> str:
    """What the command line prints when it is run in this folder."""
    command = python_command("vivavoce.__main__", *arguments)
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    ).stdout


def _plant(folder: Path, name: str, mark: Path) -> None:
    """A module that leaves a mark when it is imported."""
    (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")


def test_modules_in_the_current_folder_are_not_run(tmp_path: Path) -> None:
    for name in ("json", "runpy", "soundfile", "torch", "typer", "vivavoce"):
        _plant(tmp_path, name, tmp_path / "was_run")
    assert _run(tmp_path, "--version").startswith("vivavoce ")
    assert not (tmp_path / "was_run").exists()


def test_pythonpath_holds(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    _plant(tmp_path / "home", "typer", tmp_path / "was_run")
    with_path = subprocess.run(
        python_command("vivavoce.__main__", "--version"),
        env={**os.environ, "PYTHONPATH": str(tmp_path / "home")},
        capture_output=True,
        check=False,
    )
    assert (tmp_path / "was_run").exists(), with_path.stderr


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    assert "vivavoce speak" in _run(tmp_path, "speak", "--help")
