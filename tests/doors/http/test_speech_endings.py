"""How answers with speech end that do not go on to their end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.doors.fake_speaker import FakeSpeaker, FakeStream
from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http import encoding
from vivavoce.doors.http.app import build_app, build_legacy_app
from vivavoce.errors import MissingDependency
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.speaker import SpeechEvent
from vivavoce.service.host.verdict import FinishReason, Verdict

TEXT = "Hello there. How are you?"


class EndedStream(FakeStream):
    """Ends after so many events without an error, with a verdict that tells of one."""

    def __init__(self, order: SpeechOrder, events: int, verdict: Verdict) -> None:
        super().__init__(order, None)
        self._most, self._ending = events, verdict

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        number = 0
        async for event in super().__aiter__():
            if number == self._most:
                break
            number += 1
            yield event
        self.verdict = self._ending


class EndingSpeaker(FakeSpeaker):
    """Ends every stream so."""

    def __init__(self, events: int, verdict: Verdict) -> None:
        super().__init__()
        self._events, self._verdict = events, verdict

    async def speak(self, order: SpeechOrder) -> FakeStream:
        return EndedStream(order, self._events, self._verdict)


CANCELLED = Verdict(FinishReason.CANCELLED, 0.1, 0, 1)
BROKEN = Verdict(FinishReason.ERROR, 0.1, 0, 1, "engine: it broke", "engine_stopped")


@contextmanager
def ending(events: int, verdict: Verdict, build: Callable[..., Any] = build_app) -> Iterator[Served]:
    with serving(build, lambda: make_desk(EndingSpeaker(events, verdict))) as server:
        yield server


@pytest.mark.parametrize("verdict", [CANCELLED, BROKEN], ids=["cancelled", "error"])
@pytest.mark.parametrize("response_format", ["pcm", "wav", "mp3"])
def test_speech_that_is_not_whole_does_not_end_as_if_it_were(verdict: Verdict, response_format: str) -> None:
    with ending(3, verdict) as server:
        asked = {"input": TEXT, "response_format": response_format}
        with (
            httpx.stream("POST", f"{server.url}/v1/audio/speech", json=asked) as answer,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            answer.read()
        told = httpx.get(f"{server.url}/v1/audio/requests/{answer.headers['x-request-id']}").json()
        assert told["finish_reason"] == verdict.reason.value


def test_cosyvoices_routes_do_not_either() -> None:
    with ending(3, CANCELLED, build_legacy_app) as server:
        fields = {"tts_text": TEXT, "spk_id": "anna"}
        with (
            httpx.stream("POST", f"{server.url}/inference_sft", data=fields) as answer,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            answer.read()


@pytest.mark.parametrize(("verdict", "status"), [(CANCELLED, 499), (BROKEN, 503)], ids=["cancelled", "error"])
@pytest.mark.parametrize("fields", [{"response_format": "wav"}, {"stream_format": "sse"}], ids=["wav", "sse"])
def test_what_ends_before_there_is_audio_is_an_error_answer(
    verdict: Verdict, status: int, fields: dict[str, str]
) -> None:
    with ending(1, verdict) as server:
        answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, None)


def test_events_tell_the_verdict_of_what_was_cut() -> None:
    with ending(3, CANCELLED) as server:
        answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, "stream_format": "sse"})
        assert '"finish_reason":"cancelled"' in answer.text.splitlines()[-2]


async def gone(server: Served) -> None:
    while server.desk.reception.visits:
        await asyncio.sleep(0)


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}], ids=["audio", "sse"])
def test_a_format_that_cannot_be_made_holds_no_place(monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]) -> None:
    def lacking(*_: object) -> None:
        raise MissingDependency("response_format: this build of PyAV lacks libmp3lame; choose another format")

    monkeypatch.setattr(encoding, "open_encoder", lacking)
    with serving(build_app, lambda: make_desk(FakeSpeaker())) as server:
        answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, **fields})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "missing_dependency")
        server.call(lambda: asyncio.wait_for(gone(server), 10))


class Defective:
    """An encoder that nobody foresaw."""

    def __init__(self, good: int) -> None:
        self._good = good

    def encode(self, _: object) -> bytes:
        self._good -= 1
        if self._good < 0:
            raise ZeroDivisionError("innards")
        return b"audio"

    def close(self) -> None:
        return None


@pytest.mark.parametrize("good", [0, 1], ids=["before audio", "in the middle"])
def test_a_defect_is_told_as_the_servers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, good: int
) -> None:
    monkeypatch.setattr(encoding, "open_encoder", lambda *_: Defective(good))
    with serving(build_app, lambda: make_desk(FakeSpeaker())) as server:
        asked = {"json": {"input": TEXT}, "headers": {"x-request-id": "mine"}}
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", **asked) as answer:
            assert answer.headers["x-request-id"] == "mine"
            if good:
                with pytest.raises(httpx.RemoteProtocolError):
                    answer.read()
            else:
                assert answer.status_code == 500
                assert "innards" not in answer.read().decode()
                assert answer.json()["error"]["code"] == "internal_error"
        told = httpx.get(f"{server.url}/v1/audio/requests/mine").json()
        assert (told["finish_reason"], told["error"]["code"]) == ("error", "stage_failed")
        assert "innards" not in str(told)
    assert "innards" in caplog.text  # for the operator
