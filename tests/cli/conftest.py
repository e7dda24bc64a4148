"""One default model for all tests of the command line, and a home of its own for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.cli.cli_harness import AUDIO, MADE, Result, Run, Stream
from vivavoce import api
from vivavoce.cli.main import main
from vivavoce.engine.engine import Engine
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import BABBLE

Loaded = tuple[Engine, FrontEnd]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, own_babble: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """VIVAVOCE_HOME with the default model in it, and an empty working folder."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / BABBLE).symlink_to(own_babble)
    monkeypatch.setenv("VIVAVOCE_HOME", str(home))
    monkeypatch.setenv("VIVAVOCE_MODEL", "babble")
    for name in ("VIVAVOCE_VOICES", "VIVAVOCE_DEBUG", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("vivavoce.frontend.audio.tag.utc_now", lambda: MADE)  # so that equal files are equal
    return home


@pytest.fixture(scope="session")
def loads() -> Callable[..., Loaded]:
    """`load_model` that loads a folder once, and again if a command has closed it."""
    cached = cache(load_model)

    def load(*arguments: object) -> Loaded:
        if not cached(*arguments)[0].healthy:
            cached.cache_clear()
        return cached(*arguments)

    return load


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, loads: Callable[..., Loaded], own_babble: Path, babble: Path) -> Run:
    """Run a command in this process; in the place of the program's own model a smaller one speaks."""
    smaller = {own_babble: babble}

    def load(folder: Path, *others: object) -> Loaded:
        return loads(smaller.get(folder.resolve(), folder.resolve()), *others)

    monkeypatch.setattr(api, "load_model", load)

    def call(line: str = "", *more: object, stdin: bytes | None = None, terminal: bool = False) -> Result:
        """line: words with spaces between; more: arguments that may hold spaces; stdin: what is piped in, a terminal if
        None; terminal: whether stdout and stderr are one.
        """
        streams = {
            "stdin": Stream(stdin or b"", terminal=stdin is None),
            "stdout": Stream(terminal=terminal),
            "stderr": Stream(terminal=terminal),
        }
        with monkeypatch.context() as patched:
            for name, stream in streams.items():
                patched.setattr(sys, name, stream)
            code = main([*line.split(), *map(str, more)])
        result = Result(code, streams["stdout"].written(), streams["stderr"].written().decode())
        assert "Traceback" not in result.err
        return result

    return call


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a model would load."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a model loads")

    monkeypatch.setattr("vivavoce.api.load", fail)


@pytest.fixture
def recording() -> Path:
    """1.2 s of speech."""
    return AUDIO / "speech_24k_float.wav"
