"""What is no proper HTTP, or never becomes a request: its exact answer, and a neighbour who does not notice."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.doors.http.faulty_clients import NEIGHBOUR, Client, desk_of, request, speech, undisturbed, until
from tests.doors.http.serving import Served, serving
from vivavoce.doors.http.app import build_app
from vivavoce.doors.http.connections import MARGIN

GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\n"
SOCKET = b"GET /v1/audio/stream HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
KEYED = SOCKET + b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
HURRIED = 0.4
HEADER_BYTES = 8_192


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app, desk_of(max_header_bytes=HEADER_BYTES)) as served:
        yield served


@pytest.fixture
def beside(server: Served) -> Iterator[None]:
    with undisturbed(server):
        yield


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400, "request: "),
        (b"GARBAGE\r\n\r\n", 400, "request: "),
        (b"GET /health/live\r\n\r\n", 400, "request: "),
        (b"G\0T / HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, "request: "),
        (b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, "request: "),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "request: HTTP/1.1 is spoken"),
        (b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", 505, "request: HTTP/1.1 is spoken"),
        (b"GET /health/live HTTP/1.1\r\n\r\n", 400, "request: "),
        (GET + b"host: y\r\n\r\n", 400, "request: "),
        (GET + b"a: b\0c\r\n\r\n", 400, "request: "),
        (GET + b"a: b\rc: d\r\n\r\n", 400, "request: "),
        (GET + b"a : b\r\n\r\n", 400, "request: "),
        (POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef", 400, "request: "),
        (POST + b"content-length: 5, 6\r\n\r\nabcdef", 400, "request: "),
        (POST + b"content-length: -1\r\n\r\n", 400, "request: "),
        (POST + b"content-length: +5\r\n\r\nabcde", 400, "request: "),
        (POST + b"content-length: " + b"9" * 30 + b"\r\n\r\n", 400, "request: "),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n", 501, "transfer-encoding: only chunked"),
        (POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 501, "transfer-encoding: "),
        (POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n", 400, "headers: transfer-encoding"),
        (POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, "headers: transfer-enco"),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "request: "),
        (POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", 400, "request: "),
        (POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n", 400, "request: "),
        (b"GET /" + b"a" * HEADER_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 431, "headers: "),
        (b"GET /" + b"a" * 1_000_000, 431, "headers: "),
        (GET + b"a: " + b"b" * HEADER_BYTES + b"\r\n\r\n", 431, "headers: "),
        (GET + b"a: b\r\n" * (HEADER_BYTES // 6) + b"\r\n", 431, "headers: "),
        (GET + b"a: b\r\n" * 300_000 + b"\r\n", 431, "headers: "),
        (KEYED + b"content-length: 3\r\n\r\nabc", 400, "request: "),
        (KEYED.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, "request: "),
        (KEYED + b"a: b\r\n" * 500 + b"\r\n", 400, "request: "),
    ],
)
def test_what_is_no_proper_request_is_refused(server: Served, sent: bytes, status: int, message: str) -> None:
    with Client(server) as client:
        client.send(sent)
        answer = client.answer()
        assert answer.status == status
        assert answer.error["message"].startswith(message)
        assert "\n" not in answer.error["message"]
        assert answer.headers["connection"] == "close"
        assert client.ended()


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("value", ["nonsense", "100-continue"])
def test_expectations_hold_nobody_up(server: Served, value: str) -> None:
    with Client(server) as client:
        client.ask("/v1/audio/speech", speech(), expect=value)
        assert client.answer().status == 200


@pytest.mark.usefixtures("beside")
def test_who_asks_whether_to_go_on_is_told_no_before_sending(server: Served) -> None:
    with Client(server) as client:
        client.ask("/v1/audio/speech", content_length="9999999999", expect="100-continue")
        assert client._file.peek(12)[:12] == b"HTTP/1.1 413"
        assert client.answer().error["code"] == "too_large"


@pytest.mark.usefixtures("beside")
def test_pipelined_requests_are_answered_in_their_order(server: Served) -> None:
    texts = ["One.", "Two, and more.", "Three!"]
    with Client(server) as client:
        client.send(b"".join(request("/v1/audio/speech", speech(text)) for text in texts))
        assert [len(client.answer().body) for _ in texts] == [len(text) * 480 for text in texts]
        client.send(request("/health/live", method="GET") + b"GARBAGE\r\n\r\n" + request("/health/live", method="GET"))
        assert [client.answer().status for _ in range(2)] == [200, 400]
        assert client.ended()


@pytest.mark.usefixtures("beside")
def test_who_leaves_is_noticed_although_it_has_asked_for_more(server: Served) -> None:
    with Client(server) as client:
        client.send(request("/v1/audio/speech", speech(seed=NEIGHBOUR)) + request("/v1/models", method="GET"))
        assert client.head()[0] == 200
        assert client.chunk()


@pytest.mark.usefixtures("beside")
def test_more_requests_than_are_answered_are_not_read(server: Served) -> None:
    """A stream that runs, and behind it pipelined requests without end: at some point nobody takes them."""
    with Client(server, receive_buffer=4_096) as client:
        client.ask("/v1/audio/speech", speech("On and on. " * 1_800))
        assert client.head()[0] == 200
        client.socket.setblocking(False)
        flood = request("/health/live", method="GET") * 1_000
        sent = 0
        with suppress(BlockingIOError):
            while sent < 64 << 20:
                sent += client.socket.send(flood)
        assert sent < 64 << 20
        client.reset()


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("when", ["before a request", "in the headers", "in the body", "after the request"])
def test_who_stops_writing_has_left(server: Served, when: str) -> None:
    whole = request("/v1/audio/speech", speech(seed=7))
    parts = {"before a request": 0, "in the headers": 40, "in the body": len(whole) - 5}
    with Client(server) as client:
        client.send(whole[: parts.get(when, len(whole))])
        if when == "after the request":
            assert client.head()[0] == 200
            assert client.chunk()
        client.stop_writing()
        assert client.ended()


@pytest.mark.usefixtures("beside")
def test_who_stops_writing_gets_what_was_ready(server: Served) -> None:
    with Client(server) as client:
        client.ask("/v1/models", method="GET")
        client.socket.recv(1, 2)  # MSG_PEEK: it has come
        client.stop_writing()
        assert client.answer().status == 200


@pytest.fixture(scope="module")
def hurried() -> Iterator[Served]:
    with serving(build_app, desk_of(request_timeout_s=HURRIED, listener_timeout_s=HURRIED)) as served:
        yield served


def test_who_sends_nothing_is_dropped(hurried: Served) -> None:
    with undisturbed(hurried), Client(hurried) as client:
        assert client.ended()


@pytest.mark.parametrize("sent", [b"P", POST, POST + b"content-le"])
def test_who_sends_half_of_the_headers_is_told_and_dropped(hurried: Served, sent: bytes) -> None:
    with undisturbed(hurried), Client(hurried) as client:
        client.send(sent)
        answer = client.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.error["message"] == "headers: they were not complete within 0.4 s; send them at once"
        assert client.ended()


def test_headers_that_drip_for_ever_end_too(hurried: Served) -> None:
    with undisturbed(hurried), Client(hurried) as client:
        client.send(POST)
        while not select.select([client.socket], [], [], 0.01)[0]:
            client.send(b"a")
        assert client.answer().status == 408


def test_the_time_counts_anew_for_each_request(hurried: Served) -> None:
    with undisturbed(hurried), Client(hurried) as client:
        client.ask("/health/live", method="GET")
        assert client.answer().status == 200
        client.send(POST)
        assert client.answer().status == 408
        assert client.ended()


def test_a_body_that_stops_coming_is_told_and_dropped(hurried: Served) -> None:
    bodies = [
        request("/v1/audio/speech", speech()[:-3], content_length=str(len(speech()))),
        request("/v1/audio/speech", b"a\r\n{", content_length="", transfer_encoding="chunked"),
        request("/v1/audio/speech", b"f" * 16 + b"\r\n{", content_length="", transfer_encoding="chunked"),
        request("/v1/audio/voices", b"--x\r\n", content_length="99", content_type="multipart/form-data; boundary=x"),
    ]
    with undisturbed(hurried), ExitStack() as stack:
        clients = [stack.enter_context(Client(hurried)) for _ in bodies]
        for client, body in zip(clients, bodies, strict=True):
            client.send(body)
        for client in clients:
            answer = client.answer()
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
            assert answer.error["message"] == "body: nothing of it came for 0.4 s; send it at once"
            assert client.ended()


def test_a_body_that_nobody_reads_does_not_hold_its_connection(hurried: Served) -> None:
    with undisturbed(hurried), Client(hurried) as client:
        client.ask("/v1/nothing", b"half", content_length="1000")
        assert client.answer().status == 404
        client.send(b"and no more")
        assert client.ended()


def test_a_longer_body_than_promised_is_the_next_request(hurried: Served) -> None:
    with undisturbed(hurried), Client(hurried) as client:
        client.send(request("/v1/audio/speech", speech() + b"and more\r\n\r\n", content_length=str(len(speech()))))
        assert [client.answer().status for _ in range(2)] == [200, 400]
        assert client.ended()


def test_too_many_connections_are_told_and_far_too_many_dropped() -> None:
    most = 3
    with serving(build_app, desk_of(max_connections=most)) as server, undisturbed(server), ExitStack() as stack:
        inside = [stack.enter_context(Client(server)) for _ in range(most - 1)]
        for client in inside:
            client.ask("/health/live", method="GET")
            assert client.answer().status == 200
        crowd = [stack.enter_context(Client(server)) for _ in range(MARGIN + 1)]
        assert crowd.pop().ended()
        crowd[0].ask("/v1/models", method="GET")
        answer = crowd[0].answer()
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "2")
        assert crowd[0].ended()
        crowd[1].send(KEYED + b"\r\n")
        assert crowd[1].answer().status == 503
        crowd[2].ask("/health/live", method="GET")
        assert crowd[2].answer().status == 200
        inside[0].ask("/v1/models", method="GET")
        assert inside[0].answer().status == 200
        stack.close()
        server.call(lambda: until(lambda: server.listener.connections == 1))
        with Client(server) as later:
            later.ask("/v1/models", method="GET")
            assert later.answer().status == 200


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
def test_who_reads_no_answers_is_dropped(ends: bool) -> None:
    more = {"connection": "close"} if ends else {}
    asked = request("/openapi.json", method="GET") * (3 if ends else 40) + request(
        "/openapi.json", method="GET", **more
    )
    with (
        serving(build_app, desk_of(listener_timeout_s=0.2)) as server,
        undisturbed(server),
        Client(server, receive_buffer=4_096) as client,
    ):
        client.send(asked)
        server.call(lambda: until(lambda: server.listener.connections == 2))
        server.call(lambda: until(lambda: server.listener.connections == 1))
