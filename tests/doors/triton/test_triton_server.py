"""The launcher with a real server and a small model of its own."""

from __future__ import annotations

import json
import os
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from server_environment import server_installation

from vivavoce.doors.triton.installation import ServerInstallation
from vivavoce.doors.triton.server import SHARED_MEMORY, ServerSettings, TritonServer
from vivavoce.errors import InvalidRequest, StageFailed

CONFIG = """
name: "twice"
backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "numpy" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "empty" value: { string_value: "" } }
"""
MODEL = """
import json
import numpy
import triton_python_backend_utils as pb_utils
from vivavoce.doors.triton import wire

class TritonPythonModel:
    def initialize(self, args):
        parameters = wire.parameters(json.loads(args["model_config"]))
        if parameters != {"empty": ""}:
            raise pb_utils.TritonModelException(f"parameters {parameters}")

    def execute(self, requests):
        return [self._answer(wire.floats(pb_utils, request, "x")) for request in requests]

    def _answer(self, x):
        version = numpy.array([[numpy.__version__.encode()]], dtype=object)
        return wire.answer(pb_utils, y=(2 * x)[None], numpy=version)
"""
FREE = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, ready_within_s=60)


def make_repository(folder: Path, code: str = MODEL) -> Path:
    (folder / "twice" / "1").mkdir(parents=True)
    (folder / "twice" / "config.pbtxt").write_text(CONFIG)
    (folder / "twice" / "1" / "model.py").write_text(code)
    (folder / ".a-file-beside.json").write_text("{}")
    return folder


def shared_memory(server: TritonServer) -> list[Path]:
    """What this server holds: others may run beside it."""
    return list(SHARED_MEMORY.glob(f"{server._shared_memory}*"))


def infer(server: TritonServer, values: list[float]) -> dict[str, object]:
    tensor = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/twice/infer",
        data=json.dumps({"inputs": [tensor]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        answer = json.load(reply)
    return {output["name"]: output["data"] for output in answer["outputs"]}


def test_serves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    server = TritonServer(server_installation(), make_repository(tmp_path / "models"), tmp_path / "log", FREE)
    with server:
        answer = infer(server, [1.0, 2.5, -3.0])
        assert answer["y"] == [2.0, 5.0, -6.0]
        assert str(answer["numpy"]).startswith("['1.")
        assert [(model["name"], model["state"]) for model in server.models()] == [("twice", "READY")]
        assert 'nv_inference_request_success{model="twice"' in server.metrics()
        assert shared_memory(server)
        pid = server.pid
        assert pid
    assert server.pid is None
    assert shared_memory(server) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    server.stop()


def test_a_model_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    broken = MODEL.replace("parameters = ", 'raise ValueError("no such weights")\n        parameters = ')
    server = TritonServer(server_installation(), make_repository(tmp_path / "models", broken), tmp_path / "log", FREE)
    with pytest.raises(StageFailed, match="no such weights") as raised:
        server.start()
    assert "\n" not in str(raised.value)
    assert "At:" not in str(raised.value)  # the frames are in its log
    assert server.pid is None


def test_models_do_not_import_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A work folder that is called `triton` would stand in for the library of that name, which torch looks for."""
    (tmp_path / "namesake").mkdir()
    monkeypatch.chdir(tmp_path)
    code = MODEL.replace("import json\n", "import json\nimport namesake\n")
    server = TritonServer(server_installation(), make_repository(tmp_path / "models", code), tmp_path / "log", FREE)
    with pytest.raises(StageFailed, match="No module named 'namesake'"):
        server.start()


def test_waiting_ends_when_the_server_does(tmp_path: Path) -> None:
    with TritonServer(server_installation(), make_repository(tmp_path / "models"), tmp_path / "log", FREE) as server:
        assert server.pid is not None
        ending = threading.Timer(0.1, os.kill, (server.pid, 15))
        ending.start()
        assert server.wait() == 0
        ending.join()


@pytest.fixture
def nowhere() -> ServerInstallation:
    return ServerInstallation(Path("/bin/false"))


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path, nowhere: ServerInstallation) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        settings = ServerSettings(http_port=0, grpc_port=port, metrics_port=0)
        server = TritonServer(nowhere, tmp_path, tmp_path / "log", settings)
        with pytest.raises(InvalidRequest, match=f"grpc port: 127.0.0.1:{port} cannot be had"):
            server.start()
    assert not (tmp_path / "log").exists()


def test_a_server_that_ends_at_once(tmp_path: Path, nowhere: ServerInstallation) -> None:
    with pytest.raises(StageFailed, match=r"ended with 1 while starting; its log .* says: nothing"):
        TritonServer(nowhere, tmp_path, tmp_path / "log", FREE).start()
    with pytest.raises(StageFailed, match="ended with 1 while starting; see its words above"):
        TritonServer(nowhere, tmp_path, None, FREE).start()


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\necho loading\nexec sleep 60\n")
    script.chmod(0o755)
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, ready_within_s=0.3)
    server = TritonServer(ServerInstallation(script), tmp_path, tmp_path / "log", settings)
    with pytest.raises(StageFailed, match=r"not ready after 0\.3 s.*says: loading"):
        server.start()
    assert server.pid is None


def test_no_repository(tmp_path: Path, nowhere: ServerInstallation) -> None:
    with pytest.raises(InvalidRequest, match="is no folder; create the repository first"):
        TritonServer(nowhere, tmp_path / "none", tmp_path / "log")


def test_waiting_for_what_was_not_started(tmp_path: Path, nowhere: ServerInstallation) -> None:
    with pytest.raises(StageFailed, match="not started"):
        TritonServer(nowhere, tmp_path, tmp_path / "log").wait()
