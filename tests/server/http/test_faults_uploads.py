"""Uploads without measure: told that they are too large, and never in memory."""

from __future__ import annotations

import base64
import gc
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.server.fake_backend import SAMPLES_PER_LETTER
from tests.server.http.faulty_clients import (
    END,
    FORM,
    NEIGHBOUR,
    Answer,
    Client,
    PatientSpeaker,
    asked,
    memory_bounded,
    part,
    request,
    speech,
    state_of,
    undisturbed,
)
from tests.server.http.serving import Served, make_state, serving
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import BODIES_AT_ONCE, BoundedConnection
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import ServerSection, ServerSettings

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


def upload(server: Served, kind: str, length: int, *, chunked: bool, **caller: str) -> tuple[Answer, bool]:
    """Write everything before a byte of the answer is read: the answer, and whether the connection then ended."""
    path, content_type, opening = OPENINGS[kind]
    pieces: Iterable[bytes] = chain((opening,), repeat(PIECE, length // len(PIECE)))
    head = request(path, content_type=content_type, content_length=str(len(opening) + length), **caller)
    if chunked:
        head = request(path, content_type=content_type, content_length="", transfer_encoding="chunked", **caller)
        pieces = chain((b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), (b"0\r\n\r\n",))
    with Client(server) as client:
        assert client.send(chain((head,), pieces))
        return client.answer(), client.ended()


@pytest.mark.slow
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
        callers = [{"x_forwarded_for": f"10.0.0.{number // 2}"} for number in range(10)]
        answers = [pool.submit(upload, server, "form", 16 * MIB, chunked=True, **caller) for caller in callers]
        assert [answer.result()[0].status for answer in answers] == [413] * 10


def test_what_goes_nowhere_is_not_kept(server: Served) -> None:
    with undisturbed(server), memory_bounded(16 * MIB), Client(server) as client:
        client.ask("/v1/nothing", content_type=FORM, content_length="", transfer_encoding="chunked")
        assert client.send(repeat(b"%x\r\n%s\r\n" % (len(PIECE), PIECE), 256))
        assert client.send(b"0\r\n\r\n")
        assert client.answer().status == 404
        assert client.exchange("/v1/models", method="GET").status == 200


def test_who_wants_the_end_is_told_why_before_it(server: Served) -> None:
    with undisturbed(server), memory_bounded(16 * MIB):
        head = request("/v1/nothing", content_type=FORM, content_length=str(32 * MIB), connection="close")
        for _ in range(3):
            with Client(server) as client:
                assert client.send(chain((head,), repeat(bytes(MIB), 32)))
                assert client.answer().status == 404
                assert client.ended()


def test_an_answer_to_an_unread_body_is_whole_even_if_its_connection_then_ends() -> None:
    with serving(build_legacy_app, state_of()) as server, Client(server) as client:
        path = f"/inference_sft?spk_id=anna&tts_text={'a' * 50}"
        client.ask(path, content_type="text/plain", content_length="9", connection="close")
        answer = client.answer()
        assert (answer.status, len(answer.body), answer.whole) == (200, 50 * SAMPLES_PER_LETTER * 2, True)


def test_who_is_told_that_its_headers_are_too_long_may_write_its_body_first(server: Served) -> None:
    with undisturbed(server), Client(server) as client:
        head = request(SPEECH, content_length=str(32 * MIB), x_long="a" * 70_000)
        assert client.send(chain((head,), repeat(bytes(MIB), 32)))
        assert client.answer().status == 431
        assert client.ended()


def connections_kept() -> int:
    gc.collect()
    return sum(type(one) is BoundedConnection for one in gc.get_objects())


def test_nothing_is_kept_for_who_left_before_the_answer(server: Served) -> None:
    before = connections_kept()
    with undisturbed(server):
        for _ in range(20):
            with Client(server) as client:
                client.ask("/v1/nothing", content_type=FORM, content_length=str(LIMIT))
                client.send(PIECE)
                client.reset()
    for _ in range(20):  # their tasks may be about to end
        if connections_kept() <= before + 1:  # the one that was taken last
            break
        time.sleep(0.1)
    else:
        pytest.fail("some of 20 are in memory after 2 s")


@pytest.mark.parametrize(("spare", "status"), [(0, 400), (1, 413)])
def test_a_body_as_long_as_may_be_is_taken(server: Served, spare: int, status: int) -> None:
    with undisturbed(server), Client(server) as client:
        assert client.exchange(SPEECH, b"[" * (LIMIT + spare)).status == status


EACH, LACKING = 65_536, 100
BODY = b" " * (EACH - LACKING)


@contextmanager
def almost_sent(server: Served, *callers: dict[str, str]) -> Iterator[None]:
    """Meanwhile each of these has sent a body whose end is missing; all are answered when it comes."""
    with ExitStack() as stack:
        held = [stack.enter_context(Client(server)) for _ in callers]
        for client, caller in zip(held, callers, strict=True):
            client.ask(SPEECH, BODY, content_length=str(EACH), **caller)
        for _ in range(3):  # what has come before this is asked is read before it is answered
            assert asked(server, "/health/live", method="GET").status == 200
        yield
        for client in held:
            client.send(b"{" * LACKING)
            assert client.answer().status == 400


def refused(server: Served, caller: dict[str, str]) -> str:
    """Its body is told to come again; what the message says."""
    answer = asked(server, SPEECH, BODY, content_length=str(EACH), **caller)
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "overloaded", "2")
    return str(answer.error["message"])


def address(number: int) -> dict[str, str]:
    """As a proxy on this machine tells it."""
    return {"x_forwarded_for": f"10.0.0.{number}"}


def test_all_bodies_together_are_bounded() -> None:
    """Almost complete ones: so many are held, one more is told to come again, and then there is room."""
    with serving(build_app, state_of(max_body_bytes=EACH)) as server, undisturbed(server):
        with almost_sent(server, *(address(number // 4) for number in range(BODIES_AT_ONCE))):
            assert refused(server, address(99)).endswith("try again when they have come")
        assert asked(server, SPEECH, BODY, **address(99)).status == 400


@pytest.mark.parametrize("by", ["address", "key"])
def test_one_callers_bodies_leave_room_for_others(by: str, tmp_path: Path) -> None:
    file, keys = tmp_path / "keys.toml", [new_key(), new_key()]
    for number, key in enumerate(keys):
        add_key(file, new_entry(key, f"caller-{number}", owner=f"owner-{number}"))
    mine, others = ({"authorization": f"Bearer {key}", **address(1)} for key in keys)
    if by == "address":
        mine, others = address(1), address(2)

    def state() -> AppState:
        settings = ServerSettings(server=ServerSection(max_body_bytes=EACH))
        return make_state(PatientSpeaker(), settings, KeyRing(file if by == "key" else None))

    with serving(build_app, state) as server, almost_sent(server, *[mine] * (BODIES_AT_ONCE // 4)):
        assert "of yours are being read" in refused(server, mine)
        assert asked(server, SPEECH, BODY, **others).status == 400


def test_uploads_stay_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    form = part("input", b"Hello.") + part("prompt_audio", bytes(3 * MIB), file=True) + END
    with serving(build_app, state_of()) as server, undisturbed(server):
        assert asked(server, SPEECH, form, content_type=FORM).status == 200


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
