"""What the README shows runs."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "code",
    # What asks a server is tried where there is one: tests/entrypoints/http/test_server_docs.py.
    [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "http://" not in code],
)
def test_python_examples_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "hello.wav").stat().st_size > 1000
    assert "real-time factor" in capsys.readouterr().out


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target


def test_commands_exist():
    from vivavoce.entrypoints.cli.main import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    for command in re.findall(r"^(?:\.venv/bin/)?vivavoce (\w+)", README, re.MULTILINE):
        assert command in known, command
