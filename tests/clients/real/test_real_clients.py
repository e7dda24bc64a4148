"""Other people's clients speak with a server of ours: those that are installed here, and `long` all others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.real import running
from tests.clients.real.catalogue import CLIENTS, RealClient
from tests.clients.real.running import ROOT, SCRIPTS, Servers, lacking, run_client

pytest.importorskip("pocketsphinx", reason="needs the extra eval")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


def test_a_source_is_what_its_commit_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, named = tmp_path / "github" / "someone" / "Thing", tmp_path / "named"
    origin.mkdir(parents=True)
    (origin / "client.py").write_text("as it was written\n")

    def git(*words: str) -> str:
        known = ("-c", "user.name=a", "-c", "user.email=a@b", "-C", str(origin))
        return subprocess.run(["git", *known, *words], check=True, capture_output=True, text=True).stdout.strip()

    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "It")):
        git(*words)
    monkeypatch.setattr(running, "ENVIRONMENTS", tmp_path / "environments")
    redirected = {"COUNT": "1", "KEY_0": f"url.{tmp_path / 'github'}/.insteadOf", "VALUE_0": "https://github.com/"}
    for name, value in redirected.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    client = RealClient("thing", "thing.py", source=f"someone/Thing@{git('rev-parse', 'HEAD')}")
    for _ in range(2):
        file = running.source_of(client) / "client.py"
        assert file.read_text() == "as it was written\n"
        file.write_text("changed since\n")
    unknown = RealClient("thing", "thing.py", source=f"someone/Thing@{'0' * 40}")
    assert re.search(r"cannot be fetched \(.+\); THING_SOURCE can name a folder", lacking(unknown))
    monkeypatch.setenv("THING_SOURCE", str(named))
    assert (running.source_of(unknown), lacking(unknown)) == (named, "")


@pytest.mark.process
@pytest.mark.parametrize(
    "client",
    [pytest.param(one, id=one.script, marks=() if one.light else pytest.mark.long) for one in CLIENTS],
)
def test_every_call_is_right(client: RealClient, servers: Servers, tmp_path: Path) -> None:
    if reason := lacking(client):
        pytest.skip(reason)
    rows = list(run_client(client, servers, tmp_path / "heard"))
    assert rows
    assert [row for row in rows if row.fault] == []


@pytest.mark.process
def test_a_client_without_its_python_does_not_end_the_others(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "ENVIRONMENTS", tmp_path)
    client = RealClient("curl", "curl.py", pip=("curl==1",), python="python9.9")
    (row,) = run_client(client, servers, tmp_path / "heard")
    assert (row.version, row.call) == ("1", "its environment")
    assert "python9.9" in row.fault


PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
DASHSCOPE = (ROOT / "docs" / "from-cosyvoice.md").read_text(encoding="utf-8").partition("## DashScope's WebSocket")[2]


@pytest.mark.parametrize(
    "line",
    [
        line
        for _, code in re.findall(r"^```(python|js|ini)\n(.*?)^```", PAGE + DASHSCOPE, re.DOTALL | re.MULTILINE)
        for line in code.splitlines()
    ],
)
def test_no_line_of_the_page_is_not_run(line: str) -> None:
    """A script has it, with the server's address and a voice in place of the page's."""
    run = line.replace('"ws://127.0.0.1:8880"', 'URL.replace("http", "ws", 1)').replace('"calm"', "VOICE")
    run = run.replace('"ws://127.0.0.1:8880/', 'f"{SOCKETS}/')
    python = run.replace('"http://127.0.0.1:8880"', "URL").replace('"http://127.0.0.1:8880', 'f"{URL}')
    javascript = re.sub(r'"http://127.0.0.1:8880([^"]*)"', r"`${SERVER}\1`", run)
    setting = line.replace("http://127.0.0.1:8880", "{URL}").replace("=calm", "={VOICE}")
    known = {own.strip() for path in SCRIPTS.iterdir() for own in path.read_text(encoding="utf-8").splitlines()}
    assert {python, javascript, setting} & known


def test_the_page_names_the_versions_that_are_run() -> None:
    pins = {pin.replace("@", "=").rpartition("=")[2] for client in CLIENTS for pin in (client.pip + client.npm)[:1]}
    pins |= {client.source.partition("@")[2][:7] for client in CLIENTS}
    assert set(re.findall(r"\| ([\da-f.]+) \|$", PAGE, re.MULTILINE)) <= pins
