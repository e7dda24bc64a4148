"""docs/python.md: its examples run, and it has every public name with the arguments that it takes."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vivavoce

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_its_examples_run(tmp_path, monkeypatch, capsys):
    for name in ("me.wav", "said.wav"):
        shutil.copy(ROOT / "tests" / "data" / "audio" / "speech_24k_float.wav", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path / "home"))
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "python.md", "exec"), names)
    printed = capsys.readouterr().out
    for words in ("request: was cancelled", "It is eleven forty two.", "voice_not_found voice: 'nobody' is", "'anna'"):
        assert words in printed
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".wav", ".mp3", ".srt", ".vtt"}
    names["tts"].close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("called", "owner"),
    [("vivavoce", vivavoce), ("tts", vivavoce.Vivavoce), ("speech", vivavoce.Speech), ("chunks", vivavoce.ChunkStream)],
)
def test_it_has_every_public_name(called, owner):
    served = {"start", "events", "on_heard", "verdict"}  # of a stream, for servers
    for name in getattr(owner, "__all__", None) or [name for name in dir(owner) if not name.startswith("_")]:
        member = getattr(owner, name)
        if called == "vivavoce" and name != "load":
            assert f"`{name}`" in PAGE
        elif inspect.isfunction(member) and name not in served:
            signature = inspect.signature(member)
            parameters = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
            taken = inspect.Signature(parameters[called != "vivavoce" :])
            shown = str(taken).replace("<AudioFormat.WAV: 'wav'>", "'wav'")
            assert f"{called}.{name}{shown}`" in " ".join(PAGE.split())
        elif isinstance(member, property):
            assert f"`{called}.{name}`" in PAGE


def test_a_typed_program_is_understood_by_mypy():
    """As `make check` does, whose cache it shares."""
    command = [sys.executable, "-m", "mypy", "tests/typed_use.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
