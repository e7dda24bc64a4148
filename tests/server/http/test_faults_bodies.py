"""Bodies that are no request for speech and no voice, however well they are sent."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Iterator

import pytest

from tests.server.http.faulty_clients import (
    Answer,
    PatientSpeaker,
    asked,
    memory_bounded,
    speech,
    state_of,
    undisturbed,
)
from tests.server.http.serving import Served, serving
from vivavoce.server.http.app import build_app

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"
MIB = 1 << 20
FORM = "multipart/form-data; boundary=x"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app, state_of()) as served:
        yield served


@pytest.fixture(autouse=True)
def beside(server: Served) -> Iterator[None]:
    """Nothing here may reach the speaker, but for the neighbour."""
    speaker = server.state.dispatcher.backend
    assert isinstance(speaker, PatientSpeaker)
    before = len(speaker.orders)
    with undisturbed(server):
        yield
    assert len(speaker.orders) == before + 1
    assert not speaker.stored


def answer_to(server: Served, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> Answer:
    return asked(server, path, body, content_type=content_type, **headers)


def refused(answer: Answer, start: str, status: int = 400) -> None:
    """It is an error of one short line that begins so."""
    message = answer.error["message"]
    assert (answer.status, message[: len(start)]) == (status, start)
    assert message.isprintable()
    assert len(message) < 400


def part(name: str, text: bytes, *headers: bytes, file: str | None = None) -> bytes:
    filename = b"" if file is None else b'; filename="%s"' % file.encode()
    disposition = b'content-disposition: form-data; name="%s"%s\r\n' % (name.encode("utf-8", "surrogatepass"), filename)
    return b"--x\r\n" + disposition + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + text + b"\r\n"


END = b"--x--\r\n"
JSON = [
    (b"[" * 200_000, "body: holds 200000 commas and brackets"),
    (b"[" * 100_000 + b"]" * 100_000, "body: is nested too deeply; send an object"),
    (b"null", "body: 'null' is not an object; send an object with the field input"),
    (b'{"input": "x",\n}', "body: is not JSON (line 2, column 1); send"),
    ('{"input": "Grüße"}'.encode("latin-1"), "body: is not UTF-8 from byte 13 on; send UTF-8"),
    (b'{"a":' * 100_000, "body: is nested too deeply"),
    (b'{"input": "x", "sampling": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body: is nested too deeply"),
    (b"[" + b"{}," * MIB + b"{}]", "body: holds "),
    (
        b'{"input": "x", "seed": ' + b"9" * 10_000 + b"}",
        "body: holds a number of more than 4300 digits; send a shorter",
    ),
    (b'{"input": "x", "voice": "anna", "voice": "me"}', "voice: comes twice; send it once"),
    (b'{"input": "x", "sampling": {"top_k": 5, "top_k": 7}}', "top_k: comes twice; send it once"),
    (b'{"input": "x", "seed": 1' + b"0" * 400 + b"}", "seed: "),
    (b'{"input": "x", "seed": 1e400}', "seed: "),
    (b'{"input": "x", "speed": NaN}', "speed: "),
    (b'{"input": "x", "speed": Infinity}', "speed: "),
    (b'{"input": "x", "speed": 1.' + b"1" * MIB + b"e9}", "speed: "),
    (b'{"input": "x", "sampling": {"top_p": NaN}}', "sampling.top_p: "),
    (b'{"input": "fine", "input": ""}', "input: comes twice; send it once"),
    (
        speech(instructions="a" * 4097),
        "instructions: string should have at most 4096 characters (given: 4097 characters)",
    ),
    (b'{"input": "a", "voice": "\\ud800"}', "voice: "),
    (b'{"input": "x", "instructions": "\\udfff\\ud800"}', "instructions: "),
    (b'{"input": "x", "\\ud800": 1}', "body: input should be a valid string"),
    (b'{"input": "x", "a\\nb\\u0000": 1}', "'a\\nb\\x00': extra inputs"),
    (b'{"input": "x", "' + b"k" * MIB + b'": 1}', "'kkkk"),
    (
        b'{"input": "' + "e\u0301".encode() * (MIB // 3) + b'"}',
        "text: 699050 characters are more than the limit of 20000",
    ),
    (b'{"input": "\xff\xfe"}', "body: is not UTF-8 from byte 11 on"),
    (b'{"input": "a\x00b"}', "body: is not JSON"),
    (b'{"input": ["x"]}', "input: "),
    (b'{"input": "x", "voice": {"id": {"id": "anna"}}}', "voice.id: "),
    (b'{"input": "x", "prompt_audio": "%s"}' % (b"A " * MIB + b"!"), "prompt_audio: is not base64"),
    ('{"input": "x", "prompt_audio": "ﾁ"}'.encode(), "prompt_audio: is not base64"),
    (b'{"input": "x", "prompt_audio": "AAAAA"}', "prompt_audio: is not base64"),
    (gzip.compress(speech(), mtime=0), "body: is not UTF-8"),
    (speech(speed=0.1), "speed: input should be greater than or equal to 0.25"),
    (speech(seed=-1), "seed: input should be greater than or equal to 0"),
    (speech(response_format="ogg"), "response_format: input should be 'mp3'"),
    (speech(tone="happy"), "tone: extra inputs are not permitted"),
    (speech(prompt_text="x"), "prompt_text: belongs to a recording"),
    (speech(voice=5), "voice: input should be a valid string (given: '5')"),
    (speech(voice=["robot"]), "voice: input should be a valid string (given: '[\"robot\"]')"),
    (speech(speed=[1]), "speed: input should be a valid number (given: '[1]')"),
    (speech(speed=["é" * MIB]), "speed: input should be a valid number (given: '[\"ééé"),
    (speech(sampling=[]), "sampling: input should be an object (given: '[]')"),
    (speech(sample_rate=0), "sample_rate: 0 Hz is not supported; choose one of 8000, "),
    (speech(sample_rate=False), "sample_rate: input should be a number (given: 'false')"),
    (speech(sample_rate=True), "sample_rate: input should be a number (given: 'true')"),
    (speech(speed=True), "speed: input should be a number (given: 'true')"),
    (speech(seed=False), "seed: input should be a number (given: 'false')"),
    (speech(sampling={"top_k": True}), "sampling.top_k: input should be a number (given: 'true')"),
    (speech(voice="anna", speaker="me"), "voice: voice and speaker are names of the same field; send one of them"),
    (speech(ref_text="x", prompt_text="y"), "prompt_text: prompt_text and ref_text are names of the same field"),
    (speech(ref_audio="", speaker_wav=""), "ref_audio: ref_audio and speaker_wav are names of the same field"),
    (speech(voice={"id": ""}), "voice.id: string should have at least 1 character"),
    (speech(sampling={"top_p": 7}), "sampling.top_p: input should be less than or equal to 1"),
]
FORMS = [
    (b"", "body: it is not a readable form"),
    (b"--x", "body: it is not a readable form"),
    (b"--y\r\n\r\n--y--", "body: it is not a readable form"),
    (b"--x\r\n\r\nno name\r\n" + END, "body: it is not a readable form"),
    (b"--x\r\ncontent-disposition: form-data\r\n\r\nno name\r\n" + END, "body: it is not a readable form"),
    (b"--x\r\ncontent-disposition\r\n\r\nno colon\r\n" + END, "body: it is not a readable form"),
    (b"--x\r\n: nothing\r\n\r\n\r\n" + END, "body: it is not a readable form"),
    (b"--x\r\ncontent disposition: form-data; name=input\r\n\r\nspace\r\n" + END, "body: it is not a readable form"),
    (part("input", b"Hello.")[:-2], "body: it is not a readable form"),
    (part("input", b"x", b"h: " + b"v" * MIB) + END, "body: it is not a readable form"),
    (part("input", b"x", *[b"h: v"] * 5_000) + END, "body: it is not a readable form"),
    (part("input", b"x" * (MIB + 1)) + END, "body: it is not a readable form"),
    (part("input", b"") * 5_000 + END, "body: it is not a readable form"),
    (part("prompt_audio", b"RIFF", file="a.wav") * 5_000 + END, "body: it is not a readable form"),
    (part("input", b"Hello.", file="a.txt") + END, "'input': this field does not take a file"),
    (part("a" * 3_000, b"Hello.", file="a.txt") + END, "'aaaa"),
    (part("b\nc", b"Hello.") + END, "input: field required"),
    (part("input", b"x") + part("b\nc", b"Hello.") + END, "'b\\nc': extra inputs"),
    (part("input", b"\xff\xfe") + END, "input: is not UTF-8 from byte 0 on"),
    (part("input", b"ab\xed\xa0\x80") + END, "input: is not UTF-8 from byte 2 on"),
    (part("\ud800", b"x") + END, "a field's name: is not UTF-8"),
    (part("in\nput", b"\xff") + END, "a field: is not UTF-8 from byte 0 on"),
    (part("input", "e\u0301".encode() * 20_000) + END, "text: 40000 characters are more than the limit of 20000"),
    (part("input", b"x") + part("sampling", b'{"a":' * 100_000) + END, "sampling: is nested too deeply"),
    (part("input", b"x") + part("voice", b"{" * 200_000) + END, "voice: holds 200000 commas and brackets"),
    (part("input", b"x") + part("nonsense", b"y") + END, "nonsense: extra inputs"),
    (part("input", b"One.") + part("input", b"Two.") + END, "input: comes twice; send it once"),
    (
        part("ref_audio", b"x") + part("speaker_wav", b"RIFF", file="a.wav") + END,
        "ref_audio: ref_audio and speaker_wav",
    ),
    (part("input", b"x") + part("speed", b"true") + END, "speed: "),
    (part("input", b"x") + part("speed", b"nan") + END, "speed: "),
    (part("input", b"x") + part("seed", b"9" * 5_000) + END, "seed: "),
    (part("input", b"x") + part("prompt_audio", b"!" * MIB) + END, "prompt_audio: is not base64"),
]
VOICE_FORMS = [
    (END, "file: is missing"),
    (part("name", b"eve") + END, "file: is missing"),
    (part("file", b"RIFF", file="a.wav") + END, "name: is missing"),
    (part("name", b"eve") + part("file", b"") + END, "file: came as text; send the recording itself, as a file"),
    (part("name", b"eve") + part("name", b"me") + END, "name: comes twice; send it once"),
    (part("transcript", b"x") + part("prompt_text", b"x") + END, "transcript: prompt_text is a name of the same field"),
    (part("name", b"eve", file="a") + END, "'name': this field does not take a file"),
    (part("name", b"eve") + part("\n", b"RIFF", file="a.wav") + END, "'\\n': this field does not take a file"),
    (part("name", b"\xc3\x28") + END, "name: is not UTF-8"),
    (part("name", b"eve") + part("replace", b"maybe") + part("file", b"RIFF", file="a") + END, "replace: 'maybe'"),
    (part("name", b"eve") * 5_000 + END, "body: it is not a readable form"),
    (part("name", b"eve") + part("file", bytes(2 * MIB), file="a.wav")[:-1], "body: it is not a readable form"),
    (part("name", b"eve") + part("file", b"", file="a.wav") + END, "file: the given data is empty"),
]
URLENCODED = [
    (b"input=" + b"%" * 30_000, "text: 30000 characters are more than the limit of 20000"),
    (b"input=One.&input=Two.", "input: comes twice; send it once"),
    (b"input=x&" * 5_000, "form: has more than 40 fields"),
    (b"input=" + b"x" * (MIB + 1), "form: a field has 1048583 bytes"),
    (b"input=%00&seed=%ff", "seed: "),
]
BOUNDARIES = ["", "; boundary=", f"; boundary={'x' * 300}"]
CHARSETS = ["punycode", "idna", "unicode_escape", "utf-7", "utf-16", "base64", "zip", "none"]
ENCODED = part("input", b"a-" + b"b" * 100_000) + END
REFUSED = [
    *((SPEECH, "application/json", *case) for case in JSON),
    *((SPEECH, FORM, *case) for case in FORMS),
    *((VOICES, FORM, *case) for case in VOICE_FORMS),
    *((SPEECH, "application/x-www-form-urlencoded", *case) for case in URLENCODED),
    *(
        (SPEECH, f"application/x-www-form-urlencoded; charset={each}", b"input=x", "content-type: ")
        for each in CHARSETS
    ),
    *(
        (SPEECH, f"multipart/form-data{each}", part("input", b"x") + END, "body: it is not a readable form")
        for each in BOUNDARIES
    ),
    *((SPEECH, f"{FORM}; charset={each}", ENCODED, "content-type: charset ") for each in CHARSETS),
    *((VOICES, f"{FORM}; charset={each}", ENCODED, "content-type: charset ") for each in CHARSETS),
]


@pytest.mark.parametrize(("path", "kind", "body", "message"), REFUSED)
def test_a_body_that_is_no_request(server: Served, path: str, kind: str, body: bytes, message: str) -> None:
    refused(answer_to(server, path, body, kind), message)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zip"])
def test_packed_bodies_are_not_unpacked(server: Served, encoding: str) -> None:
    zeros = io.BytesIO()
    with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(64 * MIB))
    bomb = zeros.getvalue() if encoding == "zip" else gzip.compress(bytes(64 * MIB), 1)
    with memory_bounded(16 * MIB):
        message = f"content-encoding: {encoding!r} is not supported; send the body uncompressed, without this header"
        refused(answer_to(server, SPEECH, bomb, content_encoding=encoding), message)
        refused(answer_to(server, VOICES, bomb, FORM, content_encoding=encoding), message)
        refused(answer_to(server, SPEECH, speech(), content_encoding=encoding), message)


def test_json_of_many_values_takes_no_more_memory_than_its_bytes(server: Served) -> None:
    for values in (b"{},", b"[],", b"1,", b'"",'):
        body = b'{"input": "x", "sampling": [' + values * (24 * MIB // len(values)) + b"1]}"
        with memory_bounded(144 * MIB):
            refused(answer_to(server, SPEECH, body), "body: holds ")


def test_recordings_in_base64_may_be_broken_into_lines(server: Served) -> None:
    """A voice and a recording: refused, but not for the recording; 16 MiB of it take no more than some copies."""
    lines = b"\\r\\n".join([base64.b64encode(bytes(57))] * (16 * MIB // 78))
    body = b'{"input": "x", "voice": "anna", "prompt_audio": "' + lines + b'"}'
    with memory_bounded(160 * MIB):
        refused(answer_to(server, SPEECH, body), "voice: a recording came as well")


def test_a_key_in_a_body_is_not_told(server: Served) -> None:
    answer = answer_to(server, SPEECH, json.dumps({"input": "x", "api_key": {"secret": "sk-1"}}).encode())
    refused(answer, "api_key: extra inputs")
    assert "sk-1" not in answer.error["message"]
