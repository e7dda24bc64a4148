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
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from websockets.asyncio.client import connect

from tests.fleet.test_serve_fleet import BRIEF, TEXT, Client
from tests.server.http.serve_process import environment, serving_process
from tests.server.http.websocket_serving import END, answered, audio_of, errors_of, of_type, start, text

pytestmark = pytest.mark.long
pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'vivavoce[ray]'")

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests" / "data" / "audio" / "speech_24k_float.wav"
LATE_S = 120.0
"""Nothing here takes so long; it ends a test that would hang."""
CLIENTS, REPLICAS, SLOTS, WAITING = 60, 3, 3, 40
"""A replica speaks for three and lets forty wait: two of them have room for all clients."""
ROUNDS = 20
LONGER = {"max_ratio": 1.0, "min_ratio": 0.5, "top_k": 5}
"""Three seconds of speech: it sounds when a replica is killed."""
ROUNDING = 0.02
"""Larger batches sum in another order; other tokens are another length or another wave."""
PATIENT = {"RAY_raylet_start_wait_time_s": 300, "RAY_health_check_failure_threshold": 50, "RAY_DEDUP_LOGS": 0}
"""For a machine that is busy with other tests, and a log of all replicas."""


@dataclass
class Cluster:
    url: str
    home: Path
    said: list[str]
    """Lines of its log."""

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
    config["applications"][0].pop("deployments")  # one server knows all requests
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["applications"][0]["args"] = {
        "model": str(babble),
        "replicas": REPLICAS,
        "cpus": 0.1,
        "engine.slots": SLOTS,
        "engine.max_waiting": WAITING,
        "engine.admission": "all",
        "model.warm_up_s": 0,
        "voices.place": str(home / "voices"),
    }
    (home / "serve.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = {"RAY_ADDRESS": "local", "PYTHONPATH": os.pathsep.join(sys.path), **PATIENT}
    run = [str(Path(sys.executable).with_name("serve")), "run", str(home / "serve.yaml")]
    own = environment(home, **settings)
    with subprocess.Popen(run, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said: list[str] = []
            for line in process.stdout or ():
                said.append(line)
                if sum("engine ready" in one for one in said) == REPLICAS:
                    break
            else:
                pytest.fail(f"serve run has ended: {''.join(said[-50:])}")
            threading.Thread(target=said.extend, args=(process.stdout,), daemon=True).start()
            yield Cluster(f"http://127.0.0.1:{port}", home, said)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(LATE_S)


def http(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=LATE_S, limits=httpx.Limits())


async def heard(client: httpx.AsyncClient, seed: int) -> Client:
    """One that listens to the end."""
    one = Client(seed, sampling=LONGER)
    await one.listen(client)
    assert one.whole, one.problem
    return one


def check_is_that(one: Client, alone: Client) -> None:
    """It is the same speech, as far as it was heard."""
    assert len(one.samples) == len(alone.samples) if one.whole else len(one.samples) < len(alone.samples)
    off = np.abs(one.samples - alone.samples[: len(one.samples)]).max()
    assert off < ROUNDING * np.abs(alone.samples).max(), f"seed {one.seed} is mixed up"


@pytest.fixture(scope="module")
def plain(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `vivavoce serve` with the same model."""
    with serving_process(
        tmp_path_factory.mktemp("serve"), "--model", babble, "--admission", "all", VIVAVOCE_MODEL_WARM_UP_S=0
    ) as server:
        yield server.url


async def test_speech_and_refusals_are_those_of_serve(cluster: Cluster, plain: str) -> None:
    added: list[float] = []
    async with http(plain) as of_serve, http(cluster.url) as of_ray:
        while (await of_ray.get("/health/ready")).status_code != 200:
            pass  # its server may be the last to begin
        for seed in range(ROUNDS):
            took = {}
            for client in (of_serve, of_ray) if seed % 2 else (of_ray, of_serve):
                body, began = {"input": "Hello.", "response_format": "pcm", "sampling": BRIEF}, time.monotonic()
                async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
                    assert [piece async for piece in answer.aiter_raw()]
                took[client] = time.monotonic() - began
            added.append(took[of_ray] - took[of_serve])
        check_is_that(await heard(of_ray, 1), await heard(of_serve, 1))
        for path, body in (
            ("audio/speech", {"input": ""}),
            ("audio/speech", {"inputs": "Hello."}),
            ("audio/speech", {"input": "Hello.", "voice": "nobody"}),
            ("audio/speech", {"input": "Hello.", "sampling": {"top_k": -1}}),
            ("audio/normalize", {"input": "Hello.", "voice": "nobody"}),
            ("audio/nothing", {}),
        ):
            answers = [await client.post(f"/v1/{path}", json=body) for client in (of_serve, of_ray)]
            assert answers[0].status_code >= 400
            assert answers[0].status_code == answers[1].status_code
            assert answers[0].json() == answers[1].json()
    print(
        f"a short answer takes {1e3 * statistics.median(added):.1f} ms longer than of `serve` ({ROUNDS} pairs, median)"
    )


async def test_speech_is_sent_while_it_is_made(cluster: Cluster) -> None:
    async with http(cluster.url) as client:
        body = {"input": TEXT, "response_format": "pcm", "sampling": BRIEF, "stream_format": "sse"}
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        assert sum("speech.audio.delta" in line for line in lines) > 1
        assert '"finish_reason":"' in lines[-1]


async def test_a_text_that_arrives_is_spoken(cluster: Cluster) -> None:
    async with connect(f"{cluster.url.replace('http', 'ws')}/v1/audio/stream") as client:
        words = [text(f"{word} ") for word in TEXT.split()[:16]]
        replies = await answered(client, start(sampling=BRIEF, seed=1), *words, END)
        assert of_type(replies, "done")[0]["verdict"]["finish_reason"] in ("stop", "length")
        assert len(audio_of(replies)) > 10_000
        refused = await answered(client, start(voice="nobody"), text("Hello."), END, until="error")
        assert errors_of(refused) == ["voice_not_found"]


async def test_a_voice_is_known_to_all_replicas(cluster: Cluster) -> None:
    async with http(cluster.url) as client:
        voice, files = {"name": "me", "transcript": "some words"}, {"file": RECORDING.read_bytes()}
        added = await client.post("/v1/audio/voices", data=voice, files=files)
        assert added.status_code == 201, added.text
        body = {"input": "Hello.", "voice": "me", "sampling": BRIEF}
        spoken = await asyncio.gather(*(client.post("/v1/audio/speech", json=body) for _ in range(4 * REPLICAS)))
        assert {one.status_code for one in spoken} == {200}
        read = (await client.post("/v1/audio/normalize", json={"input": "5 km", "voice": "me"})).json()
        assert read["text"] == "five kilometers"
        assert (await client.delete("/v1/audio/voices/me")).is_success
        assert (await client.post("/v1/audio/speech", json=body)).status_code == 404


async def test_who_is_too_many_is_refused_and_who_leaves_makes_room(cluster: Cluster) -> None:
    most = REPLICAS * (SLOTS + WAITING)
    async with http(cluster.url) as client:
        clients = [Client(seed) for seed in range(most + most // 4)]
        listening = {asyncio.ensure_future(one.listen(client)) for one in clients}
        while not (refused := [one.problem for one in clients if one.problem]):
            assert listening, "nobody was refused"
            _, listening = await asyncio.wait(listening, return_when=asyncio.FIRST_COMPLETED)
        assert '"code":"overloaded"' in refused[0]
        for leaving in listening:
            leaving.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        asking = [
            client.post("/v1/audio/speech", json={"input": "Hello.", "sampling": BRIEF}) for _ in range(most // 2)
        ]
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_a_replica_is_killed_among_many_clients(cluster: Cluster) -> None:
    clients = [Client(seed, sampling=LONGER) for seed in range(CLIENTS)]
    async with http(cluster.url) as client:
        alone = [await heard(client, one.seed) for one in clients]
        before = cluster.replicas("Engine")
        assert len(before) == REPLICAS
        listening = [asyncio.ensure_future(one.listen(client)) for one in clients]
        while sum(bool(one.audio) for one in clients) < CLIENTS // 3:
            await asyncio.wait(listening, timeout=0.01)
        os.kill(before[0], signal.SIGKILL)
        killed_at = time.monotonic()

        async def replaced() -> float:
            """When there is another."""
            while len(set(cluster.replicas("Engine")) - {before[0]}) < REPLICAS:
                await asyncio.wait(listening, timeout=0.1)
            return time.monotonic() - killed_at

        replacing = asyncio.ensure_future(replaced())
        await asyncio.wait_for(asyncio.gather(*listening), LATE_S)  # none hangs
        cut = [one for one in clients if not one.whole]
        assert all(one.audio for one in cut), "those without a byte are given to another replica"
        assert len(cut) <= SLOTS, "a replica takes no more streams than it had begun"
        for one, wanted in zip(clients, alone, strict=True):
            check_is_that(one, wanted)
        assert any("request moved: another engine takes it" in line for line in cluster.said)
        seconds = await asyncio.wait_for(replacing, LATE_S)
        print(f"{len(cut)} of {CLIENTS} cut; another replica's process was there {seconds:.1f} s after the kill")
        check_is_that(await heard(client, 1), alone[1])
