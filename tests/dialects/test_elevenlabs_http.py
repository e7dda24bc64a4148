"""ElevenLabs' routes over HTTP: what their packages ask for, and how they read the answers."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError

from tests.server.certificates import certified, needs_openssl
from tests.server.fake_backend import SAMPLES_PER_LETTER, FakeBackend
from tests.server.http.faulty_clients import state_of
from tests.server.http.serving import Served, make_state, serving
from vivavoce.errors import Overloaded
from vivavoce.server.http.app import build_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key

TEXT = "Hello there. How are you?"
LENGTH = SAMPLES_PER_LETTER * len(TEXT)
THEIRS = {"xi-api-key": "any"}


@pytest.fixture
def speaker() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def server(speaker: FakeBackend) -> Iterator[Served]:
    with serving(build_app, lambda: make_state(speaker)) as served:
        yield served


def asked(server: Served, path: str, *, output_format: str = "pcm_24000", **fields: Any) -> httpx.Response:
    url = f"{server.url}/v1/text-to-speech/anna{path}"
    return httpx.post(url, params={"output_format": output_format}, json={"text": TEXT, **fields}, headers=THEIRS)


@pytest.mark.parametrize("path", ["", "/stream"])
def test_speech_with_what_their_packages_send(server: Served, speaker: FakeBackend, path: str) -> None:
    settings = {"stability": 0.5, "similarity_boost": 0.75, "style": None, "speed": 0.8}
    ignored = {"model_id": "eleven_turbo_v2_5", "previous_text": "Well.", "apply_text_normalization": "auto"}
    answer = asked(server, path, voice_settings=settings, seed=7, language_code="de-AT", **ignored)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/pcm; rate=24000; channels=1")
    assert len(answer.content) == 2 * LENGTH
    assert answer.headers["x-warning"].endswith(
        "fields: previous_text, apply_text_normalization are unknown and were ignored"
    )
    order = speaker.orders[-1]
    assert (order.voice, order.speed, order.seed, order.language) == ("anna", 0.8, 7, "de")
    assert order.reading == "natural"
    told = httpx.get(f"{server.url}/v1/audio/requests/{answer.headers['x-request-id']}").json()
    assert (told["door"], told["finish_reason"]) == ("elevenlabs", "stop")
    assert len(asked(server, path, voice_settings={"speed": None}, language_code=None, seed=None).content) == 2 * LENGTH
    unknown = asked(server, path, language_code="pt")
    assert unknown.headers["x-warning"] == "language_code: 'pt' is unknown; the language is told from the text"
    assert speaker.orders[-1].language is None


def test_formats_and_their_rates(server: Served) -> None:
    assert asked(server, "", output_format="ulaw_8000").headers["content-type"] == "audio/PCMU; rate=8000; channels=1"
    assert soundfile.read(io.BytesIO(asked(server, "", output_format="wav_44100").content))[1] == 44_100
    usual = httpx.post(f"{server.url}/v1/text-to-speech/anna", json={"text": TEXT})
    assert usual.headers["content-type"] == "audio/mpeg"
    assert (
        usual.content[usual.content.index(0xFF) :][:3] == b"\xff\xfb\x90"
    )  # behind the tag: MPEG-1 Layer III, 128 kbit/s, 44.1 kHz


def check_times(alignment: dict[str, list[Any]]) -> None:
    assert "".join(alignment["characters"]) == TEXT
    starts, ends = alignment["character_start_times_seconds"], alignment["character_end_times_seconds"]
    assert starts == pytest.approx([number / 100 for number in range(len(TEXT))], abs=1e-3)
    assert ends == pytest.approx([number / 100 for number in range(1, len(TEXT) + 1)], abs=1e-3)


@pytest.mark.parametrize("output_format", ["pcm_24000", "mp3_44100_128"])
def test_times_of_characters(server: Served, output_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.frontend.audio.tag.utc_now", lambda: "2026-01-31T12:00:00Z")
    plain = asked(server, "", output_format=output_format).content
    whole = asked(server, "/with-timestamps", output_format=output_format)
    assert whole.headers["content-type"] == "application/json"
    assert base64.b64decode(whole.json()["audio_base64"]) == plain
    check_times(whole.json()["alignment"])
    assert whole.json()["normalized_alignment"] == whole.json()["alignment"]
    lines = asked(server, "/stream/with-timestamps", output_format=output_format).text.splitlines()
    pieces = [json.loads(line) for line in lines]
    assert len(pieces) > 2
    assert b"".join(base64.b64decode(piece["audio_base64"]) for piece in pieces) == plain
    together: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, values in (piece["alignment"] or {}).items():
            together.setdefault(name, []).extend(values)
    check_times(together)


@pytest.mark.parametrize("path", ["", "/with-timestamps", "/stream/with-timestamps"])
def test_failures(server: Served, speaker: FakeBackend, path: str) -> None:
    for fields, status, words in (
        ({"text": ""}, 400, "text: "),
        ({"text": None}, 400, "text: input should be a valid string (given: 'null')"),
        ({"seed": True}, 400, "seed: input should be a number (given: 'true')"),
        ({"voice_settings": {"speed": True}}, 400, "voice_settings.speed: input should be a number"),
        ({"voice_settings": {"speed": 9}}, 400, "voice_settings.speed: "),
        ({"output_format": "pcm_1"}, 400, "output_format: 'pcm_1' is not supported"),
    ):
        answer = asked(server, path, **fields)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["message"].startswith(words)) == (status, True)
    missing = httpx.post(f"{server.url}/v1/text-to-speech/anna{path}", json={})
    assert [answer.json()["error"]["param"] for answer in (missing, asked(server, path, text=""))] == ["text", "text"]
    nobody = httpx.post(f"{server.url}/v1/text-to-speech/nobody{path}", json={"text": TEXT})
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "voice_not_found")
    not_an_object = httpx.post(f"{server.url}/v1/text-to-speech/anna{path}", content=b"[]")
    assert not_an_object.json()["error"]["message"] == "body: '[]' is not an object; send an object with the field text"
    speaker.refuses_with = Overloaded("server: it is busy; try again in 1 s")
    assert (asked(server, path).status_code, asked(server, path).headers["retry-after"]) == (429, "1")
    speaker.refuses_with, speaker.fails_after = None, 1
    with pytest.raises(httpx.RemoteProtocolError):
        asked(server, path)


def test_voices_models_and_the_user(server: Served) -> None:
    httpx.post(f"{server.url}/v1/audio/voices", data={"name": "me"}, files={"file": b"RIFF sound"}).raise_for_status()

    def got(path: str) -> Any:
        return httpx.get(server.url + path, headers=THEIRS).raise_for_status().json()

    voices = got("/v1/voices")["voices"]
    assert [(voice["voice_id"], voice["category"]) for voice in voices[:2]] == [("anna", "premade"), ("me", "cloned")]
    assert got("/v1/voices/me") == voices[1]
    assert httpx.get(f"{server.url}/v1/voices/nobody").json()["error"]["code"] == "voice_not_found"
    found = got("/v2/voices?search=TONE&page_size=10")
    assert ([voice["voice_id"] for voice in found["voices"]], found["total_count"], found["has_more"]) == (
        ["anna"],
        1,
        False,
    )
    assert got("/v1/user")["subscription"] == got("/v1/user/subscription")
    (model,) = got("/v1/models")
    assert (model["model_id"], model["can_do_text_to_speech"]) == ("fake", True)
    spoken = {"zh": "Chinese", "en": "English", "ja": "Japanese", "ko": "Korean"}
    assert {one["language_id"]: one["name"] for one in model["languages"]} == spoken
    assert isinstance(httpx.get(f"{server.url}/v1/models", headers={"X-Fern-SDK-Name": "elevenlabs"}).json(), list)
    # OpenAI's packages, which send another header, read an object at the same path.
    models = httpx.get(f"{server.url}/v1/models", headers={"authorization": "Bearer any"}).json()
    assert [model["id"] for model in models["data"]] == ["fake"]


def test_their_package(server: Served, speaker: FakeBackend) -> None:
    with httpx.Client() as web:  # which theirs would not close
        client = ElevenLabs(base_url=server.url, api_key="any", httpx_client=web)
        settings = VoiceSettings(speed=1.2)
        for speak in (client.text_to_speech.convert, client.text_to_speech.stream):
            pieces = speak("anna", text=TEXT, output_format="pcm_16000", voice_settings=settings, model_id="eleven_v2")
            assert sum(map(len, pieces)) == LENGTH * 2 // 3 * 2
            assert speaker.orders[-1].speed == 1.2
        whole = client.text_to_speech.convert_with_timestamps("anna", text=TEXT)
        assert whole.alignment is not None
        assert "".join(whole.alignment.characters) == TEXT
        pieces = [*client.text_to_speech.stream_with_timestamps("anna", text=TEXT, output_format="ulaw_8000")]
        assert sum(len(base64.b64decode(piece.audio_base_64)) for piece in pieces) == LENGTH // 3
        assert "".join("".join(piece.alignment.characters) for piece in pieces if piece.alignment) == TEXT
        assert [voice.voice_id for voice in client.voices.get_all().voices] == ["anna"]
        assert [voice.name for voice in client.voices.search(search="anna").voices] == ["anna"]
        assert client.voices.get("anna").category == "premade"
        assert [model.model_id for model in client.models.list()] == ["fake"]
        assert client.user.get().subscription.status == client.user.subscription.get().status == "active"
        with pytest.raises(ApiError) as refused:
            b"".join(client.text_to_speech.convert("nobody", text=TEXT))
        assert (refused.value.status_code, "nobody" in str(refused.value.body)) == (404, True)


@needs_openssl
@pytest.mark.filterwarnings("ignore:ConnectionClosed.code:DeprecationWarning")  # theirs
def test_their_package_over_tls_which_it_insists_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(files["tls_certificate"]))
    with serving(build_app, state_of(FakeBackend, **files)) as server, httpx.Client() as web:
        client = ElevenLabs(base_url=f"https://127.0.0.1:{server.port}", api_key="any", httpx_client=web)
        pieces = client.text_to_speech.convert_realtime("anna", text=iter([TEXT]), output_format="alaw_8000")
        assert sum(map(len, pieces)) == 80 * len(f" {TEXT} ")


def test_keys_are_wanted_here_too(tmp_path: Path) -> None:
    key, file = new_key(), tmp_path / "keys.toml"
    add_key(file, new_entry(key, "theirs"))
    with serving(build_app, lambda: make_state(keys=KeyRing(file))) as server:
        for path in ("/v1/voices", "/v2/voices", "/v1/voices/anna", "/v1/user", "/v1/user/subscription", "/v1/models"):
            assert httpx.get(server.url + path).status_code == 401
            assert httpx.get(server.url + path, headers={"xi-api-key": key}).status_code == 200
        assert asked(server, "").status_code == 401
        assert httpx.get(f"{server.url}/v1/user", headers={"xi-api-key": key}).json()["user_id"] == "theirs"
