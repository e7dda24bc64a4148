"""The audible notice before an answer, over HTTP, WebSocket and without a port."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.fake_backend import RATE, SAMPLES_PER_LETTER, FakeBackend, FakeStream, tone
from tests.server.http.serving import Served, make_state, serving
from vivavoce.engine.request import AudioChunk, Word
from vivavoce.errors import EngineStopped, InvalidText, Overloaded, StageFailed
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.speech import SegmentText, SpeechRequest, Verdict
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_app
from vivavoce.server.notice import NO_SEGMENT, NoticedStream
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import ProvenanceSection, ServerSettings

NUMBERS = count()
NOTICE, TEXT = "A computer speaks.", "Hello there. How are you?"
PAUSE = np.zeros(RATE // 4, np.float32)
HEARD = np.concatenate([tone(len(NOTICE), 0), PAUSE])
"""The notice's samples with the silence behind it."""


async def events_of(dispatcher: RequestDispatcher, text: str = TEXT, **more: Any) -> list[Any]:
    asked = SpeechRequest(text, "anna", seed=7)
    identity = f"r{next(NUMBERS)}"
    async with await dispatcher.speak(ANONYMOUS, asked, protocol="http", request_id=identity, **more) as active:
        return [event async for event in active]


def dispatcher(notice: str | None = NOTICE, speaker: FakeBackend | None = None) -> RequestDispatcher:
    return RequestDispatcher(speaker or FakeBackend(), provenance=ProvenanceSection(notice=notice))


def samples_of(events: list[Any]) -> np.ndarray:
    return np.concatenate([one.samples for one in events if isinstance(one, AudioChunk)])


async def test_an_answer_begins_with_the_notice_which_is_spoken_once() -> None:
    served = dispatcher()
    for _ in range(2):
        events = await events_of(served)
        assert events[0].segment == NO_SEGMENT
        assert np.array_equal(events[0].samples, HEARD)
        assert np.array_equal(samples_of(events)[len(HEARD) :], samples_of(await events_of(served, begins=False)))
        assert events[1] == SegmentText(0, 0, 13)
    orders = served.backend.orders  # type: ignore[attr-defined]
    assert [one.text for one in orders].count(NOTICE) == 1
    assert orders[0].voice is None  # the default voice, whatever the request names


async def test_a_changed_notice_holds_for_the_next_answer() -> None:
    served = dispatcher()
    await events_of(served)
    served.provenance = ProvenanceSection(notice="tone")
    sound = (await events_of(served))[0].samples
    assert len(sound) == RATE // 2
    assert 0.05 < np.abs(sound).max() <= 0.1
    assert sound[0] == sound[-1] == 0.0
    served.provenance = ProvenanceSection()
    assert isinstance((await events_of(served))[0], SegmentText)


@dataclass
class Strict(FakeBackend):
    """Refuses the notice alone."""

    error: Exception | None = None

    async def speak(self, order: SpeechRequest) -> FakeStream:
        if order.text == NOTICE and self.error is not None:
            raise self.error
        return await super().speak(order)


@pytest.mark.parametrize("error", [InvalidText("text: it has no words", nothing_to_say=True), Overloaded("full")])
async def test_without_its_notice_no_answer_begins(error: Exception) -> None:
    speaker = Strict(error=error)
    served = dispatcher(speaker=speaker)
    with pytest.raises(Overloaded if isinstance(error, Overloaded) else StageFailed, match=r"full|provenance\.notice"):
        await events_of(served)
    assert not speaker.orders
    speaker.error = None
    assert np.array_equal((await events_of(served))[0].samples, HEARD)


async def test_a_notice_that_breaks_off_is_not_kept() -> None:
    served = dispatcher(speaker=FakeBackend(fails_after=1))
    with pytest.raises(EngineStopped):
        await events_of(served)
    served.backend.fails_after = None  # type: ignore[attr-defined]
    assert np.array_equal((await events_of(served))[0].samples, HEARD)


async def test_requests_at_once_share_it_and_one_that_leaves_stops_it_for_none() -> None:
    gate = asyncio.Event()
    served = dispatcher(speaker=FakeBackend(gate=gate))
    first, second = (asyncio.create_task(events_of(served)) for _ in range(2))
    for _ in range(20):
        await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert np.array_equal((await second)[0].samples, HEARD)
    assert [one.text for one in served.backend.orders].count(NOTICE) == 1  # type: ignore[attr-defined]


async def test_words_are_heard_later_by_its_length() -> None:
    class Timed:
        sample_rate, verdict = RATE, Verdict
        push = end = cancel = None

        async def __aiter__(self) -> Any:
            yield AudioChunk(np.zeros(RATE, np.float32), RATE, words=(Word("Hi", 0, 2, 0.25, 0.5),))

    _, chunk = [event async for event in NoticedStream(Timed(), HEARD)]  # type: ignore[arg-type]
    late_s = len(HEARD) / RATE
    assert [(one.start_s, one.end_s) for one in chunk.words] == [(0.25 + late_s, 0.5 + late_s)]


@pytest.fixture(scope="module")
def server() -> Any:
    settings = ServerSettings.model_validate({"provenance": {"notice": NOTICE}})
    with serving(build_app, lambda: make_state(settings=settings)) as served:
        yield served


def asked(server: Served, **more: Any) -> httpx.Response:
    body = {"input": TEXT, "voice": "anna", "response_format": "pcm", **more}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body)


def test_over_http_it_is_part_of_the_audio(server: Served) -> None:
    content = asked(server).content
    assert content.startswith(to_int16(HEARD).tobytes())
    assert len(content) == 2 * (len(HEARD) + len(TEXT) * SAMPLES_PER_LETTER)


def test_segments_of_events_begin_behind_it(server: Served) -> None:
    lines = asked(server, stream_format="sse").text.split("\n\n")
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert told[0]["type"] == "speech.audio.delta"
    assert base64.b64decode(told[0]["audio"]) == to_int16(HEARD).tobytes()
    begun = [one["start"] for one in told if one["type"] == "speech.segment"]
    assert begun == [len(HEARD) / RATE, (len(HEARD) + 13 * SAMPLES_PER_LETTER) / RATE]
    spoken_s = (len(HEARD) + len(TEXT) * SAMPLES_PER_LETTER) / RATE
    assert told[-1]["verdict"]["audio_seconds"] == pytest.approx(spoken_s)


def test_characters_of_elevenlabs_begin_behind_it(server: Served) -> None:
    answer = httpx.post(f"{server.url}/v1/text-to-speech/anna/with-timestamps", json={"text": TEXT})
    starts = answer.json()["alignment"]["character_start_times_seconds"]
    assert len(starts) == len(TEXT)
    assert starts[0] == pytest.approx(len(HEARD) / RATE, abs=1e-3)


async def test_a_websocket_has_it_once_whatever_is_flushed(server: Served) -> None:
    from websockets.asyncio.client import connect

    audio, starts = b"", []
    async with connect(server.url.replace("http", "ws", 1) + "/v1/audio/stream") as socket:
        for message in (
            {"type": "start", "voice": "anna", "response_format": "pcm"},
            {"type": "text", "text": "Hello there. "},
            {"type": "flush"},
            {"type": "text", "text": "How are you?"},
            {"type": "end"},
        ):
            await socket.send(json.dumps(message))
        async for frame in socket:
            if isinstance(frame, bytes):
                audio += frame
                continue
            told = json.loads(frame)
            starts += [told["start"]] if told["type"] == "segment" else []
            if told["type"] == "done":
                break
    assert audio.startswith(to_int16(HEARD).tobytes())
    assert len(audio) == 2 * (len(HEARD) + len(TEXT) * SAMPLES_PER_LETTER)
    assert starts == [len(HEARD) / RATE, (len(HEARD) + 13 * SAMPLES_PER_LETTER) / RATE]
