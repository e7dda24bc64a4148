"""The application under `serve run`: three replicas on this machine, and one of them killed.

Ray is not part of the usual environment: `make soak` runs these where `pip install 'vivavoce[ray]'` was done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from websockets.asyncio.client import ClientConnection, connect

from tests.entrypoints.http.serve_process import environment, serving_process
from tests.entrypoints.http.websocket_serving import END, answered, audio_of, errors_of, of_type, send, start, text

pytestmark = pytest.mark.long
pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'vivavoce[ray]'")

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "tests" / "data" / "audio" / "speech_24k_float.wav"
LATE_S = 120.0
"""Nothing here takes so long; it ends a test that would hang."""
CLIENTS, REPLICAS, SLOTS, WAITING = 20, 3, 4, 10
"""A replica speaks for four and lets ten wait: two of them have room for all clients."""
ROUNDS = 30
PATIENT = {"RAY_raylet_start_wait_time_s": 300, "RAY_health_check_failure_threshold": 50}
"""Of a machine that is busy with other tests."""
BRIEF = {"max_ratio": 8.0, "min_ratio": 4.0, "top_k": 5}
TEXT = "One two three four five six seven eight. " * 6


@dataclass
class Cluster:
    url: str
    home: Path

    def replicas(self, deployment: str) -> list[int]:
        """The processes of the replicas that this test started."""
        found, mark = [], f"VIVAVOCE_HOME={self.home}".encode()
        name = f"ServeReplica:vivavoce:{deployment}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if name in (entry / "cmdline").read_bytes() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass  # no process, or one that has ended
        return found


@pytest.fixture(scope="module")
def cluster(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The configuration of deploy/ray on a free port, with the small random model."""
    home = tmp_path_factory.mktemp("ray")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text(encoding="utf-8"))
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["applications"][0]["args"] = {
        "model": str(babble),
        "replicas": REPLICAS,
        "cpus": 0.1,
        "engine.slots": SLOTS,
        "engine.max_waiting": WAITING,
        "engine.admission": "queue",
        "model.deterministic": True,
        "model.warm_up_s": 0,
        "voices.place": str(home / "voices"),
    }
    (home / "serve.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = {"RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": 0, "PYTHONPATH": os.pathsep.join(sys.path)}
    settings |= PATIENT
    run = [str(Path(sys.executable).with_name("serve")), "run", str(home / "serve.yaml")]
    own = environment(home, **settings)
    with subprocess.Popen(run, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said = []
            for line in process.stdout or ():
                said.append(line)
                if "is ready at" in line:
                    break
            else:
                pytest.fail(f"serve run has ended: {''.join(said[-50:])}")
            threading.Thread(target=process.communicate, daemon=True).start()  # what it still says is read
            yield Cluster(f"http://127.0.0.1:{port}", home)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(LATE_S)


def order(seed: int, **more: Any) -> dict[str, Any]:
    return {"input": f"{seed}. {TEXT}", "response_format": "pcm", "sampling": BRIEF, "seed": seed, **more}


@dataclass
class Heard:
    """What a client has got."""

    seed: int
    status: int = 0
    data: bytes = b""
    pieces: int = 0
    is_cut: bool = False
    request_id: str = ""
    code: str = ""
    times: list[float] = field(default_factory=list)


async def listen(client: httpx.AsyncClient, url: str, seed: int, begun: asyncio.Semaphore | None = None) -> Heard:
    """Speak one order; begun: is released at the first audio."""
    heard = Heard(seed)
    try:
        async with client.stream("POST", f"{url}/v1/audio/speech", json=order(seed)) as answer:
            heard.status, heard.request_id = answer.status_code, answer.headers["x-request-id"].partition(",")[0]
            if heard.status != 200:
                heard.code = str((await answer.aread(), answer.json())[1]["error"]["code"])
            else:
                async for piece in answer.aiter_raw():
                    heard.data += piece
                    heard.pieces += 1
                    heard.times.append(time.monotonic())
                    if begun is not None and heard.pieces == 1:
                        begun.release()
    except httpx.RemoteProtocolError:
        heard.is_cut = True
    return heard


def clients() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=LATE_S, limits=httpx.Limits(max_connections=2 * CLIENTS))


@pytest.fixture(scope="module")
def plain(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `vivavoce serve` with the same model."""
    flags = ("--model", babble, "--deterministic", "--admission", "queue")
    with serving_process(tmp_path_factory.mktemp("serve"), *flags, VIVAVOCE_MODEL_WARM_UP_S=0) as server:
        yield server.url


async def test_speech_and_refusals_are_those_of_serve(cluster: Cluster, plain: str) -> None:
    added: list[float] = []
    async with clients() as client:
        for seed in range(ROUNDS):
            took, heard = [], []
            for url in (plain, cluster.url) if seed % 2 else (cluster.url, plain):
                began = time.monotonic()
                heard.append(await listen(client, url, seed))
                took.append((heard[-1].times[0] - began) * (1 if url == cluster.url else -1))
            one, two = heard
            assert (one.status, one.is_cut, len(one.data) > 24_000, one.pieces > 2) == (200, False, True, True)
            assert one.data == two.data
            added.append(sum(took))
        for path, body in (
            ("audio/speech", {"input": ""}),
            ("audio/speech", {"inputs": "Hello."}),
            ("audio/speech", {"input": "Hello.", "voice": "nobody"}),
            ("audio/speech", {"input": "Hello.", "sampling": {"top_k": -1}}),
            ("audio/nothing", {}),
        ):
            answers = [await client.post(f"{url}/v1/{path}", json=body) for url in (plain, cluster.url)]
            assert answers[0].status_code >= 400
            assert answers[0].status_code == answers[1].status_code
            assert answers[0].json() == answers[1].json()
    print(f"first audio: {1e3 * statistics.median(added):.1f} ms more than of `serve`, in the middle of {ROUNDS} pairs")


async def test_a_text_that_arrives_is_spoken(cluster: Cluster) -> None:
    async with connect(f"{cluster.url.replace('http', 'ws')}/v1/audio/stream") as client:
        words = [text(f"{word} ") for word in TEXT.split()[:16]]
        replies = await answered(client, start(sampling=BRIEF, seed=1), *words, END)
        again = await answered(client, start(sampling=BRIEF, seed=1), *words, END)
        assert of_type(replies, "done")[0]["verdict"]["finish_reason"] in ("stop", "length")
        assert len(audio_of(replies)) > 24_000
        assert audio_of(replies) == audio_of(again)
        refused = await answered(client, start(voice="nobody"), text("Hello."), END, until="error")
        assert errors_of(refused) == ["voice_not_found"]


async def test_a_voice_is_known_to_all_replicas(cluster: Cluster) -> None:
    async with clients() as client:
        voice = {"name": "me", "transcript": "some words"}
        files = {"file": RECORDING.read_bytes()}
        added = await client.post(f"{cluster.url}/v1/audio/voices", data=voice, files=files)
        assert added.status_code == 201, added.text
        speech = f"{cluster.url}/v1/audio/speech"
        spoken = await asyncio.gather(*(client.post(speech, json=order(1, voice="me")) for _ in range(CLIENTS)))
        assert {one.status_code for one in spoken} == {200}
        assert len({one.content for one in spoken}) == 1
        removed = await client.delete(f"{cluster.url}/v1/audio/voices/me")
        assert removed.status_code in (200, 204)
        assert (await client.post(speech, json=order(1, voice="me"))).status_code == 404


async def test_who_is_too_many_is_refused_and_who_leaves_makes_room(cluster: Cluster) -> None:
    """Texts that arrive hold their places until they end, or their listeners leave."""
    address = f"{cluster.url.replace('http', 'ws')}/v1/audio/stream"
    sockets: list[ClientConnection] = []
    try:
        for _ in range(REPLICAS * (SLOTS + WAITING) // 5 + 2):
            sockets.append(await connect(address))
            contexts = [
                message
                for name in "abcde"
                for message in (
                    start(context_id=name, sampling=BRIEF),
                    {**text("One two three four five six. "), "context_id": name},
                )
            ]
            await send(sockets[-1], *contexts)
        async with clients() as client:
            refused = await client.post(f"{cluster.url}/v1/audio/speech", json=order(1))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            await asyncio.gather(*(one.close() for one in sockets))
            assert (await listen(client, cluster.url, 1)).status == 200
    finally:
        await asyncio.gather(*(one.close() for one in sockets))


async def test_a_replica_is_killed_among_many_clients(cluster: Cluster) -> None:
    async with clients() as client:
        alone = [(await listen(client, cluster.url, seed)).data for seed in range(CLIENTS)]
        begun = asyncio.Semaphore(0)
        listening = [asyncio.ensure_future(listen(client, cluster.url, seed, begun)) for seed in range(CLIENTS)]
        for _ in range(REPLICAS * SLOTS // 2):
            await begun.acquire()
        before = cluster.replicas("Engine")
        assert len(before) == REPLICAS
        os.kill(before[0], signal.SIGKILL)
        killed_at = time.monotonic()
        heard = await asyncio.wait_for(asyncio.gather(*listening), LATE_S)
        assert {(one.status, one.code) for one in heard} == {(200, "")}, "who had heard nothing was asked for again"
        for one in heard:
            assert one.data == (alone[one.seed][: len(one.data)] if one.is_cut else alone[one.seed]), one.seed
        cut = [one for one in heard if one.is_cut]
        for one in cut:
            told = (await client.get(f"{cluster.url}/v1/audio/requests/{one.request_id}")).json()
            assert (told["finish_reason"], told["error_code"]) == ("error", "engine_stopped"), told
        assert len(cut) <= SLOTS
        served_at = max(min(one.times) for one in heard)
        until = killed_at + LATE_S
        while len(cluster.replicas("Engine")) < REPLICAS:
            assert time.monotonic() < until
            assert (await listen(client, cluster.url, 1)).data == alone[1]
        print(
            f"cut {len(cut)} of {CLIENTS}; the last first audio {served_at - killed_at:.1f} s after the kill; another "
            f"replica's process {time.monotonic() - killed_at:.1f} s after it"
        )
