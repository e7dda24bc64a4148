"""CosyVoice's own HTTP service, asked as its own client asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import numpy as np
import pytest

from tests.server.fake_backend import FakeBackend, Gate, tone
from tests.server.http.faulty_clients import Client
from tests.server.http.serving import Served, make_state, serving
from vivavoce.frontend.audio.encode import AudioFormat, encode_whole
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.speech import FinishReason, Recording, SpeechRequest
from vivavoce.server.http.app import build_legacy_app
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import ServerSection, ServerSettings

TEXT = "Hello there, all of you."
WAV = encode_whole(AudioFormat.WAV, tone(92, 7), 22_050)


@contextmanager
def legacy(
    speaker: FakeBackend | None = None, keys: KeyRing | None = None, **server: Any
) -> Iterator[tuple[Served, FakeBackend]]:
    speaker, settings = speaker or FakeBackend(), ServerSettings(server=ServerSection(**server))
    with serving(build_legacy_app, lambda: make_state(speaker, settings, keys)) as served:
        yield served, speaker


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """A server for the tests that need no other."""
    with legacy() as (served, _):
        yield served


def orders(served: Served) -> list[SpeechRequest]:
    return served.state.dispatcher.backend.orders


def ask(
    served: Served,
    route: str,
    payload: dict[str, str],
    recording: bytes | None = None,
    method: str = "GET",
    **more: Any,
) -> httpx.Response:
    """As the original client: a form in the body, of a GET too."""
    files = None
    if recording is not None:
        files = [("prompt_wav", ("prompt_wav", recording, "application/octet-stream"))]
    return httpx.request(method, f"{served.url}/{route}", data=payload, files=files, timeout=60, **more)


ROUTES = [
    ("inference_sft", {"spk_id": "anna"}, False, SpeechRequest(TEXT, "anna", mode="sft", reading="official")),
    (
        "inference_zero_shot",
        {"prompt_text": "希望你以后能够做的比我还好呦。"},
        True,
        SpeechRequest(TEXT, Recording(WAV, "希望你以后能够做的比我还好呦。"), mode="zero_shot", reading="official"),
    ),
    (
        "inference_cross_lingual",
        {},
        True,
        SpeechRequest(TEXT, Recording(WAV), mode="cross_lingual", reading="official"),
    ),
    (
        "inference_instruct",
        {"spk_id": "anna", "instruct_text": "Softly."},
        False,
        SpeechRequest(TEXT, "anna", mode="instruct", instruct="Softly.", reading="official"),
    ),
    (
        "inference_instruct2",
        {"instruct_text": "用四川话说这句话"},
        True,
        SpeechRequest(TEXT, Recording(WAV), mode="instruct", instruct="用四川话说这句话", reading="official"),
    ),
]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_route_speaks(shared: Served, method: str) -> None:
    for route, fields, with_recording, order in ROUTES:
        answer = ask(shared, route, {"tts_text": TEXT, **fields}, WAV if with_recording else None, method)
        assert answer.status_code == 200, answer.text
        heard = np.frombuffer(answer.content, dtype=np.int16)
        np.testing.assert_array_equal(heard, to_int16(tone(len(TEXT), 0)))
        assert answer.headers["content-type"] == "audio/pcm; rate=24000; channels=1"
        assert "content-length" not in answer.headers
        assert answer.headers["x-request-id"]
        assert orders(shared)[-1] == order


def test_fields_may_stand_in_the_query_and_the_form_goes_first(shared: Served) -> None:
    query = {"tts_text": "Never said.", "spk_id": "anna", "speed": "1.5", "unknown": "1"}
    assert httpx.get(f"{shared.url}/inference_sft", params=query).status_code == 200
    answer = ask(shared, "inference_sft", {"tts_text": TEXT}, method="POST", params=query)
    assert answer.status_code == 200
    assert orders(shared)[-2:] == [
        SpeechRequest(text, "anna", mode="sft", speed=1.5, reading="official") for text in ("Never said.", TEXT)
    ]


@pytest.mark.parametrize("encode", [str, quote_plus])
def test_forms_and_queries_are_utf_8_percent_encoded_or_as_it_is(shared: Served, encode: Callable[[str], str]) -> None:
    text, form = "Grüß Gott, 你好", {"content-type": "application/x-www-form-urlencoded"}
    body = f"spk_id=anna&tts_text={encode(text)}".encode()
    assert httpx.post(f"{shared.url}/inference_sft", content=body, headers=form).status_code == 200
    assert httpx.get(f"{shared.url}/inference_sft?spk_id=anna&tts_text={quote_plus(text)}").status_code == 200
    assert [order.text for order in orders(shared)[-2:]] == [text, text]


@pytest.mark.parametrize("route", ["inference_zero_shot", "inference_cross_lingual", "inference_instruct2"])
def test_a_stored_voice_in_place_of_a_recording(shared: Served, route: str) -> None:
    payload = {"tts_text": TEXT, "zero_shot_spk_id": "anna", "instruct_text": "Softly."}
    assert ask(shared, route, payload).status_code == 200
    order = orders(shared)[-1]
    assert (order.voice, f"inference_{order.mode.value}") == ("anna", route.rstrip("2"))


@pytest.mark.parametrize(
    ("route", "payload", "recording", "status", "message"),
    [
        ("inference_sft", {"spk_id": "anna"}, None, 400, "tts_text: is missing; /inference_sft needs it as a form"),
        ("inference_sft", {"tts_text": TEXT}, None, 400, "spk_id: is missing"),
        ("inference_sft", {"tts_text": TEXT, "spk_id": "中文女"}, None, 404, "spk_id: '中文女' is not registered"),
        (
            "inference_instruct2",
            {"tts_text": TEXT, "instruct_text": "Softly.", "zero_shot_spk_id": "nobody"},
            None,
            404,
            "zero_shot_spk_id: 'nobody' is not registered",
        ),
        ("inference_sft", {"tts_text": TEXT, "spk_id": "anna", "speed": "fast"}, None, 400, "speed: 'fast' is no"),
        ("inference_zero_shot", {"tts_text": TEXT}, WAV, 400, "prompt_text: is missing"),
        ("inference_zero_shot", {"tts_text": TEXT, "prompt_text": "Hi."}, None, 400, "prompt_wav: is missing; /inf"),
        ("inference_cross_lingual", {"tts_text": TEXT}, b"", 400, "prompt_wav: is empty (0 bytes)"),
        ("inference_cross_lingual", {"tts_text": TEXT, "prompt_wav": "a.wav"}, None, 400, "prompt_wav: is text; send"),
        ("inference_instruct", {"tts_text": TEXT, "spk_id": "anna"}, None, 400, "instruct_text: is missing"),
        ("inference_instruct2", {"tts_text": TEXT}, WAV, 400, "instruct_text: is missing"),
        ("inference_vc", {}, None, 404, "path: '/inference_vc' does not exist"),
    ],
)
def test_what_cannot_be_done_is_said(
    shared: Served, route: str, payload: dict[str, str], recording: bytes | None, status: int, message: str
) -> None:
    answer = ask(shared, route, payload, recording)
    assert answer.status_code == status
    assert answer.json()["error"]["message"][: len(message)] == message
    assert answer.headers["x-request-id"]


PART = b'--b\r\ncontent-disposition: form-data; name="tts_text"\r\n\r\nHello.\r\n--b--\r\n'
TWO_FILES = b'--b\r\ncontent-disposition: form-data; name="prompt_wav"; filename="a.wav"\r\n\r\nRIFF\r\n' * 2 + PART


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"tts_text": "Hello."}', "application/json", "tts_text: is missing"),
        (b"nothing", "multipart/form-data", "body: it is not a readable form"),
        (TWO_FILES, "multipart/form-data; boundary=b", "body: it is not a readable form"),
        (PART, "multipart/form-data; boundary=b; charset=punycode", "content-type: charset"),
        (PART.replace(b"Hello", b"\xe9"), "multipart/form-data; boundary=b", "tts_text: is not UTF-8"),
    ],
)
def test_a_body_that_is_no_form(shared: Served, body: bytes, kind: str, message: str) -> None:
    answer = httpx.post(
        f"{shared.url}/inference_sft", params={"spk_id": "anna"}, content=body, headers={"content-type": kind}
    )
    assert (answer.status_code, answer.json()["error"]["message"][: len(message)]) == (400, message)


def test_audio_comes_while_it_is_made_and_a_caller_who_leaves_frees_its_stream() -> None:
    with legacy(FakeBackend(gate=Gate(pieces=1))) as (served, speaker):
        payload = {"tts_text": TEXT, "spk_id": "anna"}
        with httpx.stream("GET", f"{served.url}/inference_sft", params=payload, timeout=60) as answer:
            first = next(answer.iter_raw())  # the rest of the sentence is not made yet
            assert to_int16(tone(len(TEXT), 0)).tobytes().startswith(first)
            identity = answer.headers["x-request-id"]
        served.call(speaker.streams[0].cancelled.wait)
        entry = served.call(lambda: served.state.dispatcher.request_log.get(identity, ANONYMOUS))
        assert entry.reason is FinishReason.CANCELLED
        assert entry.protocol == "cosyvoice"
        assert served.call(lambda: served.state.dispatcher.active) == 0


def test_a_body_that_nobody_needs_and_that_stops_coming_holds_no_place() -> None:
    with (
        legacy(FakeBackend(gate=asyncio.Event()), listener_timeout_s=0.3) as (served, speaker),
        Client(served) as client,
    ):
        client.ask("/inference_sft?tts_text=Hello.&spk_id=anna", b"{", content_length="100")
        assert client.answer().status == 408
        served.call(speaker.streams[0].cancelled.wait)


def test_keys(tmp_path: Path) -> None:
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "berta"))
    payload = {"tts_text": TEXT, "spk_id": "anna"}
    with legacy(keys=KeyRing(path)) as (served, speaker):
        assert ask(served, "inference_sft", payload).status_code == 401
        assert ask(served, "inference_sft", payload, headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert [order.owner for order in speaker.orders] == ["berta"]


def test_health_is_told_on_this_port_too(shared: Served) -> None:
    assert httpx.get(f"{shared.url}/health/ready").json() == {"status": "ready"}


def test_the_description_names_every_field(shared: Served) -> None:
    paths = httpx.get(f"{shared.url}/openapi.json").json()["paths"]
    assert {f"/{route}" for route, *_ in ROUTES} <= paths.keys()
    for route, fields, with_recording, _ in ROUTES:
        body = paths[f"/{route}"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        wanted = {"tts_text", "speed", *fields, *(("prompt_wav", "zero_shot_spk_id") if with_recording else ())}
        assert set(body["properties"]) == wanted
        assert [sorted(one["required"]) for one in body.get("anyOf", ())] == (
            [sorted({"prompt_wav", *fields} - {"instruct_text"}), ["zero_shot_spk_id"]] if with_recording else []
        )
