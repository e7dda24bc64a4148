"""`/v1/audio/speech` and `/v1/audio/voices` as clients meet them: real sockets, a speaker that can be held."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import av
import httpx
import openai
import pytest
import soundfile

from tests.server.fake_backend import RATE, SAMPLES_PER_LETTER, FakeBackend
from tests.server.http.faulty_clients import Client, state_of, until
from tests.server.http.serving import Served, make_state, serving
from vivavoce.errors import (
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    MissingDependency,
    Overloaded,
    TooLarge,
    VivavoceError,
)
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat
from vivavoce.frontend.audio.samples import Samples
from vivavoce.frontend.audio.tag import AudioTag
from vivavoce.frontend.speech import FinishReason, Verdict
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import ServerSettings

TEXT = "Hello there. How are you?"
LENGTH = len(TEXT) * SAMPLES_PER_LETTER


def speaker_of(served: Served) -> FakeBackend:
    speaker = served.state.dispatcher.backend
    assert isinstance(speaker, FakeBackend)
    return speaker


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app) as served:
        yield served


def speech(server: Served, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, **fields})


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]


def verdict_of(server: Served, answer: httpx.Response) -> dict[str, Any]:
    told = httpx.get(f"{server.url}/v1/audio/requests/{answer.headers['x-request-id']}")
    assert told.status_code == 200
    return dict(told.json())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("aac", "audio/aac"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
        ("pcm", "audio/pcm; rate=24000; channels=1"),
    ],
)
def test_every_format_has_its_type_and_its_length(server: Served, name: str, kind: str) -> None:
    answer = speech(server, response_format=name)
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    if name == "pcm":
        assert len(answer.content) == 2 * LENGTH
        return
    if name == "wav":  # of unknown length
        samples, rate = soundfile.read(io.BytesIO(answer.content))
        assert (len(samples), rate) == (LENGTH, RATE)
    with av.open(io.BytesIO(answer.content)) as container:
        seconds = sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))
    assert seconds == pytest.approx(LENGTH / RATE, abs=0.1)


@pytest.mark.parametrize(
    ("name", "fields", "kind", "size"),
    [
        ("pcm", {"sample_rate": 16_000}, "audio/pcm; rate=16000; channels=1", 2 * (LENGTH * 2 // 3)),
        ("pcm", {"sample_rate": 48_000, "stream_format": "sse"}, "text/event-stream; charset=utf-8", 4 * LENGTH),
        ("ulaw", {}, "audio/PCMU; rate=8000; channels=1", LENGTH // 3),
        ("alaw", {"sample_rate": 16_000}, "audio/PCMA; rate=16000; channels=1", LENGTH * 2 // 3),
    ],
)
def test_the_rate_may_be_chosen(server: Served, name: str, fields: dict[str, Any], kind: str, size: int) -> None:
    answer = speech(server, response_format=name, **fields)
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    content = answer.content
    if "stream_format" in fields:
        deltas = [event["audio"] for event in events_of(answer) if event["type"] == "speech.audio.delta"]
        content = b"".join(map(base64.b64decode, deltas))
        assert events_of(answer)[-1]["verdict"]["audio_seconds"] == LENGTH / RATE
    assert len(content) == size
    form = httpx.post(
        f"{server.url}/v1/audio/speech", data={"input": TEXT, "response_format": "wav", "sample_rate": 8000}
    )
    assert soundfile.read(io.BytesIO(form.content))[1] == 8_000
    refused = speech(server, response_format=name, sample_rate=11_025).json()["error"]
    assert (refused["param"], refused["code"]) == ("sample_rate", "invalid_request")


def test_a_model_of_another_rate_is_heard_as_fast_and_as_high(server: Served) -> None:
    """Headers and types tell 22.05 kHz; samples without a header are of 24 kHz, OpenAI's rate, unless asked for."""
    with serving(build_app, lambda: make_state(FakeBackend(rate=22_050))) as slower:
        samples, rate = soundfile.read(io.BytesIO(speech(slower, response_format="wav").content))
        assert (len(samples), rate) == (LENGTH, 22_050)
        for name in ("mp3", "opus", "aac", "flac"):
            with av.open(io.BytesIO(speech(slower, response_format=name).content)) as container:
                seconds = sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))
            assert seconds == pytest.approx(LENGTH / 22_050, abs=0.1)
        bare, asked = speech(slower, response_format="pcm"), speech(slower, response_format="pcm", sample_rate=22_050)
        assert bare.headers["content-type"] == "audio/pcm; rate=24000; channels=1"
        assert len(bare.content) == pytest.approx(2 * LENGTH * 24_000 / 22_050, abs=4)
        assert asked.content == speech(server, response_format="pcm").content
        assert verdict_of(slower, asked)["audio_seconds"] == pytest.approx(LENGTH / 22_050)
        (told,) = httpx.get(f"{slower.url}/v1/models").json()["data"][:1]
        assert told["sample_rate"] == 22_050


def test_the_openai_package_streams(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
        with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="anna", input=TEXT, response_format="pcm"
        ) as answer:
            pieces = list(answer.iter_bytes(chunk_size=4800))
        assert sum(map(len, pieces)) == 2 * LENGTH
        assert len(pieces) > 1
        assert [model.id for model in client.models.list()] == ["fake"]
        with pytest.raises(openai.NotFoundError, match="voice: 'nobody' is not registered"):
            client.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
        with pytest.raises(openai.BadRequestError, match="speed: input should be less than or equal to 4"):
            client.audio.speech.create(model="tts-1", voice="anna", input=TEXT, speed=4.5)


@pytest.mark.parametrize("model", ["tts-1-hd", "tts-1-1106", "gpt-4o-mini-tts-2025-12-15", "fake", ""])
def test_models_that_clients_ask_openai_for_are_the_served_one(server: Served, model: str) -> None:
    assert speech(server, model=model, response_format="pcm").status_code == 200


PUBLISHED = [
    ("CosyVoice2-0___5B", "CosyVoice2-0.5B"),
    ("CosyVoice2-0___5B", "FunAudioLLM/CosyVoice2-0.5B"),
    ("CosyVoice2-0___5B", "iic/CosyVoice2-0.5B"),
    ("CosyVoice2-0___5B", "iic/CosyVoice2-0___5B"),
    ("CosyVoice2-0.5B", "cosyvoice2-0.5b"),
    ("Fun-CosyVoice3-0.5B-2512", "Fun-CosyVoice3-0.5B"),
    ("Fun-CosyVoice3-0.5B", "FunAudioLLM/Fun-CosyVoice3-0.5B-2512"),
    ("mine", "house-voice"),
]


@pytest.mark.parametrize(("folder", "model"), PUBLISHED)
def test_a_published_model_answers_to_its_ids(folder: str, model: str) -> None:
    class Named(FakeBackend):
        @property
        def about(self) -> ModelInfo:
            return replace(super().about, name=folder)

    settings = ServerSettings.model_validate({"requests": {"model_aliases": ["house-voice"]}})
    with serving(build_app, lambda: make_state(Named(), settings)) as served:
        assert speech(served, model=model).status_code == 200
        assert httpx.get(f"{served.url}/v1/models/{model}").json()["id"] == model
        assert speech(served, model="CosyVoice-300M").status_code == 404


@pytest.mark.parametrize("model", ["whisper-1", "tts-1-best"])
def test_other_models_are_not_found(server: Served, model: str) -> None:
    answer = speech(server, model=model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_events_tell_segments_and_a_verdict(server: Served) -> None:
    answer = speech(server, stream_format="sse", response_format="pcm")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "speech.segment"
    assert kinds[-2:] == ["speech.segment.done", "speech.audio.done"]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta")
    assert len(audio) == 2 * LENGTH
    ends = [event for event in events if event["type"] == "speech.segment.done"]
    assert [(e["start_character"], e["end_character"]) for e in ends] == [(0, 13), (13, 25)]
    assert [(e["start"], e["end"]) for e in ends] == [(0.0, 0.13), (0.13, 0.25)]
    verdict = events[-1]["verdict"]
    assert (verdict["finish_reason"], verdict["segments_spoken"], verdict["segments_given"]) == ("stop", 2, 2)
    assert verdict["request_id"] == answer.headers["x-request-id"]


def test_a_finished_request_is_remembered(server: Served) -> None:
    told = verdict_of(server, speech(server, response_format="wav"))
    assert told["status"] == "finished"
    assert told["finish_reason"] == "stop"
    assert told["audio_seconds"] == pytest.approx(LENGTH / RATE)
    missing = httpx.get(f"{server.url}/v1/audio/requests/req_nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "request_not_found"


def test_a_request_may_bring_its_id(server: Served) -> None:
    chosen = {"x-request-id": "mine-1"}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT}, headers=chosen)
    assert answer.headers["x-request-id"] == "mine-1"
    assert 0 <= float(answer.headers["x-admission-seconds"]) < 60
    again = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT}, headers=chosen)
    assert again.headers["x-request-id"] != "mine-1"
    evil = httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "a b\tc"})
    assert evil.headers["x-request-id"].startswith("req_")


CANCELLED = Verdict(FinishReason.CANCELLED, 0.1, 0, 1)
BROKEN = Verdict(FinishReason.ERROR, 0.1, 0, 1, "engine: it broke", "engine_stopped")
FULL = Overloaded("streams: too many; try again in 3 s", 2.2)
ENDINGS = {"raises": {}, "cancelled": {"ends_with": CANCELLED}, "error": {"ends_with": BROKEN}}
"""What a stand-in's stream does that is over too early."""


@pytest.mark.parametrize("reason", list(FinishReason))
def test_each_end_of_a_request_is_told(reason: FinishReason) -> None:
    speaker = FakeBackend(fails_after=1, ends_with=Verdict(reason, 0.1, 0, 1, "engine: it broke", "engine_stopped"))
    with serving(build_app, lambda: make_state(speaker)) as server:
        answer = speech(server, stream_format="sse")
        assert verdict_of(server, answer)["finish_reason"] == reason.value


@pytest.mark.parametrize("fields", [{"response_format": "wav"}, {"stream_format": "sse"}], ids=["wav", "sse"])
@pytest.mark.parametrize(
    ("speaker", "status", "code", "retry_after"),
    [
        ({"fails_after": 0}, 503, "engine_stopped", "5"),
        ({"fails_after": 0, "ends_with": CANCELLED}, 499, "cancelled", None),
        ({"fails_after": 0, "ends_with": BROKEN}, 503, "engine_stopped", "5"),
        ({"refuses_with": FULL}, 429, "overloaded", "3"),
    ],
    ids=[*ENDINGS, "is full"],
)
def test_what_ends_before_there_is_audio_is_an_error_answer(
    speaker: dict[str, Any], status: int, code: str, retry_after: str | None, fields: dict[str, str]
) -> None:
    with serving(build_app, lambda: make_state(FakeBackend(**speaker))) as server:
        answer = speech(server, **fields)
        assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry_after)
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, None)
        assert (error["type"] == "rate_limit_error") == (status == 429)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("build", "path", "asked"),
    [
        (build_app, "/v1/audio/speech", {"json": {"input": TEXT, "response_format": "pcm"}}),
        (build_app, "/v1/audio/speech", {"json": {"input": TEXT, "response_format": "wav"}}),
        (build_app, "/v1/audio/speech", {"json": {"input": TEXT, "response_format": "mp3"}}),
        (build_legacy_app, "/inference_sft", {"data": {"tts_text": TEXT, "spk_id": "anna"}}),
    ],
    ids=["pcm", "wav", "mp3", "cosyvoice"],
)
def test_speech_that_is_not_whole_does_not_end_as_if_it_were(
    ending: str, build: Callable[..., Any], path: str, asked: dict[str, Any]
) -> None:
    with serving(build, lambda: make_state(FakeBackend(fails_after=2, **ENDINGS[ending]))) as server:
        with httpx.stream("POST", server.url + path, **asked) as answer, pytest.raises(httpx.RemoteProtocolError):
            answer.read()
        told = server.call(lambda: server.state.dispatcher.request_log.get(answer.headers["x-request-id"], ANONYMOUS))
        assert told.reason is (FinishReason.CANCELLED if ending == "cancelled" else FinishReason.ERROR)
        assert told.error_code == (None if ending == "cancelled" else "engine_stopped")


@pytest.mark.parametrize("ending", ENDINGS)
def test_events_tell_the_verdict_of_what_was_cut(ending: str) -> None:
    with serving(build_app, lambda: make_state(FakeBackend(fails_after=2, **ENDINGS[ending]))) as server:
        *events, last = events_of(speech(server, stream_format="sse"))
        assert last["verdict"]["finish_reason"] == ("cancelled" if ending == "cancelled" else "error")
        assert [event["type"] for event in events].count("error") == (ending == "raises")


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}], ids=["audio", "sse"])
def test_a_format_that_cannot_be_made_holds_no_place(
    monkeypatch: pytest.MonkeyPatch, server: Served, fields: dict[str, str]
) -> None:
    lacking = MissingDependency("response_format: this build of PyAV lacks libmp3lame; choose another format")
    monkeypatch.setattr(OutputFormat, "open", Mock(side_effect=lacking))
    answer = speech(server, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "missing_dependency")
    server.call(lambda: until(lambda: server.state.dispatcher.active == 0))


@pytest.mark.parametrize("good", [0, 1], ids=["before audio", "in the middle"])
def test_a_defect_is_told_as_the_servers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, server: Served, good: int
) -> None:
    encode = Mock(side_effect=[*[b"audio"] * good, ZeroDivisionError("innards")])
    monkeypatch.setattr(OutputFormat, "open", Mock(return_value=Mock(encode=encode)))
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json={"input": TEXT}) as answer:
        if good:
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
        else:
            assert answer.status_code == 500
            assert "innards" not in answer.read().decode()
            assert answer.json()["error"]["code"] == "internal_error"
    told = verdict_of(server, answer)
    assert (told["finish_reason"], told["error"]["code"]) == ("error", "stage_failed")
    assert "innards" not in str(told)
    assert "innards" in caplog.text  # for the operator


def test_a_slow_encoder_holds_up_no_other_stream(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    working, may_go_on = threading.Event(), threading.Event()

    def encode(_: Samples) -> bytes:
        working.set()
        assert may_go_on.wait(20.0), "no other request was served meanwhile"
        return b"sound"

    usual = OutputFormat.open

    def opened(output: OutputFormat, rate: int, tag: AudioTag | None) -> Any:
        return held if output.codec is AudioFormat.MP3 else usual(output, rate, tag)

    closed = threading.Event()
    held = Mock(encode=encode, finish=lambda: b"", is_instant=False, close=Mock(side_effect=closed.set))
    monkeypatch.setattr(OutputFormat, "open", opened)
    with ThreadPoolExecutor(1) as aside:
        slow = aside.submit(speech, server, response_format="mp3")
        assert working.wait(20.0)
        assert len(speech(server, response_format="pcm").content) == 2 * LENGTH
        may_go_on.set()
        assert slow.result(20.0).content == b"sound" * 4
    assert closed.wait(20.0)  # it may come after the last bytes
    held.close.assert_called_once()


def test_a_recording_comes_as_base64_or_as_a_file(server: Served) -> None:
    speaker = speaker_of(server)
    encoded = base64.b64encode(b"RIFF recording").decode()
    assert speech(server, prompt_audio=encoded, prompt_text="What I say.").status_code == 200
    from_json = speaker.orders[-1].voice
    answer = httpx.post(
        f"{server.url}/v1/audio/speech",
        data={"input": TEXT, "prompt_text": "What I say.", "sampling": '{"top_k": 5}', "speed": "1.5"},
        files={"prompt_audio": ("me.wav", b"RIFF recording")},
    )
    assert answer.status_code == 200
    order = speaker.orders[-1]
    assert (order.voice, order.sampling.top_k, order.speed, order.reading) == (from_json, 5, 1.5, "natural")


def test_a_listener_that_does_not_read_is_ended_and_others_go_on() -> None:
    make = state_of(FakeBackend, listener_timeout_s=1.0)
    with serving(build_app, make) as server, Client(server, receive_buffer=4096) as slow:
        body = {"input": "A long sentence that is spoken again. " * 500, "response_format": "pcm"}
        slow.ask("/v1/audio/speech", json.dumps(body).encode(), x_request_id="slow-1")
        assert slow.head()[0] == 200
        assert speech(server, response_format="pcm").status_code == 200
        server.call(lambda: speaker_of(server).streams[0].cancelled.wait())
        told = httpx.get(f"{server.url}/v1/audio/requests/slow-1").json()
        assert (told["finish_reason"], told["error"]["code"]) == ("error", "listener_stalled")


def test_unknown_paths_and_methods_are_explained(server: Served) -> None:
    assert httpx.get(f"{server.url}/v1/nothing").json()["error"]["code"] == "not_found"
    answer = httpx.put(f"{server.url}/v1/audio/speech")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"


def add(server: Served, **texts: str) -> httpx.Response:
    fields = {"name": "me", **texts}
    return httpx.post(f"{server.url}/v1/audio/voices", data=fields, files={"file": ("me.wav", b"RIFF")})


@pytest.mark.parametrize(
    ("error", "status", "field"),
    [
        (InvalidAudio("reference audio: has 0.2 s, fewer than 0.5; record more"), 400, "file"),
        (TooLarge("reference audio: 9 bytes are more than the limit of 8; cut it"), 413, "file"),
        (InvalidRequest("voice name: 'a b' holds a space; use letters"), 400, "name"),
        (InvalidText("text: control character U+0001 at position 0; remove it"), 400, "transcript"),
        (InvalidRequest("voice: there are 3 voices already, the limit; remove one"), 400, "voice"),
    ],
)
def test_errors_name_the_forms_fields(
    monkeypatch: pytest.MonkeyPatch, server: Served, error: VivavoceError, status: int, field: str
) -> None:
    monkeypatch.setattr(speaker_of(server), "refuses_with", error)
    answer = add(server)
    told = answer.json()["error"]
    assert (answer.status_code, told["code"], told["param"]) == (status, error.code, field)
    assert told["message"] == f"{field}:{str(error).partition(':')[2]}"


def test_a_transcript_is_called_by_its_name_in_requests(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    error = InvalidText("transcript: holds no words; leave it out")
    monkeypatch.setattr(speaker_of(server), "refuses_with", error)
    told = speech(server, prompt_audio="AAAA", prompt_text="…").json()["error"]
    assert (told["param"], told["message"]) == ("prompt_text", "prompt_text: holds no words; leave it out")


def test_a_list_is_read_by_open_webui_too(server: Served) -> None:
    assert add(server, description="mine").status_code == 201
    listed = httpx.get(f"{server.url}/v1/audio/voices").json()
    assert [voice["id"] for voice in listed["data"]] == ["anna", "me"]
    assert listed["voices"] == [{"id": "anna", "name": "anna"}, {"id": "me", "name": "me"}]


def test_a_consent_is_stored_and_listed(server: Served) -> None:
    assert add(server, replace="true", consent="All but politics.", consent_by="Anna").status_code == 201
    listed = httpx.get(f"{server.url}/v1/audio/voices").json()["data"]
    stored = next(voice for voice in listed if voice["id"] == "me")
    assert (stored["consent"], stored["consent_by"]) == ("All but politics.", "Anna")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", stored["consent_at"])
    for given, field, problem in (
        ({"consent": "x" * 2_001}, "consent", "has 2001 characters, more than the limit of 2000; shorten it"),
        ({"consent": "Yes.", "consent_by": "y" * 201}, "consent_by", "has 201 characters, more than the limit of 200"),
        ({"consent_by": "Anna"}, "consent", "is empty; say in words what the person allows"),
    ):
        answer = add(server, name="you", **given)
        told = answer.json()["error"]
        assert (answer.status_code, told["param"]) == (400, field)
        assert problem in told["message"]


@pytest.mark.parametrize("name", ["mp3", "wav", "aac", "flac", "opus"])
def test_an_answer_is_tagged(server: Served, name: str) -> None:
    assert b"AI-generated speech" in speech(server, response_format=name).content[:400]


def test_an_answer_without_a_tag() -> None:
    settings = ServerSettings.model_validate({"provenance": {"tag": False}})
    with serving(build_app, lambda: make_state(settings=settings)) as server:
        assert speech(server, response_format="mp3").content[:2] == b"\xff\xf3"
        assert speech(server, response_format="wav").content[36:40] == b"data"


VOICES = "/v1/audio/voices"


@pytest.mark.parametrize(("content", "told"), [(b"clipped", ["is clipped; record it at a lower level"]), (b"RIFF", [])])
def test_the_answer_that_adds_a_voice_says_what_to_record_better(content: bytes, told: list[str]) -> None:
    with serving(build_app, make_state) as server:
        added = httpx.post(server.url + VOICES, data={"name": "me"}, files={"file": ("me.wav", content)})
        assert (added.status_code, added.json()["warnings"]) == (201, told)


VOICE_REQUESTS: dict[str, Callable[[httpx.Client], httpx.Response]] = {
    "list": lambda client: client.get(VOICES),
    "add": lambda client: client.post(VOICES, data={"name": "me"}, files={"file": ("me.wav", b"RIFF")}),
    "remove": lambda client: client.delete(f"{VOICES}/me"),
}


def test_a_reading_is_under_the_limits_of_a_key(tmp_path: Path) -> None:
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "anna", requests_per_minute=2))
    with serving(build_app, lambda: make_state(FakeBackend(), keys=KeyRing(path))) as server:
        asked = {
            "url": f"{server.url}/v1/audio/normalize",
            "json": {"input": "5 km", "language": "de", "emojis": "named"},
        }
        assert httpx.post(**asked).status_code == 401
        answers = [httpx.post(**asked, headers={"x-api-key": key}) for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        change = {"start": 0, "end": 4, "written": "5 km", "spoken": "fünf Kilometer", "rule": "unit"}
        assert answers[0].json()["text"] == "fünf Kilometer"
        assert [one | {"rule": "unit"} for one in answers[0].json()["changes"]] == [change]
        order = speaker_of(server).orders[0]
        assert (order.text, order.owner, order.language, order.emojis) == ("5 km", "anna", "de", "named")


@pytest.mark.parametrize("what", VOICE_REQUESTS)
def test_voices_are_under_the_limits_of_a_key(tmp_path: Path, what: str) -> None:
    path, key, other = tmp_path / "keys.toml", new_key(), new_key()
    add_key(path, new_entry(key, "anna", requests_per_minute=2, concurrent=1))
    add_key(path, new_entry(other, "berta"))
    speaker = FakeBackend(gate=asyncio.Event())
    with serving(build_app, lambda: make_state(speaker, keys=KeyRing(path))) as server:
        anna, berta = (httpx.Client(base_url=server.url, headers={"x-api-key": one}) for one in (key, other))
        with ThreadPoolExecutor(1) as aside, anna, berta:
            speaking = aside.submit(anna.post, "/v1/audio/speech", json={"input": TEXT})
            server.call(lambda: until(lambda: server.state.dispatcher.active == 1))
            answer = VOICE_REQUESTS[what](anna)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
            assert "its limit at once" in answer.json()["error"]["message"]
            server.call(speaker.gate.set)
            assert speaking.result(20.0).status_code == 200
            assert VOICE_REQUESTS[what](anna).status_code in (200, 201, 404)
            answer = VOICE_REQUESTS[what](anna)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
            assert "may ask for 2 in a minute" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) in range(1, 31)
            assert VOICE_REQUESTS[what](berta).status_code in (200, 201, 404)


def test_voices_are_left_alone_while_the_server_shuts_down() -> None:
    with serving(build_app) as server, httpx.Client(base_url=server.url) as client:
        server.call(lambda: server.state.dispatcher.drain(0.0))
        for ask in VOICE_REQUESTS.values():
            answer = ask(client)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stopped")
            assert answer.headers["retry-after"] == "5"
        assert speaker_of(server).stored == {}


def test_a_full_engine_has_no_room_for_voices_either(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    monkeypatch.setattr(speaker_of(server), "refuses_with", Overloaded("voices: too many are being made", 7.2))
    answer = add(server)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")


def late(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("build", "path", "asked"),
    [
        (build_app, "/v1/audio/speech", {"json": {"input": TEXT}}),
        (build_app, "/v1/audio/speech", {"json": {"input": TEXT, "stream_format": "sse"}}),
        (build_legacy_app, "/inference_sft", {"data": {"tts_text": TEXT, "spk_id": "anna"}}),
    ],
    ids=["audio", "sse", "cosyvoice"],
)
def test_speech_is_given_up_when_nobody_waits_for_it_any_more(
    build: Callable[..., Any], path: str, asked: dict[str, Any]
) -> None:
    with serving(build, lambda: make_state(FakeBackend(gate=asyncio.Event()))) as server:
        answer = httpx.post(server.url + path, headers={"x-request-timeout": "0.3"}, timeout=20, **asked)
        assert late(answer)
        server.call(speaker_of(server).streams[0].cancelled.wait)
        told = server.call(lambda: server.state.dispatcher.request_log.get(answer.headers["x-request-id"], ANONYMOUS))
        assert (told.reason, told.error_code) == (FinishReason.ERROR, "deadline_exceeded")


def test_the_time_for_a_body_counts() -> None:
    body = json.dumps({"input": TEXT}).encode()
    with serving(build_app) as server, Client(server) as client:
        length = {"content_length": str(len(body)), "content_type": "application/json"}
        client.ask("/v1/audio/speech", body[:5], x_request_timeout="0.1", **length)
        threading.Event().wait(0.3)
        client.send(body[5:])
        answer = client.answer()
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
        assert speaker_of(server).orders == []


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf", "86401", ""])
def test_a_time_that_cannot_be_is_named(server: Served, seconds: str) -> None:
    before = len(speaker_of(server).orders)
    answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT}, headers={"x-request-timeout": seconds})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert answer.json()["error"]["message"].startswith(
        f"x-request-timeout: {seconds!r} is not a number of seconds above 0"
    )
    assert len(speaker_of(server).orders) == before


def test_an_id_is_its_callers_own(tmp_path: Path) -> None:
    path, keys = tmp_path / "keys.toml", {name: new_key() for name in ("anna", "berta")}
    for name, key in keys.items():
        add_key(path, new_entry(key, name))
    with serving(build_app, lambda: make_state(FakeBackend(), keys=KeyRing(path))) as server:

        def ask(name: str, chosen: str) -> str:
            headers = {"x-api-key": keys[name], "x-request-id": chosen}
            answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT}, headers=headers)
            assert answer.status_code == 200
            return answer.headers["x-request-id"]

        assert (ask("anna", "mine"), ask("berta", "mine")) == ("mine", "mine")
        again = ask("anna", "mine")
        assert again.startswith("req_")
        for name, known in (("anna", [again, "mine"]), ("berta", ["mine"])):
            for identity in known:
                told = httpx.get(f"{server.url}/v1/audio/requests/{identity}", headers={"x-api-key": keys[name]})
                assert (told.status_code, told.json()["id"]) == (200, identity)
        # Without a key, what was chosen comes back whether it is somebody's or not.
        for chosen in ("mine", "nobodys"):
            refused = httpx.get(f"{server.url}/v1/models", headers={"x-request-id": chosen})
            assert (refused.status_code, refused.headers["x-request-id"]) == (401, chosen)
