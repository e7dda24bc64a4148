"""Calls at the end of a job: which addresses they may go to, and where they go."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from vivavoce.errors import InvalidRequest
from vivavoce_books.jobs import webhook
from vivavoce_books.jobs.webhook import call, check_webhook, deliver, is_public


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700:4700::1111", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
    ],
)
def test_private_addresses_are_told_from_public_ones(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "https://",
        "http://a b/",
        "http://me:secret@example.org/",
        "http://example.org/" + "x" * 2_000,
        "http://example.org:99999/",
        "http://example.org:0/",
        "http://[::1/",
        "http://example.org/\r\nhost: x",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^webhook: .* is not an address of http"):
        check_webhook(url, "any")


def test_the_settings_allow_webhooks() -> None:
    check_webhook("https://example.org:8443/done?job=1", "public")
    with pytest.raises(InvalidRequest, match=r"jobs\.webhooks is off"):
        check_webhook("https://example.org/", "off")


class Receiver(HTTPServer):
    got: list[tuple[str, dict[str, str], bytes]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Receiver)
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(302 if self.path == "/moved" else 204)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(("127.0.0.1", 0), Handler) as server:
        server.got = []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_a_name_of_a_private_address_is_not_called(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in ("93.184.216.34", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(OSError, match=r"evil.example is at 127.0.0.1, which is not a public address"):
        call(f"http://evil.example:{receiver.server_port}/", b"{}")
    assert receiver.got == []


def test_the_job_is_posted_and_no_redirection_is_followed(receiver: Receiver) -> None:
    url = f"http://localhost:{receiver.server_port}"
    asyncio.run(deliver(f"{url}/done?x=1", {"id": "job_1", "title": "Der Müller"}, "any"))
    path, headers, body = receiver.got[0]
    assert (path, headers["host"], json.loads(body)) == ("/done?x=1", url[7:], {"id": "job_1", "title": "Der Müller"})
    assert call(f"{url}/moved", b"{}", lambda _: True) == 302
    assert [one[0] for one in receiver.got] == ["/done?x=1", "/moved"]


def test_an_answer_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WHOLE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"H")
                    gone.wait(0.01)

        gone = threading.Event()
        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises((http.client.BadStatusLine, ConnectionResetError)):
            call(f"http://127.0.0.1:{listening.getsockname()[1]}/", b"{}", lambda _: True)
