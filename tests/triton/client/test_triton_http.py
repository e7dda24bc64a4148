"""One utterance over HTTP, against a server that speaks as Triton does."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from vivavoce.errors import InvalidRequest, ModelNotFound
from vivavoce_triton.client.http_client import HttpOptions, speak_http
from vivavoce_triton.client.utterance import Manner, Utterance
from vivavoce_triton.client.wire import ServerRefused, ServerUnreachable, read_reference

RECORDING = Path(__file__).parents[2] / "data" / "audio" / "speech_24k_float.wav"
REFERENCE = ("reference_wav", "reference_wav_len", "reference_text")
INPUTS = ("target_text", *REFERENCE, "voice", "instruct_text", "seed", "speed")
SAMPLES = np.array([0.1, -0.25, 0.5, 1.25], np.float32)
JSON, EVENTS, BINARY = "application/json", "text/event-stream", "application/octet-stream"
HEADER = "Inference-Header-Content-Length"


class StubTriton(ThreadingHTTPServer):
    """Answers with what a test puts into `answers`: path → (status, headers, body)."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.stalls = threading.Event()

    @property
    def url(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def serve(self, *, decoupled=False, **config):
        facts = {
            "name": "cosyvoice2",
            "max_batch_size": 16,
            "model_transaction_policy": {"decoupled": decoupled},
            "input": [{"name": name} for name in INPUTS],
            "output": [{"name": "waveform"}],
            **config,
        }
        self.answer("config", 200, json.dumps(facts).encode())

    def answer(self, name, status, body, **headers):
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        self.answers[f"/v2/models/cosyvoice2/{name}"] = (status, given, body)


class _Handler(BaseHTTPRequestHandler):
    server: StubTriton

    def do_GET(self):
        self._reply(b"")

    def do_POST(self):
        self._reply(self.rfile.read(int(self.headers["Content-Length"])))

    def _reply(self, body):
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

    def log_message(self, format, *arguments):
        """Say nothing."""


@pytest.fixture
def server():
    with StubTriton() as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stub
        stub.stalls.set()
        stub.shutdown()
        thread.join()


def options(server, text="hello", **others):
    return HttpOptions(Utterance("a", text, RECORDING, "its words"), server.url, **others)


def json_answer(samples):
    output = {"name": "waveform", "datatype": "FP32", "shape": [1, len(samples)], "data": samples.tolist()}
    return json.dumps({"model_name": "cosyvoice2", "outputs": [output]}).encode()


def event(samples):
    return b"data: " + json.dumps({"model_name": "cosyvoice2", "waveform": samples.tolist()}).encode() + b"\n\n"


def test_json_tensors(server):
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
    values = {"reference_text": "its words", "voice": "anna", "instruct_text": "calmly", "seed": 7, "speed": 1.5}
    assert {name: sent[name]["data"] for name in values} == {name: [value] for name, value in values.items()}


def test_binary_tensors(server):
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


def test_a_streaming_model_is_asked_for_a_stream(server):
    server.serve(decoupled=True)
    server.answer("generate_stream", 200, event(SAMPLES) + event(SAMPLES[:1]) + b": comment\n\n", Content_Type=EVENTS)
    audio = speak_http(options(server, manner=Manner(seed=7)))
    np.testing.assert_array_equal(audio.samples, [*SAMPLES, SAMPLES[0]])
    sent = json.loads(server.seen[1][2])
    assert (sent["target_text"], sent["reference_text"], sent["seed"]) == ("hello", "its words", [7])
    assert len(sent["reference_wav"]) == sent["reference_wav_len"][0] == len(read_reference(RECORDING))


@pytest.mark.parametrize(("decoupled", "status", "before"), [(False, 400, b""), (True, 404, b"data: ")])
def test_the_servers_own_words_are_passed_on(server, decoupled, status, before):
    server.serve(decoupled=decoupled)
    words = before + b'{"error":"target_text: bad"}\n\n'
    server.answer("generate_stream" if decoupled else "infer", status, words)
    with pytest.raises(ServerRefused, match=r"^server: target_text: bad \(HTTP 40[04]\)$"):
        speak_http(options(server))


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b'{"outputs":[{"name":"waveform"}]}',
        json_answer(np.array([np.nan], np.float32)),
        b'{"outputs":[{"name":"waveform","datatype":"FP32","parameters":{"binary_data_size":8}}]}',
        b'{"outputs":[{"name":"waveform","datatype":"FP32","shape":[1],"data":["a"]}]}',
        json_answer(SAMPLES[:0]),
    ],
)
def test_what_is_no_answer_is_refused(server, body):
    server.serve()
    server.answer("infer", 200, body)
    with pytest.raises(ServerRefused):
        speak_http(options(server))


@pytest.mark.parametrize(
    ("path", "status", "body", "headers", "asked", "error", "message"),
    [
        ("generate_stream", 404, b"<html>", {}, {}, InvalidRequest, "generate_stream .*client grpc.*decoupled_mode"),
        ("generate_stream", 503, b"<html>not now", {}, {}, ServerRefused, r"not now.*\(HTTP 503\)"),
        ("generate_stream", 200, b"", {}, {}, ServerRefused, "no audio came"),
        ("generate_stream", 200, event(SAMPLES) + b'data: {"error":"bad"}', {}, {}, ServerRefused, "^server: bad$"),
        ("generate_stream", 200, b"data: {oh\n\n", {}, {}, ServerRefused, "cannot be read"),
        ("generate_stream", 200, event(SAMPLES), {"Content_Length": "9999"}, {}, ServerRefused, "broke off"),
        ("generate_stream", 200, event(SAMPLES), {}, {"binary": True}, InvalidRequest, "^binary: "),
        ("generate_stream", 200, event(SAMPLES), {"X_Stall": "1"}, {"timeout_s": 1.0}, ServerUnreachable, "timeout: "),
        ("config", 200, b"<html>", {}, {}, ServerRefused, "is not a Triton server"),
        ("config", 200, b'{"output": [{"name": "ids"}]}', {}, {}, ServerRefused, "has the outputs ids, no waveform"),
        ("infer", 200, b"", {}, {"model": "other"}, ModelNotFound, "does not serve 'other'"),
        ("infer", 200, b"", {}, {"manner": Manner(), "url": "127.0.0.1:1"}, ServerUnreachable, "is not available"),
        ("infer", 200, b"", {}, {"url": "localhost:notaport"}, InvalidRequest, "server_url: "),
    ],
)
def test_what_goes_wrong_is_explained(server, path, status, body, headers, asked, error, message):
    server.serve(decoupled=True)
    server.answer(path, status, body, **headers)
    with pytest.raises(error, match=message):
        speak_http(HttpOptions(Utterance("a", "hello"), **{"url": server.url, **asked}))


@pytest.mark.parametrize("timeout_s", [0.0, math.nan, 86_401])
def test_a_client_waits_a_day_at_most(server, timeout_s):
    with pytest.raises(InvalidRequest, match="timeout: "):
        options(server, timeout_s=timeout_s)
