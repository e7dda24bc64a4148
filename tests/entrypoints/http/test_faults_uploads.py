"""Uploads without measure: told that they are too large, and never in memory."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, repeat

import pytest

from tests.entrypoints.http.faulty_clients import (
    FORM,
    NEIGHBOUR,
    Answer,
    Client,
    memory_bounded,
    part,
    request,
    speech,
    state_of,
    undisturbed,
)
from tests.entrypoints.http.serving import Served, serving
from vivavoce.entrypoints.http.app import build_app
from vivavoce.entrypoints.http.listener import BODIES_AT_ONCE

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"
MIB = 1 << 20
LIMIT = MIB
PIECE = base64.b64encode(bytes(196_608))
"""256 KiB, of any upload."""
OPENINGS = {
    "JSON": (SPEECH, "application/json", b'{"input": "x", "prompt_audio": "'),
    "form": (SPEECH, FORM, part("prompt_audio", b"", file=True)[:-2]),
    "voice": (VOICES, FORM, part("file", b"", file=True)[:-2]),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app, state_of(max_body_bytes=LIMIT)) as served:
        yield served


def upload(server: Served, kind: str, length: int, *, chunked: bool) -> tuple[Answer, bool]:
    """Write everything before a byte of the answer is read: the answer, and whether the connection then ended."""
    path, content_type, opening = OPENINGS[kind]
    pieces: Iterable[bytes] = chain((opening,), repeat(PIECE, length // len(PIECE)))
    head = request(path, content_type=content_type, content_length=str(len(opening) + length))
    if chunked:
        head = request(path, content_type=content_type, content_length="", transfer_encoding="chunked")
        pieces = chain((b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), (b"0\r\n\r\n",))
    with Client(server) as client:
        assert client.send(chain((head,), pieces))
        return client.answer(), client.ended()


@pytest.mark.parametrize("chunked", [False, True], ids=["promised", "chunked"])
@pytest.mark.parametrize("kind", ["JSON", "form", "voice"])
def test_what_is_too_large_is_told_to_who_writes_all_of_it_first(server: Served, kind: str, chunked: bool) -> None:
    with undisturbed(server), memory_bounded(16 * MIB):
        answer, ended = upload(server, kind, 64 * MIB, chunked=chunked)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (413, "too_large", "body")
        assert f"more than the limit of {LIMIT}" in answer.error["message"]
        assert answer.headers["connection"] == "close"
        assert "x-request-id" in answer.headers
        assert ended


def test_a_gigabyte_in_chunks(server: Served) -> None:
    with undisturbed(server), memory_bounded(16 * MIB):
        assert upload(server, "form", 1 << 30, chunked=True)[0].status == 413


def test_ten_at_once(server: Served) -> None:
    with undisturbed(server), memory_bounded(32 * MIB), ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(upload, server, "form", 16 * MIB, chunked=True) for _ in range(10)]
        assert [answer.result()[0].status for answer in answers] == [413] * 10


def test_what_goes_nowhere_is_not_kept(server: Served) -> None:
    with undisturbed(server), memory_bounded(16 * MIB), Client(server) as client:
        client.ask("/v1/nothing", content_type=FORM, content_length="", transfer_encoding="chunked")
        assert client.send(repeat(b"%x\r\n%s\r\n" % (len(PIECE), PIECE), 256))
        assert client.send(b"0\r\n\r\n")
        assert client.answer().status == 404
        assert client.exchange("/v1/models", method="GET").status == 200


@pytest.mark.parametrize(("spare", "status"), [(0, 400), (1, 413)])
def test_a_body_as_long_as_may_be_is_taken(server: Served, spare: int, status: int) -> None:
    with undisturbed(server), Client(server) as client:
        assert client.exchange(SPEECH, b"[" * (LIMIT + spare)).status == status


def test_all_bodies_together_are_bounded() -> None:
    """Almost complete ones: so many are held, one more is told to come again, and then there is room."""
    each, lacking = 65_536, 100
    body = b" " * (each - lacking)
    with serving(build_app, state_of(max_body_bytes=each)) as server, undisturbed(server):
        with ExitStack() as stack:
            held = [stack.enter_context(Client(server)) for _ in range(BODIES_AT_ONCE)]
            for client in held:
                client.ask(SPEECH, body, content_length=str(each))
            for _ in range(3):  # what has come before this is asked is read before it is answered
                with Client(server) as other:
                    assert other.exchange("/health/live", method="GET").status == 200
            with Client(server) as late:
                answer = late.exchange(SPEECH, body, content_length=str(each))
            assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "overloaded", "2")
            for client in held:
                client.send(b"{" * lacking)
                assert client.answer().status == 400
        with Client(server) as again:
            assert again.exchange(SPEECH, body).status == 400


def test_what_was_taken_does_not_count_while_it_is_spoken() -> None:
    """More recordings than may be read at once are spoken at once."""
    each = 65_536
    body = speech(seed=NEIGHBOUR, prompt_audio=base64.b64encode(bytes(48_000)).decode())
    with serving(build_app, state_of(max_body_bytes=each)) as server, undisturbed(server), ExitStack() as stack:
        for _ in range(2 * BODIES_AT_ONCE):
            client = stack.enter_context(Client(server))
            client.ask(SPEECH, body)
            assert client.head()[0] == 200
        assert server.state.dispatcher.active == 2 * BODIES_AT_ONCE + 1
