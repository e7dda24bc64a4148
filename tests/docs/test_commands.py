"""Every command in the documents is of a kind that commands.toml lists; those that it runs run, the others exist."""

from __future__ import annotations

import importlib.util
import io
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from fastapi import APIRouter
from shown import PAGES, ROOT, SHELL_WORDS, Shown, commands

from benchmarks.random_adapter import make_random_adapter
from tests.server.http.serving import make_state
from vivavoce import api
from vivavoce.checkpoint.config import qwen2_of
from vivavoce.checkpoint.settings import read_config
from vivavoce.cli.main import app, main
from vivavoce.engine.engine import Engine
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.frontend.loading import load_model
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.http.app_state import AppState
from vivavoce_books.jobs.routes import router as jobs_router
from vivavoce_books.jobs.service import Jobs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Loaded = tuple[Engine, FrontEnd]
SHOWN = [one for page, text in PAGES.items() for one in commands(text, page)]
KINDS = {
    begins: command["tests"]
    for command in tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))["commands"]
    for begins in command["begins"]
}
"""How a command begins → what the tests do with it; `…`: whatever is between."""
OURS = [one for one in SHOWN if one.words[0] == "vivavoce"]


def kind(shown: Shown) -> str | None:
    """What the table says of a command; what says more of it goes before."""
    line = " ".join(shown.words)
    found = [key for key in KINDS if re.match(re.escape(key).replace("…", ".*") + r"(?![\w-])", line)]
    return KINDS[max(found, key=lambda key: ("…" in key, len(key)))] if found else None


def test_each_command_is_in_the_table() -> None:
    unknown = [str(one) for one in SHOWN if one.words[0] not in SHELL_WORDS and kind(one) is None]
    assert not unknown, "name them in tests/docs/commands.toml, or say the language of a block that holds none"


def test_tests_that_the_table_names_are_there() -> None:
    for tests in KINDS.values():
        for place in re.findall(r"tests/[\w/.]+", tests):
            assert (ROOT / place).exists(), place


ROOT_COMMAND = typer.main.get_command(app)


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that words name, and what follows its name."""
    command: Any = ROOT_COMMAND
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
        command = getattr(command, "loaded", command)
    return command, rest


@pytest.mark.parametrize("shown", OURS, ids=str)
def test_a_command_of_ours_is_understood(shown: Shown, world: Path) -> None:
    command, rest = command_of(shown.words[1:])
    if rest != ["--install-completion"]:  # which would act at once
        command.make_context(command.name, rest, **ROOT_COMMAND.context_settings)


def test_commands_in_prose_exist() -> None:
    for page, text in PAGES.items():
        text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for line in re.findall(r"`vivavoce ([^`…][^`]*)`", text):
            command, rest = command_of(line.split())
            if rest and getattr(command, "commands", {}) and rest[0][0].islower():
                raise AssertionError(f"{page}: vivavoce {line}")
            known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
            typed = {name.replace("_", "-") for name in re.findall(r"(?<!\S)--[a-z][\w-]+", line)}
            assert typed <= known | {"--version"}, f"{page}: vivavoce {line}"


@pytest.fixture
def world(tmp_path: Path, babble: Path, babble_v3: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages name, and small random models under the names of published ones."""
    work = tmp_path / "work"
    models = dict.fromkeys(("CosyVoice2-0.5B", "model", "model3", "try/model", "CosyVoice2-anna"), babble)
    for name, folder in {**models, "Fun-CosyVoice3-0.5B": babble_v3}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).symlink_to(folder)
    for name in ("me.wav", "said.wav", "anna.wav", "recordings/anna/001.wav"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / "data" / "audio" / "speech_24k_float.wav", work / name)
    template = ROOT / "src" / "vivavoce_triton" / "repository" / "token2wav" / "config.pbtxt"
    for name in ("model_repo/token2wav/config.pbtxt", "config.pbtxt"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template, work / name)
    config = read_config(babble, ()).lm
    for name in ("adapters/brand", "brand"):
        make_random_adapter(work / name, qwen2_of(config))
    for name in ("chapter.txt", "book.txt"):
        (work / name).write_text("Hello there. How are you?", encoding="utf-8")
    for name, value in {"HOME": tmp_path / "home", "MODEL": babble}.items():
        monkeypatch.setenv(f"VIVAVOCE_{name}", str(value))
    for name in ("VIVAVOCE_VOICES", "VIVAVOCE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(work)
    return work


@pytest.fixture(scope="module")
def loads() -> Iterator[Callable[..., Loaded]]:
    """Models are loaded once."""
    cached = cache(load_model)

    def load(folder: Path, *others: object) -> Loaded:
        if not cached(folder.resolve(), *others)[0].healthy:
            cached.cache_clear()
        return cached(folder.resolve(), *others)

    yield load
    cached.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("shown", [one for one in OURS if kind(one) == "run"], ids=str)
def test_it_runs(
    shown: Shown, world: Path, loads: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(api, "load_model", loads)
    for before in SHOWN[: SHOWN.index(shown)]:
        if (before.page, before.block) == (shown.page, shown.block) and before.into:
            assert main(before.words[1:]) == 0
            Path(before.into).write_text(capsys.readouterr().out, encoding="utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", out)
    assert main(shown.words[1:]) == 0, capsys.readouterr().err
    for name in re.findall(r"(?:-o|--out|--subtitles) (\S+)", " ".join(shown.words)):
        assert out.buffer.getvalue() if name == "-" else Path(name).stat().st_size > 0  # type: ignore[attr-defined]


def test_what_other_programs_are_given_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for shown in SHOWN:
        line = " ".join(shown.words[1:])
        if shown.words[0] == "make":
            for word in shown.words[1:]:
                name, is_value, _ = word.partition("=")
                assert re.search(rf"\b{name}\b" if is_value else rf"^{name}:", makefile, re.MULTILINE), shown
        elif shown.words[0] == "pip":
            assert {one for names in re.findall(r"\[([\w,-]+)\]", line) for one in names.split(",")} <= {*extras}, shown
        elif shown.words[:2] == ("python", "-m") and shown.words[2].startswith("benchmarks"):
            assert importlib.util.find_spec(shown.words[2]) is not None, shown
        elif shown.words[0] == "docker":
            for path in re.findall(r"(?<=-f )\S+|(?<=\$PWD/)[^:]+", line):
                assert (ROOT / path).exists(), shown


class DescribedJobs:
    """Jobs whose routes are there, to be described."""

    def router(self, state: AppState) -> APIRouter:
        return jobs_router(state, cast(Jobs, None))


def test_curl_asks_for_what_there_is() -> None:
    state = replace(make_state(), jobs=DescribedJobs())
    paths = {path for build in (build_app, build_legacy_app) for path in build(state).openapi()["paths"]}
    for shown in SHOWN:
        for port, path in re.findall(r"http://127\.0\.0\.1:(\d+)(/[^\s?]*)", " ".join(shown.words)):
            if shown.words[0] == "curl":
                assert port in ("8880", "50000", "8000"), shown  # the last one is Ray's
                assert any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path) for one in paths), shown


def test_commands_are_told_from_other_blocks() -> None:
    page = (
        "```\nA=1 vivavoce speak 'a | b' -o x.wav |\n  /opt/ffplay -  # ends\npython3 - <<'END'\nx\nEND\n```\n"
        "```\nthe server's process\n```\n"
        "```bash\nmake \\\n  test && vivavoce config example > file\n```\n```text\nno\n```\n"
    )
    assert list(commands(page)) == [
        Shown("", 1, ("vivavoce", "speak", "a | b", "-o", "x.wav")),
        Shown("", 1, ("ffplay", "-")),
        Shown("", 1, ("python", "-")),
        Shown("", 8, ("the server's process",)),
        Shown("", 11, ("make", "test")),
        Shown("", 11, ("vivavoce", "config", "example"), "file"),
    ]
