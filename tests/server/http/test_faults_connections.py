"""What is no proper HTTP, or never becomes a request: its exact answer, and a neighbour who does not notice."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from unittest import TestCase

import pytest
from starlette.types import ASGIApp

from tests.server.fake_backend import FakeBackend, FakeStream, Gate
from tests.server.http.faulty_clients import FORM, NEIGHBOUR, Client, request, speech, state_of, undisturbed, until
from tests.server.http.serving import Served, serving
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.http.app_state import AppState

GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\n"
SOCKET = b"GET /v1/audio/stream HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
KEYED = SOCKET + b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
HURRIED = 0.4
HEADER_BYTES = 8_192


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app, state_of(max_header_bytes=HEADER_BYTES)) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with undisturbed(server), Client(server) as made:
        yield made


@pytest.fixture(scope="module")
def hurried() -> Iterator[Served]:
    with serving(build_app, state_of(request_timeout_s=HURRIED, listener_timeout_s=HURRIED)) as served:
        yield served


@pytest.fixture
def late(hurried: Served) -> Iterator[Client]:
    """A client who has 0.4 s for everything."""
    with undisturbed(hurried), Client(hurried) as made:
        yield made


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GARBAGE\r\n\r\n",
        b"GET /health/live\r\n\r\n",
        b"G\0T / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 1_000_000,
        GET + b"a: b\r\n" * 300_000 + b"\r\n",
        GET + b"host: y\r\n\r\n",
        GET + b"a: b\0c\r\n\r\n",
        GET + b"a: b\rc: d\r\n\r\n",
        GET + b"a : b\r\n\r\n",
        POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        POST + b"content-length: 5, 6\r\n\r\nabcdef",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"content-length: +5\r\n\r\nabcde",
        POST + b"content-length: " + b"9" * 30 + b"\r\n\r\n",
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
    ],
)
def test_malformed_http_is_refused(client: Client, sent: bytes) -> None:
    client.send(sent)
    status, headers = client.head()
    assert (status, headers["connection"]) == (400, "close")


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "request: wrong HTTP version"),
        (b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", 505, "request: wrong HTTP version"),
        (POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n", 400, "headers: transfer-encoding"),
        (POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, "headers: transfer-enco"),
        (b"GET /" + b"a" * HEADER_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 431, "headers: "),
        (GET + b"a: " + b"b" * HEADER_BYTES + b"\r\n\r\n", 431, "headers: "),
        (GET + b"a: b\r\n" * (HEADER_BYTES // 6) + b"\r\n", 431, "headers: "),
    ],
)
def test_requests_that_break_a_bound_are_refused(client: Client, sent: bytes, status: int, message: str) -> None:
    client.send(sent)
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.error["message"].startswith(message)
    assert client.ended()


@pytest.mark.parametrize(
    "sent",
    [
        KEYED + b"content-length: 3\r\n\r\nabc",
        KEYED.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        KEYED + b"a: b\r\n" * 500 + b"\r\n",
    ],
)
def test_a_malformed_websocket_request_is_dropped(late: Client, sent: bytes) -> None:
    late.send(sent)
    assert late.head()[0] in (400, 408)


@pytest.mark.parametrize("value", ["nonsense", "100-continue"])
def test_expectations_hold_nobody_up(client: Client, value: str) -> None:
    assert client.exchange("/v1/audio/speech", speech(), expect=value).status == 200


def test_who_asks_whether_to_go_on_is_told_no_before_sending(client: Client) -> None:
    client.ask("/v1/audio/speech", content_length="9999999999", expect="100-continue")
    assert client._file.peek(12)[:12] == b"HTTP/1.1 413"
    assert client.answer().error["code"] == "too_large"


def test_pipelined_requests_are_answered_in_their_order(client: Client) -> None:
    texts = ["One.", "Two, and more.", "Three!"]
    client.send(b"".join(request("/v1/audio/speech", speech(text)) for text in texts))
    assert [len(client.answer().body) for _ in texts] == [len(text) * 480 for text in texts]
    client.send(request("/health/live", method="GET") + b"GARBAGE\r\n\r\n" + request("/health/live", method="GET"))
    assert [client.answer().status for _ in range(2)] == [200, 400]
    assert client.ended()


def test_who_leaves_is_noticed_although_it_has_asked_for_more(client: Client) -> None:
    client.send(request("/v1/audio/speech", speech(seed=NEIGHBOUR)) + request("/v1/models", method="GET"))
    assert client.head()[0] == 200
    assert client.chunk()


class Unanswering(FakeBackend):
    """It never gets as far as to take a request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.given_up = asyncio.Event(), asyncio.Event()

    async def speak(self, order: SpeechRequest) -> FakeStream:
        self.asked.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.given_up.set()


@pytest.mark.parametrize(
    ("app", "path"), [(build_app, "/v1/audio/speech"), (build_legacy_app, "/inference_sft?tts_text=Hello.&spk_id=anna")]
)
def test_who_leaves_before_it_is_answered_is_noticed(app: Callable[[AppState], ASGIApp], path: str) -> None:
    with serving(app, state_of(Unanswering)) as server, Client(server) as client:
        speaker = server.state.dispatcher.backend
        client.ask(path, speech() if app is build_app else b"")
        server.call(speaker.asked.wait)
        client.reset()
        server.call(speaker.given_up.wait)
        server.call(lambda: until(lambda: server.state.dispatcher.active == 0))


class TooLate(Unanswering):
    """It has taken a request when it hears that it is given up."""

    async def speak(self, order: SpeechRequest) -> FakeStream:
        with suppress(asyncio.CancelledError):
            await super().speak(order)
        return await FakeBackend.speak(self, order)


def test_who_leaves_as_it_is_taken_in_leaves_nothing_behind() -> None:
    with serving(build_app, state_of(TooLate)) as server, Client(server) as client:
        speaker = server.state.dispatcher.backend
        client.ask("/v1/audio/speech", speech())
        server.call(speaker.asked.wait)
        client.reset()
        server.call(speaker.given_up.wait)
        server.call(lambda: asyncio.wait_for(until(lambda: server.state.dispatcher.request_log.running == 0), 10))
        assert server.state.dispatcher.active == 0


def test_a_body_that_stops_coming_while_its_speech_is_sent_is_no_defect() -> None:
    with TestCase().assertNoLogs(level="ERROR"):
        state = state_of(lambda: FakeBackend(gate=Gate(pieces=1)), listener_timeout_s=0.3)
        with serving(build_legacy_app, state) as server, Client(server) as client:
            path = "/inference_sft?spk_id=anna&tts_text=Hello+there,+all+of+you."
            client.ask(path, content_type="text/plain", content_length="9")
            assert client.head()[0] == 200
            assert client.rest()[1] is False
            assert client.ended()


def test_more_requests_than_are_answered_are_not_read(server: Served) -> None:
    """A stream that runs, and behind it pipelined requests without end: at some point nobody takes them."""
    with undisturbed(server), Client(server, receive_buffer=4_096) as client:
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


@pytest.mark.parametrize("when", ["before a request", "in the headers", "in the body", "after the request"])
def test_who_stops_writing_has_left(client: Client, when: str) -> None:
    whole = request("/v1/audio/speech", speech(seed=7))
    parts = {"before a request": 0, "in the headers": 40, "in the body": len(whole) - 5}
    client.send(whole[: parts.get(when, len(whole))])
    if when == "after the request":
        assert client.head()[0] == 200
        assert client.chunk()
    client.stop_writing()
    assert client.ended()


def test_who_stops_writing_gets_what_was_ready(client: Client) -> None:
    client.ask("/v1/models", method="GET")
    client.socket.recv(1, 2)  # MSG_PEEK: it has come
    client.stop_writing()
    assert client.answer().status == 200


def test_who_sends_nothing_is_dropped(late: Client) -> None:
    assert late.ended()


CHUNKED = {"content_length": "", "transfer_encoding": "chunked"}


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"P", "headers: they were not complete within 0.4 s"),
        (POST, "headers: they were not complete within 0.4 s"),
        (POST + b"content-le", "headers: they were not complete within 0.4 s"),
        (request("/v1/audio/speech", speech()[:-3], content_length="99"), "body: nothing of it came for 0.4 s"),
        (request("/v1/audio/speech", b"a\r\n{", **CHUNKED), "body: nothing of it came for 0.4 s"),
        (request("/v1/audio/speech", b"f" * 16 + b"\r\n{", **CHUNKED), "body: nothing of it came for 0.4 s"),
        (
            request("/v1/audio/voices", b"--x\r\n", content_length="99", content_type=FORM),
            "body: nothing of it came for 0.4 s",
        ),
    ],
)
def test_what_stops_coming_is_told_and_dropped(late: Client, sent: bytes, message: str) -> None:
    late.send(sent)
    answer = late.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert answer.error["message"].startswith(message)
    assert late.ended()


def test_headers_that_drip_for_ever_end_too(late: Client) -> None:
    late.send(POST)
    while not select.select([late.socket], [], [], 0.01)[0]:
        late.send(b"a")
    assert late.answer().status == 408


def test_a_body_that_drips_ends_too(late: Client) -> None:
    late.ask("/v1/audio/speech", b"{", content_length="99999")
    for _ in range(2_000):
        if select.select([late.socket], [], [], 0.01)[0]:
            break
        late.send(b" ")
    else:
        pytest.fail("it was read for 20 s and more")
    answer = late.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert "it came slower than 16384 bytes a second" in answer.error["message"]
    assert late.ended()


def test_the_time_counts_anew_for_each_request(late: Client) -> None:
    assert late.exchange("/health/live", method="GET").status == 200
    late.send(POST)
    assert late.answer().status == 408
    assert late.ended()


def test_headers_that_begin_before_an_answer_ends_are_bounded_too() -> None:
    bounds = {"request_timeout_s": HURRIED, "listener_timeout_s": 60.0, "keep_alive_s": 1}
    with serving(build_app, state_of(**bounds)) as hasty, undisturbed(hasty), Client(hasty) as client:
        client.ask("/v1/audio/speech", speech("Hello there. ", seed=NEIGHBOUR))
        assert client.head()[0] == 200
        assert client.chunk()
        client.send(POST[:10])
        client.send(POST[10:])
        stream = hasty.state.dispatcher.backend.streams[-1]  # type: ignore[attr-defined]
        hasty.call(stream.gate.set)
        assert client.rest()[1]
        assert client.ended()


def test_a_body_that_nobody_reads_does_not_hold_its_connection(late: Client) -> None:
    assert late.exchange("/v1/nothing", b"half", content_length="1000").status == 404
    late.send(b"and no more")
    assert late.ended()


def test_a_longer_body_than_promised_is_the_next_request(late: Client) -> None:
    late.send(request("/v1/audio/speech", speech() + b"and more\r\n\r\n", content_length=str(len(speech()))))
    assert [late.answer().status for _ in range(2)] == [200, 400]
    assert late.ended()


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
def test_who_reads_no_answers_is_dropped(ends: bool) -> None:
    more = {"connection": "close"} if ends else {}
    asked = request("/openapi.json", method="GET") * (3 if ends else 40) + request(
        "/openapi.json", method="GET", **more
    )
    with (
        serving(build_app, state_of(listener_timeout_s=0.5)) as server,
        undisturbed(server),
        Client(server, receive_buffer=4_096) as client,
    ):
        client.send(asked[:1])
        server.call(lambda: until(lambda: len(server.listener.connections) == 2))
        client.send(asked[1:])  # it may be dropped before this thread goes on
        server.call(lambda: until(lambda: len(server.listener.connections) == 1))
