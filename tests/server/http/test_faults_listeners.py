"""Listeners that do not listen, leave, or come too late; and the others, who hear everything."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_backend import SAMPLES_PER_LETTER
from tests.server.http.faulty_clients import (
    NEIGHBOUR,
    Answer,
    Client,
    PatientSpeaker,
    asked,
    empty,
    memory_bounded,
    request,
    speech,
    state_of,
    undisturbed,
    unread,
    until,
)
from tests.server.http.serving import Served, make_state, serving
from vivavoce.frontend.speech import FinishReason
from vivavoce.server.http.app import build_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key

SPEECH = "/v1/audio/speech"
MIB = 1 << 20
LONG = "A long sentence, spoken again. " * 320
BYTES_PER_S = 48_000


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app, state_of()) as served:
        yield served


def told(server: Served, identity: str) -> dict[str, Any]:
    """What the server tells of a request."""
    answer = asked(server, f"/v1/audio/requests/{identity}", method="GET")
    assert answer.status == 200
    return dict(json.loads(answer.body))


@pytest.mark.parametrize("window", [4_096, None], ids=["small window", "usual window"])
def test_who_does_not_read_holds_up_only_itself(server: Served, window: int | None) -> None:
    whole = 2 * SAMPLES_PER_LETTER * len(LONG)
    assert whole > 4_500_000
    with undisturbed(server), memory_bounded(32 * MIB), Client(server, receive_buffer=window) as slow:
        slow.ask(SPEECH, speech(LONG))
        status, headers = slow.head()
        assert status == 200
        with Client(server) as other:
            other.ask(SPEECH, speech(LONG))
            assert other.head()[0] == 200
            assert other.size_of_rest() == (whole, True)
        so_far = told(server, headers["x-request-id"])
        assert so_far["status"] == "running"
        assert so_far["audio_seconds"] * BYTES_PER_S < 1_000_000
        assert slow.size_of_rest() == (whole, True)


@pytest.mark.parametrize(
    ("way", "extra"),
    [
        *((way, {}) for way in ("reset", "close", "half", "half, not reading")),
        ("close", {"stream_format": "sse"}),
        ("half", {"response_format": "mp3"}),
    ],
    ids=str,
)
def test_who_leaves_in_the_middle_ends_its_own_stream(server: Served, way: str, extra: dict[str, str]) -> None:
    with undisturbed(server), Client(server, receive_buffer=4_096) as client:
        client.ask(SPEECH, speech(LONG, **extra))
        status, headers = client.head()
        assert (status, bool(client.chunk())) == (200, True)
        if way == "half, not reading":
            server.call(lambda: until(lambda: unread(server) == 1))
        if way.startswith("half"):
            client.stop_writing()
        else:
            client.reset() if way == "reset" else client.__exit__()
        server.call(lambda: until(lambda: server.state.dispatcher.active == 1))
        ending = told(server, headers["x-request-id"])
    assert (ending["status"], ending["finish_reason"], ending["error"]) == ("finished", "cancelled", None)
    assert ending["audio_seconds"] < len(LONG) / 100


def test_a_crowd_that_leaves_at_random_moments(server: Served) -> None:
    text = "Some words, and then some more. " * 40
    whole = 2 * SAMPLES_PER_LETTER * len(text)

    def visit(seed: int) -> str:
        """What the client of this number saw: it was whole or broken, or the client left."""
        chance = random.Random(seed)
        sent = request(SPEECH, speech(text, stream_format="audio"), x_request_id=f"crowd-{seed}")
        with Client(server) as client:
            way = chance.choice(["stay", "close", "reset", "half", "early"])
            if way == "early":
                client.send(sent[: chance.randrange(len(sent))])
                client.reset() if chance.random() < 0.5 else client.__exit__()
                return "left"
            client.send(sent)
            if way == "stay":
                answer = client.answer()
                return "whole" if (len(answer.body), answer.whole) == (whole, True) else "broken"
            with suppress(ConnectionResetError):
                client.socket.recv(chance.randrange(1, whole))
            {"close": client.__exit__, "reset": client.reset, "half": client.stop_writing}[way]()
            return "left"

    # The clients run in this process, too, 16 at once; if answers were kept, 140 would need more than this.
    with undisturbed(server), memory_bounded(110 * whole), ThreadPoolExecutor(16) as pool:
        seen = list(pool.map(visit, range(140)))
    assert set(seen) == {"whole", "left"}
    assert seen.count("whole") > 14
    request_log = server.state.dispatcher.request_log
    assert request_log.running == 0
    entries = [record for record in request_log.finished if record.request_id.startswith("crowd-")]
    assert {entry.reason for entry in entries} == {FinishReason.STOP, FinishReason.CANCELLED}


def draining(server: Served, seconds: float) -> asyncio.Future[None]:
    """The server begins to shut down."""

    async def begin() -> asyncio.Future[None]:
        return asyncio.ensure_future(server.state.dispatcher.drain(seconds))

    future: asyncio.Future[None] = server.call(begin)
    server.call(lambda: until(lambda: server.state.dispatcher.draining))
    return future


def test_a_server_that_shuts_down_finishes_what_it_has_taken() -> None:
    with serving(build_app, state_of()) as server:
        with undisturbed(server):
            end = draining(server, 60.0)
            answer = asked(server, SPEECH, speech())
            assert (answer.status, answer.error["code"]) == (503, "engine_stopped")
            assert answer.error["message"].startswith("server: it is shutting down")
            assert answer.headers["retry-after"] == "5"
            assert asked(server, "/health/ready", method="GET").status == 503
            assert asked(server, "/health/live", method="GET").status == 200
            assert not end.done()
        server.call(lambda: end)


def test_what_is_not_finished_in_time_is_cut_and_says_so() -> None:
    with serving(build_app, state_of()) as server:
        with Client(server) as client, Client(server) as listener:
            client.ask(SPEECH, speech(seed=NEIGHBOUR))
            status, headers = client.head()
            assert (status, bool(client.chunk())) == (200, True)
            listener.ask(SPEECH, speech(seed=NEIGHBOUR, stream_format="sse"))
            assert listener.head()[0] == 200
            server.call(lambda: server.state.dispatcher.drain(0.0))
            assert client.rest() == (b"", False)
            events, whole = listener.rest()
            assert whole
            assert b'"type":"error"' in events
            assert b'"code":"engine_stopped"' in events
            assert b'"finish_reason":"error"' in events
        ending = told(server, headers["x-request-id"])
        assert (ending["finish_reason"], ending["error"]["code"]) == ("error", "engine_stopped")
        empty(server)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, str, str]]:
    """A server that wants keys, and two that it knows."""
    file, keys = tmp_path / "keys.toml", [new_key(), new_key()]
    for number, key in enumerate(keys):
        add_key(file, new_entry(key, f"caller-{number}", owner=f"owner-{number}"))
    with serving(build_app, lambda: make_state(PatientSpeaker(), keys=KeyRing(file))) as served:
        yield served, keys[0], keys[1]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", SPEECH),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/fake"),
        ("GET", "/v1/audio/voices"),
        ("POST", "/v1/audio/voices"),
        ("DELETE", "/v1/audio/voices/anna"),
        ("GET", "/v1/audio/requests/req_1"),
    ],
)
def test_a_wrong_key_is_refused_and_not_told(guarded: tuple[Served, str, str], method: str, path: str) -> None:
    server, key, _ = guarded
    wrong = [
        {"authorization": "Bearer sk-wrong"},
        {"authorization": f"Bearer {key}x"},
        {"authorization": f"Basic {key}"},
        {"xi_api_key": "sk-wrong"},
        {"authorization": "Bearer sk-wrong", "xi_api_key": key},
        {},
    ]
    for headers in wrong:
        answer = asked(server, path, speech() if method == "POST" else b"", method, **headers)
        assert (answer.status, answer.error["code"]) == (401, "unauthorized")
        assert answer.error["type"] == "authentication_error"
        assert answer.headers["www-authenticate"] == 'Bearer realm="vivavoce"'
        assert b"sk-wrong" not in answer.body
        assert key.encode() not in answer.body


def test_what_became_of_a_request_only_its_caller_learns(guarded: tuple[Served, str, str]) -> None:
    server, mine, other = guarded
    identity = asked(server, SPEECH, speech(), authorization=f"Bearer {mine}").headers["x-request-id"]

    def asked_by(key: str, identity: str) -> Answer:
        return asked(server, f"/v1/audio/requests/{identity}", method="GET", authorization=f"Bearer {key}")

    assert asked_by(mine, identity).status == 200
    theirs, nobodys = asked_by(other, identity), asked_by(other, "req_nobody")
    assert (theirs.status, theirs.error["code"]) == (404, "request_not_found")
    assert theirs.error["message"].replace(identity, "") == nobodys.error["message"].replace("req_nobody", "")
