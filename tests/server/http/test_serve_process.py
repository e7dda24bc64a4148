"""What ends or refuses a server's work: overload, a second signal, starts that cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.server.http.serve_process import (
    LATE_S,
    ServerProcess,
    command,
    environment,
    serving_process,
    starting_process,
)
from tests.server.http.websocket_serving import END, answered, audio_of, start, text

pytestmark = pytest.mark.process

TEXT = "One two three four five six seven eight. " * 60
"""More audio than sockets hold: a listener who does not read keeps its slot."""
RECORDING = Path(__file__).parents[2] / "data" / "audio" / "speech_24k_float.wav"
BRIEF = {"max_ratio": 2.0, "min_ratio": 0.0, "top_k": 5}
"""Babble does not stop by itself."""


@pytest.fixture(scope="module")
def server(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With one slot; the last test ends it."""
    flags = ("--model", babble, "--admission", "refuse", "--slots", 1, "--drain", 600, "--health-port", 0)
    with serving_process(tmp_path_factory.mktemp("serve"), *flags, VIVAVOCE_MODEL_WARM_UP_S=0) as process:
        yield process


def order(text: str) -> dict[str, Any]:
    return {"input": text, "response_format": "pcm", "sampling": BRIEF}


@pytest.mark.usefixtures("planted")
def test_while_the_model_loads_the_server_says_so(babble: Path, tmp_path: Path) -> None:
    with starting_process(tmp_path, "--model", babble, VIVAVOCE_MODEL_WARM_UP_S=0) as server:
        url = server.address(r"loading the model; (http\S+)/health/ready")
        ready = httpx.get(f"{url}/health/ready")
        # It may be loaded by now on a fast machine, though a language model's library alone takes seconds.
        assert (ready.status_code, ready.json().get("reason")) == (503, "engine_starting")
        assert httpx.get(f"{url}/health/live").status_code == 200
        asked = [httpx.post(f"{url}/v1/audio/speech", json=order("Hello.")), httpx.get(f"{url}/v1/models")]
        assert [(one.status_code, one.json()["error"]["code"]) for one in asked] == [(503, "engine_stopped")] * 2
        assert all(int(one.headers["retry-after"]) >= 1 for one in asked)
        assert "vivavoce_engine_up 0" in httpx.get(f"{url}/metrics").text
        assert httpx.get(url).status_code == 200, "the page"
        assert server.url == url
        assert httpx.get(f"{url}/health/ready").status_code == 200


def test_a_signal_ends_a_server_that_loads(babble: Path, tmp_path: Path) -> None:
    with starting_process(tmp_path, "--model", babble) as server:
        server.log.await_event("loading the model")
        server.terminate()
        assert server.await_end() == 0
        assert not [line for line in server.log.lines if line["event"] == "engine ready"]


def test_who_is_too_many_is_refused_and_who_listens_hears_all(server: ServerProcess) -> None:
    address = f"{server.url}/v1/audio/speech"
    with httpx.stream("POST", address, json=order(TEXT), timeout=LATE_S) as answer:
        pieces = answer.iter_bytes()
        heard = len(next(pieces))
        refused = [httpx.post(address, json=order("Hello."), timeout=LATE_S) for _ in range(3)]
        assert [one.status_code for one in refused] == [429] * 3
        assert {one.json()["error"]["code"] for one in refused} == {"overloaded"}
        assert all(1 <= int(one.headers["retry-after"]) <= 60 for one in refused)
        heard += sum(map(len, pieces))
    told = httpx.get(f"{server.url}/v1/audio/requests/{answer.headers['x-request-id']}").json()
    assert told["finish_reason"] in ("stop", "length")
    assert told["segments_spoken"] == told["segments_given"] > 1
    assert told["audio_seconds"] == pytest.approx(heard / 2 / 24_000)
    assert httpx.post(address, json=order("Hello."), timeout=LATE_S).status_code == 200


def test_health_and_figures_have_the_port_that_was_asked_for(server: ServerProcess) -> None:
    own = server.address(r"health and metrics are at (http\S+)")
    assert own != server.url
    assert "vivavoce_engine_up 1" in httpx.get(f"{own}/metrics").text
    found = [httpx.get(url).status_code for url in (f"{own}/health/ready", f"{server.url}/metrics", f"{own}/v1/models")]
    assert found == [200, 404, 404]


def test_a_second_signal_does_not_wait(server: ServerProcess) -> None:
    """The last test: it ends the server."""
    lines = len(server.log.lines)
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=order(TEXT), timeout=LATE_S) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces)
        server.terminate()
        server.log.await_event("stopping: ", lines)
        for process in (server.process.pid, server.engine_process):  # as a service manager may do
            os.kill(process, signal.SIGHUP)
            os.kill(process, signal.SIGUSR2)
        assert next(pieces)
        server.terminate()
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    assert server.await_end() == 0
    mine = answer.headers["x-request-id"]  # the line of the request before may come late
    said = [line for line in server.log.lines if line["event"] == "speech ended"]
    (ended,) = [line for line in said if line["request_id"] == mine]
    assert (ended["reason"], ended["error_code"]) == ("error", "engine_stopped")
    assert server.log.broken == [], "every line is JSON"


async def streamed(url: str) -> list[Any]:
    async with connect(f"{url.replace('http', 'ws')}/v1/audio/stream") as client:
        return await answered(client, start(voice="me", sampling=BRIEF), text("Hello."), END)


@pytest.mark.parametrize("generation", [pytest.param("v1", marks=pytest.mark.long), "v3"])
def test_the_other_generations_are_served(request: pytest.FixtureRequest, generation: str, tmp_path: Path) -> None:
    model, wav = request.getfixturevalue(f"babble_{generation}"), RECORDING.read_bytes()
    with serving_process(
        tmp_path, "--model", model, "--legacy", "--legacy-port", 0, VIVAVOCE_MODEL_WARM_UP_S=0
    ) as server:
        voice = {"name": "me", "transcript": "some words"}
        added = httpx.post(f"{server.url}/v1/audio/voices", data=voice, files={"file": wav}, timeout=LATE_S)
        assert added.status_code == 201, added.text
        answer = httpx.post(f"{server.url}/v1/audio/speech", json={**order("Hello."), "voice": "me"}, timeout=LATE_S)
        assert (answer.status_code, len(answer.content) > 2_000) == (200, True)
        assert len(audio_of(asyncio.run(asyncio.wait_for(streamed(server.url), LATE_S)))) > 2_000
        cloned = httpx.post(
            f"{server.legacy_url}/inference_zero_shot",
            data={"tts_text": "Hello.", "prompt_text": "some words"},
            files={"prompt_wav": wav},
            timeout=LATE_S,
        )
        assert (cloned.status_code, len(cloned.content) > 2_000) == (200, True)


def test_a_wrong_start_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[server\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong = {
            "port: ": ("--port", port),
            "grpc_port: ": ("--port", 0, "--grpc-port", port),
            "model: 'nothing-of-that-name' ": ("--port", 0, "--model", "nothing-of-that-name"),
            "": ("--config", broken),
            "auth.keys_file: ": ("--port", 0, "--keys", tmp_path / "nothing.toml"),
            "engine.admission: 'perhaps' ": ("--admission", "perhaps"),
            "server.tls_certificate: ": ("--port", 0, "--tls-cert", broken, "--tls-key", broken),
        }
        started = {  # all of them at once
            field: subprocess.Popen(command(*flags), env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
            for field, flags in wrong.items()
        }
        told = {field: process.communicate(timeout=LATE_S)[1] for field, process in started.items()}
    for field, said in told.items():
        assert started[field].returncode == 2, said
        (problem,) = [line for line in said.splitlines() if not line.startswith("loading the model; ")]
        assert problem.startswith(f"error: {field}")
