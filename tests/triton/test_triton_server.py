"""The launcher with a real server and a small model of its own."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest, StageFailed
from vivavoce_triton.server import SHARED_MEMORY, ServerInstallation, TritonServer, TritonServerSettings, ask

CONFIG = """
name: "twice"
backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "numpy" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "empty" value: { string_value: "" } }
"""
MODEL = """
import numpy
import triton_python_backend_utils as pb_utils
from vivavoce_triton.models import backend as wire

class TritonPythonModel:
    def initialize(self, args):
        parameters = wire.Parameters(args)
        if (parameters.max_batch_size, parameters["empty"]) != (4, ""):
            raise pb_utils.TritonModelException("the parameters are others")

    def execute(self, requests):
        return [self._answer(wire.Inputs(pb_utils, request).floats("x")) for request in requests]

    def _answer(self, x):
        version = numpy.array([[numpy.__version__.encode()]], dtype=object)
        return wire.answer(pb_utils, y=(2 * x)[None], numpy=version)
"""
FREE = TritonServerSettings(http_port=0, grpc_port=0, metrics_port=0, ready_within_s=60)
NOWHERE = ServerInstallation(Path("/bin/false"))


@pytest.fixture
def server_of(installation, tmp_path):
    """A server of one model, which doubles numbers and tells its NumPy."""

    def make(code=MODEL):
        (tmp_path / "models" / "twice" / "1").mkdir(parents=True)
        (tmp_path / "models" / "twice" / "config.pbtxt").write_text(CONFIG)
        (tmp_path / "models" / "twice" / "1" / "model.py").write_text(code)
        (tmp_path / "models" / ".a-file-beside.json").write_text("{}")
        return TritonServer(installation, tmp_path / "models", tmp_path / "log", FREE)

    return make


def shared_memory(server):
    """What this server holds: others may run beside it."""
    return list(SHARED_MEMORY.glob(f"{server._shared_memory}*"))


def test_serves_and_leaves_nothing_behind(server_of):
    server = server_of()
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.5, -3.0]}
    with server:
        url = f"http://{server.http_url}/v2/models/twice/infer"
        y, numpy = json.loads(ask(url, json.dumps({"inputs": [tensor]}).encode())[1])["outputs"]
        assert y["data"] == [2.0, 5.0, -6.0]
        assert numpy["data"][0].startswith("1.")
        assert [(model["name"], model["state"]) for model in server.models()] == [("twice", "READY")]
        deadline = time.monotonic() + 20
        while not (figures := ask(server.metrics_url)[1].decode()) and time.monotonic() < deadline:
            time.sleep(0.05)  # the server opens this door after its others
        assert 'nv_inference_request_success{model="twice"' in figures
        assert shared_memory(server)
        pid = server.pid
        assert pid
    assert server.pid is None
    assert shared_memory(server) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    server.stop()


def test_a_model_that_fails_is_told_in_one_line(server_of):
    broken = MODEL.replace("parameters = ", 'raise ValueError("no such weights")\n        parameters = ')
    server = server_of(broken)
    with pytest.raises(StageFailed, match="no such weights") as raised:
        server.start()
    assert "\n" not in str(raised.value)
    assert "At:" not in str(raised.value)  # the frames are in its log
    assert server.pid is None


def test_models_do_not_import_from_the_working_folder(server_of, tmp_path, monkeypatch):
    """A work folder that is called `triton` would stand in for the library of that name, which torch looks for."""
    (tmp_path / "namesake").mkdir()
    monkeypatch.chdir(tmp_path)
    code = MODEL.replace("import numpy\n", "import numpy\nimport namesake\n")
    with pytest.raises(StageFailed, match="No module named 'namesake'"):
        server_of(code).start()


def test_waiting_ends_when_the_server_does(server_of):
    with server_of() as server:
        assert server.pid is not None
        ending = threading.Timer(0.1, os.kill, (server.pid, 15))
        ending.start()
        assert server.wait() == 0
        ending.join()


def test_a_taken_port_is_refused_before_anything_starts(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = TritonServer(NOWHERE, tmp_path, tmp_path / "log", replace(FREE, grpc_port=port))
        with pytest.raises(InvalidRequest, match=f"grpc port: 127.0.0.1:{port} cannot be used"):
            server.start()
    assert not (tmp_path / "log").exists()


def test_a_server_that_ends_at_once(tmp_path):
    with pytest.raises(StageFailed, match=r"ended with 1 while starting; its log .* says: nothing"):
        TritonServer(NOWHERE, tmp_path, tmp_path / "log", FREE).start()
    with pytest.raises(StageFailed, match="ended with 1 while starting; see its output above"):
        TritonServer(NOWHERE, tmp_path, None, FREE).start()


def test_a_server_that_is_never_ready_is_stopped(tmp_path):
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\necho loading\nexec sleep 60\n")
    script.chmod(0o755)
    server = TritonServer(ServerInstallation(script), tmp_path, tmp_path / "log", replace(FREE, ready_within_s=0.3))
    with pytest.raises(StageFailed, match=r"not ready after 0\.3 s.*says: loading"):
        server.start()
    assert server.pid is None
