"""`python -m training` knows its commands, each explains itself, and the README shows them as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from training.__main__ import app

COMMANDS = (
    *("corpus", "sentences", "text-tokenizer", "tokenizer", "speaker", "lm", "flow", "vocoder"),
    *("assemble", "test-set", "prepare", "pack", "encode"),
)
README = Path(__file__).parents[2] / "training" / "README.md"
TEXT = README.read_text(encoding="utf-8")
SHOWN = re.findall(r"python -m training ([a-z][\w-]*)([^`\n]*)", TEXT)


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_listed_explains_itself_and_stands_in_the_readme(command: str) -> None:
    assert f" {command} " in output_of("--help")
    text = output_of(command, "--help")
    assert "Usage:" in text
    assert command in text
    assert command in {name for name, _ in SHOWN}


@pytest.mark.parametrize(("command", "arguments"), SHOWN)
def test_what_the_readme_shows_is_understood(command: str, arguments: str) -> None:
    known = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    options = {option for parameter in known.params for option in parameter.opts}
    assert set(re.findall(r"--[\w-]+", arguments)) <= options


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (README.parent / target).exists(), target
