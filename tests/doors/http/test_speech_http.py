"""`/v1/audio/speech` as clients meet it: real sockets, a speaker that can be held."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
import soundfile

from tests.doors.fake_speaker import RATE, SAMPLES_PER_LETTER, FakeSpeaker
from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http.app import build_app
from vivavoce.doors.http.desk import Desk
from vivavoce.errors import Overloaded
from vivavoce.service.operations.settings import ServerSection, ServerSettings

TEXT = "Hello there. How are you?"
LENGTH = len(TEXT) * SAMPLES_PER_LETTER


def desk_with(**fields: Any) -> Callable[[], Desk]:
    """What makes a desk whose speaker has these fields; `gate=True`: it is held until its gate is opened."""

    def make() -> Desk:
        held = {**fields, "gate": asyncio.Event()} if fields.get("gate") else fields
        return make_desk(FakeSpeaker(**held))

    return make


def speaker_of(served: Served) -> FakeSpeaker:
    speaker = served.desk.reception.speaker
    assert isinstance(speaker, FakeSpeaker)
    return speaker


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app) as served:
        yield served


def speech(server: Served, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, **fields})


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
    import av

    answer = speech(server, response_format=name)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    if name == "pcm":
        assert len(answer.content) == 2 * LENGTH
        return
    with av.open(io.BytesIO(answer.content)) as container:
        seconds = sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))
    assert seconds == pytest.approx(LENGTH / RATE, abs=0.1)


def test_the_openai_package_streams(server: Served) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused")
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="anna", input=TEXT, response_format="pcm"
    ) as answer:
        pieces = list(answer.iter_bytes(chunk_size=4800))
    assert sum(map(len, pieces)) == 2 * LENGTH
    assert len(pieces) > 1
    assert [model.id for model in client.models.list()] == ["fake"]
    with pytest.raises(openai.NotFoundError, match="voice: 'nobody' is not registered"):
        client.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
    with pytest.raises(openai.BadRequestError, match="speed: input should be less than or equal to 2"):
        client.audio.speech.create(model="tts-1", voice="anna", input=TEXT, speed=4)


@pytest.mark.parametrize("model", ["tts-1-hd", "tts-1-1106", "gpt-4o-mini-tts-2025-12-15", "fake", ""])
def test_models_that_clients_ask_openai_for_are_the_served_one(server: Served, model: str) -> None:
    request = {"model": model, "input": TEXT, "response_format": "pcm"}
    assert httpx.post(f"{server.url}/v1/audio/speech", json=request).status_code == 200


def test_audio_is_sent_while_the_rest_is_being_made() -> None:
    with serving(build_app, desk_with(gate=True)) as server:
        gate = speaker_of(server).gate
        assert gate is not None
        server.call(gate.set)
        request = {"input": "One two three four five six seven. " * 500, "response_format": "pcm"}
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request, timeout=30) as answer:
            pieces = answer.iter_bytes(2 * SAMPLES_PER_LETTER)
            assert len(next(pieces)) == 2 * SAMPLES_PER_LETTER
            server.call(gate.clear)
            stream = speaker_of(server).streams[0]
            running = httpx.get(f"{server.url}/v1/audio/requests/{answer.headers['x-request-id']}").json()
            assert running["status"] == "running"
            assert stream.verdict is None
            server.call(gate.set)
            rest = sum(map(len, pieces))
        assert rest + 2 * SAMPLES_PER_LETTER == 2 * 17_500 * SAMPLES_PER_LETTER


def test_events_tell_segments_and_a_verdict(server: Served) -> None:
    answer = speech(server, stream_format="sse", response_format="pcm")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "speech.segment"
    assert kinds[-2:] == ["speech.segment.done", "speech.audio.done"]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta")
    assert len(audio) == 2 * LENGTH
    ends = [event for event in events if event["type"] == "speech.segment.done"]
    assert [(e["start_character"], e["end_character"]) for e in ends] == [(0, 13), (13, 25)]
    assert [(e["start"], e["end"]) for e in ends] == [(0.0, 0.13), (0.13, 0.25)]
    verdict = events[-1]["verdict"]
    assert verdict["finish_reason"] == "stop"
    assert (verdict["segments_spoken"], verdict["segments_given"]) == (2, 2)
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
    again = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT}, headers=chosen)
    assert again.headers["x-request-id"] != "mine-1"
    evil = httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "a b\tc"})
    assert evil.headers["x-request-id"].startswith("req_")


def read_all(answer: httpx.Response) -> int:
    return sum(map(len, answer.iter_bytes()))


def test_a_stream_that_fails_is_cut_and_says_so() -> None:
    with serving(build_app, desk_with(fails_after=1)) as server:
        request = {"input": TEXT, "response_format": "pcm"}
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=request) as answer:
            assert answer.status_code == 200
            identity = answer.headers["x-request-id"]
            with pytest.raises(httpx.RemoteProtocolError):
                read_all(answer)
        told = httpx.get(f"{server.url}/v1/audio/requests/{identity}").json()
        assert told["finish_reason"] == "error"
        assert told["error"]["code"] == "engine_stopped"
        assert told["segments_spoken"] < told["segments_given"] + 1
        events = speech(server, stream_format="sse").text
        assert '"type":"error"' in events
        assert '"finish_reason":"error"' in events


def test_what_fails_before_audio_is_an_error_answer() -> None:
    with serving(build_app, desk_with(fails_after=0)) as server:
        for extra in ({}, {"stream_format": "sse"}):
            answer = speech(server, **extra)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_stopped"
            assert int(answer.headers["retry-after"]) >= 1


def test_overload_is_refused_with_advice() -> None:
    with serving(build_app, desk_with(refuses_with=Overloaded("streams: too many; try again in 3 s", 2.2))) as server:
        answer = speech(server)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_a_client_that_leaves_frees_its_stream() -> None:
    with serving(build_app, desk_with(gate=True)) as server:
        speaker = speaker_of(server)
        body = json.dumps({"input": TEXT}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(
                b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            # The stream waits at its gate; a second request proves that the first was taken.
            assert httpx.get(f"{server.url}/v1/models").status_code == 200
            server.call(lambda: _until(lambda: bool(speaker.streams)))
        server.call(lambda: speaker.streams[0].cancelled.wait())
        server.call(lambda: _until(lambda: server.desk.reception.visits == 0))


async def _until(condition: Callable[[], bool]) -> None:
    """Let the loop's other tasks go on until they have brought it about."""
    while not condition():
        await asyncio.sleep(0)


def test_a_listener_that_does_not_read_is_ended_and_others_go_on() -> None:
    def make() -> Desk:
        patient = ServerSettings(server=ServerSection(listener_timeout_s=0.2))
        return make_desk(FakeSpeaker(), patient)

    with serving(build_app, make) as server:
        text = "A long sentence that is spoken again. " * 500
        body = json.dumps({"input": text, "response_format": "pcm"}).encode()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(
                b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"x-request-id: slow-1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            speaker = speaker_of(server)
            server.call(lambda: _until(lambda: bool(speaker.streams)))
            assert speech(server, response_format="pcm").status_code == 200
            server.call(lambda: speaker.streams[0].cancelled.wait())
        told = httpx.get(f"{server.url}/v1/audio/requests/slow-1").json()
        assert told["finish_reason"] == "error"
        assert told["error"]["code"] == "listener_stalled"


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
    assert order.voice == from_json
    assert order.sampling.top_k == 5
    assert order.speed == 1.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": ""}, "input: string should have at least 1 character"),
        ({"input": "x" * 20_001}, "input: string should have at most 20000 characters"),
        ({"speed": 0.1}, "speed: input should be greater than or equal to 0.5"),
        ({"seed": -1}, "seed: input should be greater than or equal to 0"),
        ({"response_format": "ogg"}, "response_format: input should be 'mp3'"),
        ({"tone": "happy"}, "tone: extra inputs are not permitted"),
        ({"prompt_text": "x"}, "prompt_text: belongs to a recording"),
        ({"prompt_audio": "%"}, "prompt_audio: is no base64"),
        ({"prompt_audio": "QUJD", "voice": "anna"}, "voice: a recording came as well"),
        ({"model": "whisper-1"}, "model: 'whisper-1' is not served here"),
        ({"model": "tts-1-best"}, "model: 'tts-1-best' is not served here"),
        ({"input": "   "}, "text: nothing in"),
        ({"voice": 5}, "voice: input should be a valid string (given: '5')"),
        ({"voice": {"id": ""}}, "voice: input should be a valid string"),
        ({"sampling": {"top_p": 7}}, "sampling.top_p: input should be less than or equal to 1"),
    ],
)
def test_bad_fields_are_named(server: Served, fields: dict[str, Any], message: str) -> None:
    answer = speech(server, **fields)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["message"].startswith(message)
    assert "\n" not in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'"text"', b"null"])
def test_a_body_that_is_no_request_is_refused(server: Served, body: bytes) -> None:
    answer = httpx.post(f"{server.url}/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("body: ")


def test_a_malformed_form_is_refused(server: Served) -> None:
    for body in (b"", b"--x\r\nnonsense", b"--x\r\ncontent-disposition: form-data\r\n\r\nabc\r\n--x--\r\n"):
        answer = httpx.post(
            f"{server.url}/v1/audio/speech", content=body, headers={"content-type": "multipart/form-data; boundary=x"}
        )
        assert answer.status_code == 400, body
    answer = httpx.post(f"{server.url}/v1/audio/speech", content=b"x", headers={"content-type": "multipart/form-data"})
    assert answer.status_code == 400


def test_wav_of_unknown_length_is_read(server: Served) -> None:
    samples, rate = soundfile.read(io.BytesIO(speech(server, response_format="wav").content))
    assert rate == RATE
    assert len(samples) == LENGTH


def test_unknown_paths_and_methods_are_explained(server: Served) -> None:
    assert httpx.get(f"{server.url}/v1/nothing").json()["error"]["code"] == "not_found"
    answer = httpx.put(f"{server.url}/v1/audio/speech")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"
