"""What is typed after `make` reaches the program as it was typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """A program in Python's place that prints its arguments, one representation per line."""
    program = tmp_path / "echo"
    program.write_text(f"#!{sys.executable}\nimport sys\nfor argument in sys.argv[1:]: print(ascii(argument))\n")
    program.chmod(0o755)
    return program


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # -o: take the installation as done.
    command = ["make", "-C", str(ROOT), "--no-print-directory"]
    for stamp in (".venv/.setup", ".venv/.setup-dev", ".venv/.setup-server"):
        command += ["-o", stamp]
    inherited = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [*command, *arguments], env=inherited | environment, capture_output=True, text=True, check=False
    )


def lines(*words: str) -> list[str]:
    return [ascii(word) for word in words]


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        'It\'s "quoted" and `ticked`',
        "$5, $$ and $HOME, $(HOME), $(shell exit 1)",
        "你好，世界。",
        "a\\b # c; d & e | f > g * ~",
        "two\nlines",
        "--help",
        "%s = :=",
    ],
)
@pytest.mark.parametrize("typed", ["after make", "before make"])
def test_any_text_survives(echo: Path, text: str, typed: str) -> None:
    if typed == "after make":
        result = make("speak", f"PYTHON={echo}", f"TEXT={text}")
    else:
        result = make("speak", f"PYTHON={echo}", TEXT=text)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == lines("-m", "vivavoce", "speak", "--out", "out.wav", "--", text)


def test_options_are_passed_when_given(echo: Path) -> None:
    result = make(
        "speak", f"PYTHON={echo}", "TEXT=Hi", "OUT=my file.wav", "VOICE=O'Neil", "PROMPT_TEXT=$1 or 2", "MODEL=a b"
    )
    options = ("--out", "my file.wav", "--voice", "O'Neil", "--prompt-text", "$1 or 2", "--model", "a b")
    assert result.stdout.splitlines() == lines("-m", "vivavoce", "speak", *options, "--", "Hi")


def test_a_server_gets_what_is_given(echo: Path) -> None:
    assert make("serve", f"PYTHON={echo}", HOST="this-machine").stdout.splitlines() == lines("-m", "vivavoce", "serve")
    result = make("serve", f"PYTHON={echo}", "PORT=80 80", "MODEL=a $b", "HOST=::1")
    options = ("--host", "::1", "--port", "80 80", "--model", "a $b")
    assert result.stdout.splitlines() == lines("-m", "vivavoce", "serve", *options)


@pytest.mark.parametrize(("target", "missing"), [("speak", "TEXT="), ("parity", "REFERENCE=")])
def test_what_is_missing_is_said(echo: Path, target: str, missing: str) -> None:
    result = make(target, f"PYTHON={echo}")
    assert result.returncode != 0
    assert result.stdout == ""
    assert result.stderr.startswith(f"usage: make {target} {missing}")


def test_parity_gets_its_folder(echo: Path) -> None:
    result = make("parity", f"PYTHON={echo}", "REFERENCE=/a b/$c")
    assert result.stdout.splitlines() == lines("-m", "tests.parity", "/a b/$c")


def test_help_is_the_default_and_lists_every_command() -> None:
    result = make()
    commands = [line.split()[:2] for line in result.stdout.splitlines()]
    names = "help setup speak serve test test-slow check docs dist parity clients soak clean"
    assert commands == [["make", name] for name in names.split()]


def test_setup_names_what_is_missing(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    old.chmod(0o755)
    for python, said in ((str(old), "python3-venv"), ("no-such-python", "is not installed")):
        # -W: as if the pinned versions had just changed, so that setup has something to do.
        command = ["make", "-C", str(ROOT), "-W", "constraints.txt", "setup", f"PYTHON3={python}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode != 0
        assert result.stderr.startswith("error: ")
        assert said in result.stderr.splitlines()[0]
