"""`adapter`: asks a running server, and says in one line what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.cli_harness import Run
from tests.server.http.serving import Served, make_state, serving
from tests.server.http.test_adapters_http import Adapting
from vivavoce.server.http.app import build_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import ModelSection, ServerSettings


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "brand" / "new").mkdir(parents=True)
    settings = ServerSettings(model=ModelSection(adapters_dir=tmp_path))
    with serving(build_app, lambda: make_state(Adapting(), settings)) as served:
        yield served


def test_adapters_are_added_listed_and_removed(run: Run, server: Served) -> None:
    at = f"--server {server.url}"
    assert "no adapter is loaded" in run(f"adapter list {at}").err
    added = run(f"adapter add brand {at}")
    assert (added.code, added.err) == (0, "adapter 'brand' is loaded (rank 8, 4 kB); requests may name it\n")
    assert run(f"adapter add newer --folder brand/new --model fake {at} --quiet").err == ""
    header, *rows = (line.split() for line in run(f"adapter list {at}").text.splitlines())
    assert header == ["name", "rank", "size", "targets"]
    assert rows == [["brand", "8", "4", "kB", "q_proj"], ["newer", "8", "4", "kB", "q_proj"]]
    assert run(f"adapter remove brand {at}").code == 0
    (left,) = json.loads(run(f"adapter list {at} --json").text)
    assert left["name"] == "newer"


def test_what_the_server_refuses_is_told_in_its_words(run: Run, server: Served) -> None:
    at = f"--server {server.url}"
    assert "answered with status 404: adapter: 'absent' is not loaded" in run(f"adapter remove absent {at}").error
    assert "answered with status 400: folder: '../x' is not below" in run(f"adapter add x --folder ../x {at}").error
    assert (
        "answered with status 404: model: 'other' is not served here" in run(f"adapter list --model other {at}").error
    )


def test_a_key_is_sent(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, keys = new_key(), tmp_path / "keys.toml"
    add_key(keys, new_entry(key, "boss", may_publish=True))
    with serving(build_app, lambda: make_state(Adapting(), keys=KeyRing(keys))) as served:
        assert "answered with status 401" in run(f"adapter list --server {served.url}").error
        assert run(f"adapter list --server {served.url} --key {key}").code == 0
        monkeypatch.setenv("VIVAVOCE_API_KEY", key)
        assert run(f"adapter list --server {served.url}").code == 0
        assert "cannot be reached" in run(f"adapter list --server {served.url} --key ä").error


class Other(BaseHTTPRequestHandler):
    """Answers as no server of ours does."""

    body = b"<html>"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


def test_an_address_that_is_no_server_of_ours_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'tts:8880' is not an address" in run("adapter list --server tts:8880").error
    assert "cannot be reached" in run("adapter list --server http://127.0.0.1:9").error
    with HTTPServer(("127.0.0.1", 0), Other) as other:
        Thread(target=other.handle_request, daemon=True).start()
        at = f"http://127.0.0.1:{other.server_port}"
        assert "not as vivavoce does" in run(f"adapter list --server {at}").error
        monkeypatch.setattr(Other, "body", b'{"models": []}')
        for asked in (f"adapter list --server {at}", f"adapter add brand --server {at}"):
            Thread(target=other.handle_request, daemon=True).start()
            assert "does not answer as vivavoce does; check the address" in run(asked).error


def test_the_proxy_of_the_environment_is_named(run: Run, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:1")
    asked = run("adapter list --server http://tts.invalid").error
    assert asked == "error: network: the variable ALL_PROXY cannot be used: correct it, or unset it\n"
    assert run(f"adapter list --server {server.url}").code == 0  # at this machine, without the proxy
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    asked = run("adapter list --server http://tts.invalid").error
    assert "http://tts.invalid cannot be reached through the proxy of ALL_PROXY (" in asked
    assert asked.endswith("); check the proxy, or name the server in NO_PROXY\n")
