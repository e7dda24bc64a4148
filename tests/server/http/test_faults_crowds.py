"""More connections than there is room for: who serves keeps its place, who only waits gives it to who asks."""

from __future__ import annotations

import errno
import math
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import TestCase

import httpx
import pytest

from tests.server.certificates import certified, needs_openssl
from tests.server.http.faulty_clients import NEIGHBOUR, Client, asked, speech, state_of, undisturbed, until
from tests.server.http.serving import serving
from vivavoce.cli.server import FILES_BESIDE, connections_of_gpus, fit_open_files
from vivavoce.server.http import listener
from vivavoce.server.http.app import build_app, build_health_app
from vivavoce.server.http.listener import MARGIN, bind
from vivavoce.server.settings import ServerSection, ServerSettings

SPEECH = "/v1/audio/speech"
SOCKET = (
    b"GET /v1/audio/stream HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
MOST = 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits gives its place at once, not only after a second."""
    monkeypatch.setattr(listener, "PATIENCE_S", 0.0)


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_where_all_are_served_who_comes_is_told_and_health_answers(impatient: None) -> None:
    with serving(build_app, state_of(max_connections=MOST)) as server, undisturbed(server), ExitStack() as stack:
        for _ in range(MOST - 1):
            client = stack.enter_context(Client(server))
            client.ask(SPEECH, speech(seed=NEIGHBOUR))
            assert (client.head()[0], bool(client.chunk())) == (200, True)
        with Client(server) as late:
            answer = late.exchange("/v1/models", method="GET")
            assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "2")
            assert late.ended()
        with Client(server) as late:
            late.send(SOCKET)
            assert late.answer().status == 503
        assert asked(server, "/health/live", method="GET").status == 200
        stack.close()
        server.call(lambda: until(lambda: len(server.listener.connections) == 1))
        assert asked(server, "/v1/models", method="GET").status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"], ids=["nothing", "half"])
def test_who_sends_no_request_gives_its_place(impatient: None, clients: ExitStack, sent: bytes) -> None:
    with serving(build_app, state_of(max_connections=MOST)) as server, undisturbed(server):
        crowd = [clients.enter_context(Client(server)) for _ in range(2 * (MOST + MARGIN))]
        for client in crowd:
            client.send(sent)
        for path in ("/health/live", "/v1/models"):
            assert asked(server, path, method="GET").status == 200
        assert crowd[0].ended()
        assert len(server.listener.connections) <= MOST
        clients.close()


def test_who_asks_is_answered_even_if_a_silent_crowd_has_just_come(clients: ExitStack) -> None:
    with serving(build_app, state_of(max_connections=MOST)) as server, undisturbed(server):
        for _ in range(MOST + MARGIN // 2):
            clients.enter_context(Client(server))
        assert asked(server, "/v1/models", method="GET").status == 200
        for _ in range(MOST + MARGIN):  # beyond all room: when the silent ones had their second
            clients.enter_context(Client(server))
        assert asked(server, "/v1/models", method="GET").status == 200
        clients.close()


def test_the_one_that_waits_for_the_longest_goes_first(impatient: None) -> None:
    with (
        serving(build_app, state_of(max_connections=MOST)) as server,
        undisturbed(server),
        Client(server) as first,
        Client(server) as second,
    ):
        for client in (first, second, first):
            assert client.exchange("/health/live", method="GET").status == 200
        assert asked(server, "/v1/models", method="GET").status == 200
        assert second.ended()
        assert first.exchange("/v1/models", method="GET").status == 200


def test_a_body_gives_its_place_if_it_comes_slower_than_it_should(impatient: None) -> None:
    with (
        serving(build_app, state_of(max_connections=MOST)) as server,
        undisturbed(server),
        Client(server) as fast,
        Client(server) as slow,
    ):

        def is_ahead() -> bool:
            now, connections = time.monotonic(), server.listener.connections
            return any(now < connection.waits_since < math.inf for connection in connections)

        fast.ask(SPEECH, b" " * (1 << 20), content_length=str((1 << 20) + 1))
        slow.ask(SPEECH, b" ", content_length="9999")
        server.call(lambda: until(is_ahead))
        assert asked(server, "/v1/models", method="GET").status == 200
        assert slow.ended()
        fast.send(b"{")
        assert fast.answer().status == 400


def test_who_was_answered_before_its_body_had_come_gives_its_place(impatient: None, clients: ExitStack) -> None:
    with serving(build_app, state_of(max_connections=MOST)) as server, undisturbed(server):
        for _ in range(MOST):
            client = clients.enter_context(Client(server))
            assert client.exchange("/v1/nothing", content_length="999", connection="close").status == 404
        assert asked(server, "/v1/models", method="GET").status == 200
        clients.close()


class Exhausted(socket.socket):
    """A socket of a process that may open no more files for so many attempts."""

    failures = 50

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_no_more_open_files_are_told_once_a_second_and_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.001)
    listening = Exhausted(fileno=bind("127.0.0.1", 0, "port").detach())
    listening.setblocking(False)
    with TestCase().assertLogs(level="WARNING") as logged, serving(build_app, state_of(), listening) as server:
        assert asked(server, "/health/live", method="GET").status == 200
    assert 1 <= len(logged.output) < Exhausted.failures / 2
    assert "none can be accepted now ([Errno 24] Too many open files)" in logged.output[0]


@needs_openssl
def test_a_handshake_has_a_place_too(impatient: None, tmp_path: Path, clients: ExitStack) -> None:
    files = certified(tmp_path)
    context = ssl.create_default_context(cafile=files["tls_certificate"])
    with serving(build_app, state_of(max_connections=MOST, request_timeout_s=600.0, **files)) as server:
        crowd = [clients.enter_context(Client(server)) for _ in range(2 * MOST)]
        url = f"https://127.0.0.1:{server.port}/health/live"
        assert httpx.get(url, verify=context, timeout=60).status_code == 200
        assert crowd[0].ended()
        assert len(server.listener.connections) <= MOST
        clients.close()
        server.call(lambda: until(lambda: not server.listener.connections))


@needs_openssl
def test_a_handshake_has_as_little_time_as_a_head(tmp_path: Path) -> None:
    began = time.monotonic()
    with serving(build_app, state_of(request_timeout_s=0.4, **certified(tmp_path))) as server, Client(server) as client:
        assert client.ended()
        assert time.monotonic() - began < 30
        server.call(lambda: until(lambda: not server.listener.connections))


@pytest.mark.parametrize(("metrics", "status"), [(True, 200), (False, 404)])
def test_health_and_figures_may_have_a_port_that_no_crowd_fills(metrics: bool, status: int) -> None:
    make = state_of(health_port=0, metrics=metrics)
    with serving(build_app, make) as main, serving(build_health_app, make) as own:
        ports = {"main": main, "own": own}

        def statuses(path: str) -> dict[str, int]:
            return {name: asked(server, path, method="GET").status for name, server in ports.items()}

        assert statuses("/health/live") == statuses("/health/ready") == {"main": 200, "own": 200}
        assert statuses("/metrics") == {"main": 404, "own": status}
        assert statuses("/v1/models") == {"main": 200, "own": 404}


@pytest.mark.parametrize(
    ("settings", "connections"),
    [
        ({}, 1_024),
        ({"model": {"device": "cpu", "engines": 4}}, 1_024),
        ({"model": {"gpus": "all"}}, 8 * 1_024),
        ({"model": {"gpus": "0,1"}, "models": {"more": {"b": {"base": "mini", "gpus": "1,2"}}}}, 3 * 1_024),
        ({"model": {"gpus": "all"}, "server": {"max_connections": 1_024}}, 1_024),
        ({"model": {"gpus": "all"}, "server": {"upstream": "triton://localhost:8001"}}, 1_024),
    ],
)
def test_connections_follow_the_number_of_gpus_unless_they_are_set(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], connections: int
) -> None:
    monkeypatch.setattr("vivavoce_fleet.devices.count_gpus", lambda: 8)
    assert connections_of_gpus(ServerSettings.model_validate(settings)).max_connections == connections


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "connections"),
    [
        (1_024, 1_048_576, 2 * (1_024 + MARGIN) + FILES_BESIDE, 1_024),
        (1_024, -1, 2 * (1_024 + MARGIN) + FILES_BESIDE, 1_024),
        (-1, -1, -1, 1_024),
        (65_536, 65_536, 65_536, 1_024),
        (1_024, 2_048, 2_048, (2_048 - FILES_BESIDE) // 2 - MARGIN),
        (64, 64, 64, 1),
    ],
)
def test_connections_fit_into_the_files_that_may_be_open(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    allowed: int,
    connections: int,
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    assert fit_open_files(ServerSection(), 2).max_connections == connections
    assert limits[-1] == (allowed, hard)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (connections < 1_024)
    assert all(
        message.startswith(
            f"max_connections: {connections} instead of 1024, since the limit of open files is {allowed};"
        )
        for message in messages
    )
