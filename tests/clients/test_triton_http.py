"""One utterance over HTTP, against a server that speaks as Triton does."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vivavoce.clients.triton.audio import read_reference
from vivavoce.clients.triton.failures import ServerRefused, ServerUnreachable
from vivavoce.clients.triton.http_client import HttpOptions, speak_http
from vivavoce.clients.triton.utterance import Manner, Utterance
from vivavoce.errors import InvalidRequest, ModelNotFound

RECORDING = Path(__file__).parents[1] / "data" / "audio" / "speech_24k_float.wav"
INPUTS = (
    "target_text",
    "reference_wav",
    "reference_wav_len",
    "reference_text",
    "voice",
    "instruct_text",
    "seed",
    "speed",
)
SAMPLES = np.array([0.1, -0.25, 0.5, 1.25], np.float32)
JSON, EVENTS, BINARY = "application/json", "text/event-stream", "application/octet-stream"
HEADER = "Inference-Header-Content-Length"


class StubTriton(ThreadingHTTPServer):
    """Answers with what a test puts into `answers`: path → (status, headers, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.stalls = threading.Event()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def serve(self, *, decoupled: bool = False, **config: Any) -> None:
        facts = {
            "name": "cosyvoice2",
            "max_batch_size": 16,
            "model_transaction_policy": {"decoupled": decoupled},
            "input": [{"name": name} for name in INPUTS],
            "output": [{"name": "waveform"}],
            **config,
        }
        self.answer("config", 200, json.dumps(facts).encode())

    def answer(self, name: str, status: int, body: bytes, **headers: str) -> None:
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        self.answers[f"/v2/models/cosyvoice2/{name}"] = (status, given, body)


class _Handler(BaseHTTPRequestHandler):
    server: StubTriton

    def do_GET(self) -> None:
        self._reply(b"")

    def do_POST(self) -> None:
        self._reply(self.rfile.read(int(self.headers["Content-Length"])))

    def _reply(self, body: bytes) -> None:
        self.server.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
        unknown = (404, {}, b'{"error":"Request for unknown model: \'other\' is not found"}')
        status, headers, content = self.server.answers.get(self.path, unknown)
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if "X-Stall" in headers:
            self.server.stalls.wait(20)
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[StubTriton]:
    with StubTriton() as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stub
        stub.stalls.set()
        stub.shutdown()
        thread.join()


def options(server: StubTriton, text: str = "hello", **others: Any) -> HttpOptions:
    return HttpOptions(Utterance("a", text, RECORDING, "its words"), server.url, **others)


def json_answer(samples: np.ndarray) -> bytes:
    output = {"name": "waveform", "datatype": "FP32", "shape": [1, len(samples)], "data": samples.tolist()}
    return json.dumps({"model_name": "cosyvoice2", "outputs": [output]}).encode()


def event(samples: np.ndarray) -> bytes:
    return b"data: " + json.dumps({"model_name": "cosyvoice2", "waveform": samples.tolist()}).encode() + b"\n\n"


def test_json_tensors(server: StubTriton) -> None:
    server.serve(parameters={"sample_rate": {"string_value": "22050"}})
    server.answer("infer", 200, json_answer(SAMPLES))
    audio = speak_http(options(server, "你好", manner=Manner("anna", "calmly", 7, 1.5)))
    np.testing.assert_array_equal(audio.samples, SAMPLES)
    assert audio.sample_rate == 22_050
    sent = {tensor["name"]: tensor for tensor in json.loads(server.seen[1][2])["inputs"]}
    reference = read_reference(RECORDING)
    assert sent["target_text"] == {"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "data": ["你好"]}
    assert (sent["reference_wav"]["shape"], sent["reference_wav"]["datatype"]) == ([1, len(reference)], "FP32")
    np.testing.assert_array_equal(np.array(sent["reference_wav"]["data"], np.float32), reference)
    assert sent["reference_wav_len"]["data"] == [len(reference)]
    assert [sent[name]["data"] for name in ("reference_text", "voice", "instruct_text", "seed", "speed")] == [
        ["its words"],
        ["anna"],
        ["calmly"],
        [7],
        [1.5],
    ]


def test_binary_tensors(server: StubTriton) -> None:
    server.serve(max_batch_size=0)
    outputs = [
        {"name": "other", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "waveform", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}},
    ]
    header = json.dumps({"outputs": outputs}).encode()
    content = header + b"\1\2\3\4" + SAMPLES.tobytes()
    server.answer("infer", 200, content, **{"Content_Type": BINARY, HEADER.replace("-", "_"): str(len(header))})
    audio = speak_http(options(server, "你好", binary=True))
    np.testing.assert_array_equal(audio.samples, SAMPLES)
    _, headers, body = server.seen[1]
    size = int(headers[HEADER.lower()])
    asked, rest = json.loads(body[:size]), body[size:]
    assert asked["outputs"] == [{"name": "waveform", "parameters": {"binary_data": True}}]
    values = {}
    for tensor in asked["inputs"]:
        count = tensor["parameters"]["binary_data_size"]
        values[tensor["name"]], rest = rest[:count], rest[count:]
    assert rest == b""
    assert values["target_text"] == b"\6\0\0\0" + "你好".encode()
    np.testing.assert_array_equal(np.frombuffer(values["reference_wav"], "<f4"), read_reference(RECORDING))
    assert {tensor["name"]: len(tensor["shape"]) for tensor in asked["inputs"]}["reference_wav"] == 1


def test_a_streaming_model_is_asked_for_a_stream(server: StubTriton) -> None:
    server.serve(decoupled=True)
    server.answer("generate_stream", 200, event(SAMPLES) + event(SAMPLES[:1]) + b": comment\n\n", Content_Type=EVENTS)
    audio = speak_http(options(server, manner=Manner(seed=7)))
    np.testing.assert_array_equal(audio.samples, [*SAMPLES, SAMPLES[0]])
    sent = json.loads(server.seen[1][2])
    assert (sent["target_text"], sent["reference_text"], sent["seed"]) == ("hello", "its words", [7])
    assert len(sent["reference_wav"]) == sent["reference_wav_len"][0] == len(read_reference(RECORDING))


def test_a_server_without_streams_is_said_to_be_one(server: StubTriton) -> None:
    server.serve(decoupled=True)
    for status in (404, 405):
        server.answer("generate_stream", status, b"<html>Not Found</html>")
        with pytest.raises(InvalidRequest, match=r"no generate_stream .*vivavoce client grpc.*decoupled_mode False"):
            speak_http(options(server))


@pytest.mark.parametrize("status", [413, 502, 503])
def test_what_stands_before_a_server_speaks_for_itself(server: StubTriton, status: int) -> None:
    server.serve(decoupled=True)
    server.answer("generate_stream", status, b"<html>not now</html>")
    with pytest.raises(ServerRefused, match=rf"not now.*\(HTTP {status}\)"):
        speak_http(options(server))


def test_streams_are_no_binary(server: StubTriton) -> None:
    server.serve(decoupled=True)
    with pytest.raises(InvalidRequest, match="binary: the model 'cosyvoice2' answers in chunks"):
        speak_http(options(server, binary=True))


@pytest.mark.parametrize(
    ("decoupled", "status", "body"),
    [
        (False, 400, b'{"error":"target_text: bad"}'),
        (True, 400, b'data: {"error":"target_text: bad"}\n\n'),
        (True, 404, b'data: {"error":"target_text: bad"}\n\n'),
        (True, 200, event(SAMPLES) + b'data: {"error":"target_text: bad"}\n\n'),
    ],
)
def test_the_servers_own_words_are_passed_on(server: StubTriton, decoupled: bool, status: int, body: bytes) -> None:
    server.serve(decoupled=decoupled)
    server.answer("generate_stream" if decoupled else "infer", status, body)
    with pytest.raises(ServerRefused, match=r"^server: target_text: bad( \(HTTP 40[04]\))?$"):
        speak_http(options(server))


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b'{"outputs":[]}',
        b'{"outputs":[{"name":"waveform"}]}',
        json_answer(np.array([np.nan], np.float32)),
        b'{"outputs":[{"name":"waveform","datatype":"FP32","parameters":{"binary_data_size":8}}]}',
        b'{"outputs":[{"name":"waveform","datatype":"FP32","shape":[1],"data":["a"]}]}',
        json_answer(SAMPLES[:0]),
    ],
)
def test_what_is_no_answer_is_refused(server: StubTriton, body: bytes) -> None:
    server.serve()
    server.answer("infer", 200, body)
    with pytest.raises(ServerRefused):
        speak_http(options(server))


def test_no_chunks_and_broken_chunks_are_refused(server: StubTriton) -> None:
    server.serve(decoupled=True)
    server.answer("generate_stream", 200, b"")
    with pytest.raises(ServerRefused, match="no audio came"):
        speak_http(options(server))
    server.answer("generate_stream", 200, b"data: {oh\n\n")
    with pytest.raises(ServerRefused, match="cannot be read"):
        speak_http(options(server))


def test_an_answer_that_breaks_off_is_refused(server: StubTriton) -> None:
    server.serve()
    server.answer("infer", 200, json_answer(SAMPLES), Content_Length="100000")
    with pytest.raises(ServerRefused, match="the connection broke off"):
        speak_http(options(server))


def test_a_model_that_is_not_served(server: StubTriton) -> None:
    with pytest.raises(ModelNotFound, match=r"does not serve 'other' \(Request for unknown model"):
        speak_http(options(server, model="other"))


def test_a_model_that_does_not_speak(server: StubTriton) -> None:
    server.serve(output=[{"name": "prompt_speech_tokens"}])
    with pytest.raises(ServerRefused, match="gives prompt_speech_tokens and no waveform"):
        speak_http(options(server))


@pytest.mark.parametrize("config", [b"<html>", b"[]", b'"config"', b"null", b'{"output": [1]}'])
def test_another_kind_of_server(server: StubTriton, config: bytes) -> None:
    server.answer("config", 200, config)
    with pytest.raises(ServerRefused, match="not as a Triton server does"):
        speak_http(options(server))


def test_inputs_that_the_model_lacks(server: StubTriton) -> None:
    server.serve(input=[{"name": "target_text"}])
    with pytest.raises(InvalidRequest, match="reference_wav: the model 'cosyvoice2' takes target_text; leave it out"):
        speak_http(options(server))


def test_who_waits_too_long_says_so(server: StubTriton) -> None:
    server.serve()
    server.answer("infer", 200, json_answer(SAMPLES), X_Stall="1")
    with pytest.raises(ServerUnreachable, match=r"timeout: nothing came from .* for 1 s"):
        speak_http(options(server, timeout_s=1.0))


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf, 1e12])
def test_nobody_waits_forever(server: StubTriton, timeout_s: float) -> None:
    with pytest.raises(InvalidRequest, match=r"timeout: .* s is not above 0 and at most 86400 s"):
        options(server, timeout_s=timeout_s)


def test_nobody_there(server: StubTriton) -> None:
    server.server_close()
    with pytest.raises(ServerUnreachable, match="is not available"):
        speak_http(options(server))


@pytest.mark.parametrize("url", ["ftp://localhost:1", "localhost:notaport"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidRequest, match="server_url: "):
        speak_http(HttpOptions(Utterance("a", "hello"), url))
