"""Programs of ours take nothing from the folder in which they are started; a program of the user's keeps its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vivavoce.child import python_command
from vivavoce_books.commands import USUAL_SHAPES

COMMAND_LINE = "vivavoce.__main__"
SPEAKS = """
import vivavoce, words
with vivavoce.load({model!r}, device="cpu", voices={voices!r}, text_processes=1) as tts:
    speech = tts.speak(words.TEXT, sampling=vivavoce.SamplingParams(max_ratio=2.0))
print(len(speech.samples) > 0)
"""


def _run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)


def test_modules_in_the_current_folder_are_not_run(planted: Path) -> None:
    (planted / "typing.py").write_text("raise SystemExit('not the library')\n")
    assert _run(sys.executable, "-m", "vivavoce", "--version").stdout.startswith("vivavoce ")
    for name in ("runpy", "vivavoce"):  # what `python -m` runs before our first line
        (planted / f"{name}.py").write_text("raise SystemExit('not the library')\n")
    assert _run(*python_command(COMMAND_LINE, "--version")).stdout.startswith("vivavoce ")


@pytest.mark.slow
def test_a_program_of_the_user_s_keeps_its_path_and_starts_none_with_the_current_folder(
    planted: Path, babble: Path, tmp_path: Path
) -> None:
    home = tmp_path / "program"
    home.mkdir()
    (home / "words.py").write_text("TEXT = 'Hi.'\n")
    (home / "program.py").write_text(SPEAKS.format(model=str(babble), voices=str(tmp_path / "voices")))
    ended = _run(sys.executable, home / "program.py")
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_pythonpath_holds(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit('a typer of my own')\n")
    assert "a typer of my own" in _run(*python_command(COMMAND_LINE, "--version"), PYTHONPATH=str(tmp_path)).stderr


def test_arguments_arrive_as_they_are() -> None:
    assert "vivavoce speak" in _run(*python_command(COMMAND_LINE, "speak", "--help")).stdout


@pytest.mark.parametrize(
    ("variable", "limit"), [("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256"), ("LRU_CACHE_CAPACITY", USUAL_SHAPES)]
)
def test_a_users_own_limit_of_compiled_shapes_stays(variable: str, limit: str) -> None:
    command = [sys.executable, "-c", f"import os, vivavoce; print(os.environ['{variable}'])"]
    for given, expected in (({}, limit), ({variable: "32"}, "32")):
        environment = {name: value for name, value in os.environ.items() if name != variable} | given
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == expected


SPINS = "import os{}, vivavoce; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("before", "variables", "spins"),
    [
        ("", {}, "10000"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "active"}, "None"),
        ("", {"KMP_BLOCKTIME": "0"}, "None"),
        (", sys; sys.modules['torch'] = sys; import os", {}, "None"),  # too late: it has read them
    ],
)
def test_openmp_waits_briefly_unless_the_user_says_otherwise(
    before: str, variables: dict[str, str], spins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert _run(sys.executable, "-c", SPINS.format(before), **variables).stdout.strip() == spins
