"""What programs that were written for OpenAI's service send beyond what there is here, by its package and by curl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.server.fake_backend import RATE, FakeBackend, Unguided
from tests.server.http.serving import Served, make_state, serving
from vivavoce.frontend.speech import Recording
from vivavoce.server.http.app import build_app, build_legacy_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.settings import ServerSettings

TEXT = "Hello there."
INSTRUCTIONS = "You will receive partial sentences. Do not complete the sentence just read out the text. " * 40
STRICT = {"instructions": "refuse", "speed": "refuse", "empty_text": "refuse", "unknown_fields": "ignore"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app, lambda: make_state(Unguided())) as served:
        yield served


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    settings = ServerSettings.model_validate({"requests": STRICT})
    with serving(build_app, lambda: make_state(Unguided(), settings)) as served:
        yield served


def speech(server: Served, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, "response_format": "pcm", **fields})


def refusal(answer: httpx.Response) -> tuple[str, str]:
    """The field and the message."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def last_order(server: Served) -> Any:
    speaker = server.state.dispatcher.backend
    assert isinstance(speaker, FakeBackend)
    return speaker.orders[-1]


def test_the_package_gets_through_with_all_that_it_may_send(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
        answer = client.audio.speech.with_raw_response.create(
            model="gpt-4o-mini-tts", voice="anna", input=TEXT, instructions=INSTRUCTIONS, speed=4, response_format="pcm"
        )
        order = last_order(server)
        assert (order.instruct, order.mode, order.speed) == (None, None, 2.0)
        assert answer.headers["x-speed"] == "2"
        assert answer.headers["x-warning"].split("; ") == [
            "speed: 4 is not in 0.5 to 2",
            "it is spoken at 2",
            "instructions: the model that speaks cannot follow them",
            "they were left out",
        ]
        assert client.models.retrieve("tts-1").id == "tts-1"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("whisper-1")
        assert caught.value.param == "model"
        with pytest.raises(openai.NotFoundError) as caught:
            client.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
        assert caught.value.param == "voice"
        created = client.audio.voices.create(name="me", audio_sample=("me.wav", b"RIFF"), consent="cons_1")
        assert created.created_at > 1_700_000_000
        assert created.model_extra["consent"] == "cons_1"


def test_what_is_as_wished_has_no_warning(server: Served) -> None:
    answer = speech(server, speed=1.25)
    assert answer.headers["x-speed"] == "1.25"
    assert answer.headers["x-flow-steps"] == "official"
    assert speech(server, flow_steps="fast").headers["x-flow-steps"] == "fast"
    assert "x-warning" not in answer.headers


def test_an_operator_may_have_it_refused(strict: Served) -> None:
    assert refusal(speech(strict, instructions="Slowly.")) == (
        "instructions",
        "instruct: the model that speaks cannot follow instructions; leave them out",
    )
    assert refusal(speech(strict, speed=0.25)) == (
        "speed",
        "speed: 0.25 is not in 0.5 to 2; choose a number in this range",
    )
    field, message = refusal(speech(strict, input=" \n"))
    assert (field, "can be spoken" in message) == ("input", True)


@pytest.mark.parametrize(
    "field", ["speed", "response_format", "stream_format", "seed", "voice", "instructions", "model"]
)
def test_null_is_as_good_as_left_out(server: Served, field: str) -> None:
    wanted: dict[str, Any] = {"input": TEXT, field: None}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=wanted)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg")


def test_an_empty_voice_is_none(server: Served) -> None:
    for voice in ("", "   "):
        assert speech(server, voice=voice).status_code == 200
        assert last_order(server).voice is None


def test_unknown_fields_are_named_or_ignored_as_the_operator_likes(server: Served, strict: Served) -> None:
    unknown = {"lang_code": "a", "lang": True, "user": None}
    field, message = refusal(speech(server, **unknown))
    assert field == "lang_code"
    assert all(f"{name}: extra inputs are not permitted" in message for name in unknown)
    answer = speech(strict, **unknown, **{"bär\n": 1})
    assert answer.status_code == 200
    assert answer.headers["x-warning"] == "fields: lang_code, lang, user, b\\xe4r\\n are unknown and were ignored"
    many = speech(strict, **{f"field{number}": 1 for number in range(5_000)})
    assert many.headers["x-warning"].endswith("field9 and 4990 more are unknown and were ignored")
    form = httpx.post(f"{strict.url}/v1/audio/speech", data={"input": TEXT, "lang": "true"})
    assert (form.status_code, "lang" in form.headers["x-warning"]) == (200, True)
    read = httpx.post(f"{strict.url}/v1/audio/normalize", json={"input": TEXT, "tone": 1})
    assert "tone" in read.headers["x-warning"]
    assert "x-warning" not in speech(strict).headers


@pytest.mark.parametrize("path", ["speech", "normalize"])
def test_a_field_in_the_query_is_refused_or_ignored_as_the_operator_likes(
    server: Served, strict: Served, path: str
) -> None:
    asked: dict[str, Any] = {"params": {"voice": "anna", "foo\n": "1"}, "json": {"input": TEXT}}
    problem = "query: voice, foo\\n are not read here"
    assert refusal(httpx.post(f"{server.url}/v1/audio/{path}", **asked)) == (
        "query",
        "query: voice are not read here; send fields in the body",
    )
    answer = httpx.post(f"{strict.url}/v1/audio/{path}", **{**asked, "json": {"input": TEXT, "tone": 1}})
    told = f"{problem} and were ignored; fields: tone are unknown and were ignored"
    assert (answer.status_code, answer.headers["x-warning"]) == (200, told)
    played = httpx.get(f"{strict.url}/v1/audio/speech", params={"input": TEXT, "foo": "1"})
    assert (played.status_code, "foo" in played.headers["x-warning"]) == (200, True)


def test_what_else_stands_in_a_query_is_named(server: Served) -> None:
    told = "query: api-version are not read here and were ignored"
    for path, body in (
        ("audio/speech", {"input": TEXT}),
        ("audio/normalize", {"input": TEXT}),
        ("text-to-speech/anna", {"text": TEXT}),
    ):
        answer = httpx.post(f"{server.url}/v1/{path}", params={"api-version": "1"}, json=body)
        assert (answer.status_code, answer.headers["x-warning"]) == (200, told), path
    played = httpx.post(f"{server.url}/v1/text-to-speech/anna?output_format=pcm_16000", json={"text": TEXT})
    assert "x-warning" not in played.headers
    twice = "output_format=pcm_16000&output_format=mp3_44100_128"
    assert httpx.post(f"{server.url}/v1/text-to-speech/anna?{twice}", json={"text": TEXT}).status_code == 400
    for path, field in (
        ("text-to-speech/anna", "language_code"),
        ("audio/voices", "name"),
        ("audio/speech", "voice[id]"),
    ):
        assert httpx.post(f"{server.url}/v1/{path}", params={field: "de"}, json={"text": TEXT}).status_code == 400


def test_so_is_the_query_of_a_websocket(server: Served, strict: Served) -> None:
    def address(served: Served, query: str) -> str:
        return f"{served.url.replace('http', 'ws')}/v1/audio/stream?{query}"

    with pytest.raises(InvalidStatus) as refused, connect(address(server, "voice=zz&foo=1")):
        pass
    assert b"query: voice are not read here; send fields in the start message" in refused.value.response.body
    with connect(address(strict, "voice=zz&foo=1")) as warned:
        assert warned.response is not None
        assert warned.response.headers["x-warning"] == "query: voice, foo are not read here and were ignored"
    known = "api_key=x&inactivity_timeout=5&voice_id=anna&model_id=any&output_format=pcm_24000"
    with connect(address(strict, known)) as silent:
        assert silent.response is not None
        assert "x-warning" not in silent.response.headers


RECORDED = "data:audio/wav;base64,UklGRg=="


@pytest.mark.parametrize(
    "fields",
    [
        {"ref_audio": RECORDED, "ref_text": "Well."},  # Qwen3-TTS, F5-TTS and others behind vLLM
        {"reference_audio": "UklGRg==", "reference_text": "Well."},
        {"prompt_wav": RECORDED, "prompt_text": "Well.", "speaker": "", "voice": None},
    ],
)
def test_a_recording_is_known_by_its_names_in_other_apis(
    server: Served, strict: Served, fields: dict[str, Any]
) -> None:
    for served in (server, strict):
        answer = speech(served, **fields)
        assert (answer.status_code, answer.headers.get("x-warning")) == (200, None)
        assert last_order(served).voice == Recording(b"RIFF", "Well.")


def test_a_form_sends_a_file_by_such_a_name(server: Served) -> None:
    for name in ("ref_audio", "speaker_wav"):
        form = {"data": {"input": TEXT, "ref_text": "Well."}, "files": {name: b"RIFF"}}
        assert httpx.post(f"{server.url}/v1/audio/speech", **form).status_code == 200
        assert last_order(server).voice == Recording(b"RIFF", "Well.")


@pytest.mark.parametrize(
    "fields",
    [
        {"speaker": "anna"},
        {"voice_id": "anna"},
        {"voice": {"name": "anna"}},
        {"voice": {"voice_id": "anna"}},
        {"voice": {"name": "Anna Berg", "id": "anna", "object": "audio.voice", "created_at": 1}},
        {"voice_id": {"id": "anna"}},
    ],
)
def test_a_voice_is_known_by_its_names_in_other_apis(server: Served, strict: Served, fields: dict[str, Any]) -> None:
    for served in (server, strict):
        assert speech(served, **fields).status_code == 200
        assert last_order(served).voice == "anna"
    unknown = speech(strict, **dict.fromkeys(fields, "nobody"))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "voice_not_found")
    both = refusal(speech(server, voice="anna", speaker="berta"))
    assert both == ("voice", "voice: voice and speaker are names of the same field; send one of them")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("English", "en"),
        ("en-US", "en"),
        ("en_AU", "en-GB"),
        ("zh_CN", "zh"),
        ("japanese", "ja"),
        ("deu", "de"),
        ("yue", "zh"),
        ("Auto", None),
        ("", None),
    ],
)
def test_a_language_is_known_by_its_name_and_with_its_country(server: Served, given: str, meant: str | None) -> None:
    assert speech(server, language=given).status_code == 200
    assert last_order(server).language == meant
    assert last_order(server).language == meant
    read = httpx.post(f"{server.url}/v1/audio/normalize", json={"input": "5 km", "language": given})
    assert (read.status_code, last_order(server).language) == (200, meant)
    headers = {"xi-api-key": "unused"}
    eleven = {"text": TEXT, "language_code": given}
    assert httpx.post(f"{server.url}/v1/text-to-speech/anna", json=eleven, headers=headers).status_code == 200
    assert last_order(server).language == meant
    assert last_order(server).language == meant


def test_an_unknown_language_is_refused(server: Served) -> None:
    for given in ("tlh", "tlh-US", 5):
        field, message = refusal(speech(server, language=given))
        assert (field, "is not one of zh, en," in message) == ("language", True)


def test_all_mistakes_are_named_at_once(server: Served) -> None:
    mistakes = {"speed": 9, "seed": -1, "voice": {"id": ""}, "sampling": {"top_p": 3, "top_k": 0}, "mode": "best"}
    field, message = refusal(httpx.post(f"{server.url}/v1/audio/speech", json=mistakes))
    named = [part.partition(":")[0] for part in message.split("; ")]
    assert sorted(named) == [
        "input",
        "mode",
        "sampling.top_k",
        "sampling.top_p",
        "see /openapi.json",
        "seed",
        "speed",
        "voice.id",
    ]
    assert field in named
    many = {f"field{number}": 1 for number in range(5_000)}
    _, message = refusal(speech(server, **many))
    assert message.endswith("; 4990 more; see /openapi.json")
    assert len(message) < 1_000


def test_json_without_its_content_type_is_told(server: Served) -> None:
    body = b' {"input": "Tom & Jerry = friends"}'
    headers = {"content-type": "application/x-www-form-urlencoded"}  # as curl -d sends it
    _, message = refusal(httpx.post(f"{server.url}/v1/audio/speech", content=body, headers=headers))
    assert message == (
        "content-type: the body is JSON and came as application/x-www-form-urlencoded; "
        "send content-type: application/json"
    )


@pytest.mark.parametrize(
    ("build", "path", "asked"),
    [
        (build_app, "/v1/audio/speech", {"json": {"input": "  ", "response_format": "pcm"}}),
        (build_legacy_app, "/inference_sft", {"data": {"tts_text": "  ", "spk_id": "anna"}}),
    ],
)
def test_a_text_with_nothing_to_say_is_a_short_silence(build: Any, path: str, asked: dict[str, Any]) -> None:
    with serving(build) as server:
        answer = httpx.post(server.url + path, **asked)
        assert (answer.status_code, set(answer.content)) == (200, {0})
        assert len(answer.content) == 2 * RATE // 5
        records = server.state.dispatcher.request_log.finished
        assert [(record.reason, record.segments_spoken, record.audio_s) for record in records] == [("stop", 1, 0.2)]


def test_lists_are_open_if_the_operator_says_so(tmp_path: Path) -> None:
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "team"))
    lists = ("/v1/models", "/v1/audio/models", "/v1/models/tts-1", "/v1/audio/voices")
    for open_lists in (False, True):
        settings = ServerSettings.model_validate({"auth": {"open_lists": open_lists}})
        with serving(build_app, lambda: make_state(None, settings, KeyRing(path))) as server:  # noqa: B023
            mine = {"data": {"name": "mine"}, "files": {"file": ("me.wav", b"RIFF")}, "headers": {"x-api-key": key}}
            assert httpx.post(f"{server.url}/v1/audio/voices", **mine).status_code == 201  # type: ignore[arg-type]
            for where in lists:
                assert httpx.get(server.url + where).status_code == (200 if open_lists else 401)
                assert httpx.get(server.url + where, headers={"x-api-key": "vv_wrong"}).status_code == 401
            known = httpx.get(f"{server.url}/v1/audio/voices", headers={"x-api-key": key}).json()["voices"]
            assert [voice["id"] for voice in known] == ["anna", "mine"]
            assert speech(server).status_code == 401
            assert httpx.delete(f"{server.url}/v1/audio/voices/mine").status_code == 401
            if open_lists:
                seen = httpx.get(f"{server.url}/v1/audio/voices").json()
                assert [voice["id"] for voice in seen["voices"]] == ["anna"]
                assert httpx.get(f"{server.url}/v1/audio/models").json()["models"] == [{"id": "fake", "name": "fake"}]


def test_half_of_a_character_is_no_reason_to_refuse_a_text(server: Served) -> None:
    headers, body = {"content-type": "application/json", "xi-api-key": "unused"}, r"Well done \ud83d, all."
    for path, field in (("audio/speech", "input"), ("text-to-speech/anna/with-timestamps", "text")):
        content = f'{{"{field}": "{body}"}}'
        assert httpx.post(f"{server.url}/v1/{path}", content=content, headers=headers).status_code == 200
        assert last_order(server).text == "Well done \ud83d, all."
