"""Real servers behind a real proxy: one is killed, one drains, and their listeners are served or told."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from tests.deploy.kill_drill import Heard, kill_one, order, servers, spoken_alone, summary, upstream
from tests.deploy.proxies import MISSING, proxy
from tests.server.http.serve_process import LATE_S

pytestmark = pytest.mark.process

CASES = [
    pytest.param("nginx", 20, id="nginx"),
    pytest.param("nginx", 60, id="nginx-60", marks=pytest.mark.long),
    pytest.param("envoy", 60, id="envoy-60", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "listeners"), CASES)
async def test_one_is_killed_then_one_drains(name: str, listeners: int, tmp_path: Path) -> None:
    if name in MISSING:
        pytest.skip(MISSING[name])
    async with (
        servers(tmp_path) as (victim, leaver, last),
        proxy(name, tmp_path, [upstream(server) for server in (victim, leaver, last)]) as front,
        httpx.AsyncClient(timeout=LATE_S, limits=httpx.Limits(max_connections=None)) as client,
    ):
        alone = await spoken_alone(client, last.url)
        drill = await kill_one(client, front.url, victim, listeners)
        told = summary(drill, alone)
        assert (told["mixed_up"], told["refused"]) == (0, 0)
        # Two spoke at most, and those who waited for the victim were served elsewhere.
        assert told["whole"] + told["cut"] == listeners
        asked_again = re.findall(r'upstream="[^"]*, |attempts=[2-9]', front.log.read_text(encoding="utf-8"))
        assert told["cut"] <= 2
        assert told["cut"] + len(asked_again) > 0
        assert all(len(one.audio) < len(alone[one.seed]) for one in drill.cut())

        # The next one is told to stop while it speaks: its stream is whole, new ones go to the last server.
        client.headers["x-voice"] = voice = await _voice_of(client, front.url, leaver.url)
        async with client.stream("POST", f"{front.url}/v1/audio/speech", json=order(0)) as answer:
            pieces = answer.aiter_raw()
            heard = Heard(0, await anext(pieces))
            lines = len(leaver.log.lines)
            leaver.terminate()
            leaver.log.await_event("stopping: ", lines)
            asked = [client.post(f"{front.url}/v1/audio/speech", json=order(seed)) for seed in range(3)]
            for answered in await asyncio.gather(*asked):
                assert (answered.status_code, answered.request.headers["x-voice"]) == (200, voice)
                known = await client.get(f"{last.url}/v1/audio/requests/{answered.headers['x-request-id']}")
                assert known.status_code == 200
            async for piece in pieces:
                heard.audio += piece
        heard.whole = True
        assert heard.is_of(alone[0])
        assert await asyncio.to_thread(leaver.await_end) == 0


async def _voice_of(client: httpx.AsyncClient, url: str, wanted: str) -> str:
    """A name that the proxy gives to this server."""
    for number in range(64):
        headers = {"x-voice": f"voice {number}"}
        answer = await client.post(
            f"{url}/v1/audio/speech",
            json={
                "input": "Hm.",
                "response_format": "pcm",
                "sampling": {"max_ratio": 2.0, "min_ratio": 0.0, "top_k": 5},
            },
            headers=headers,
        )
        if (await client.get(f"{wanted}/v1/audio/requests/{answer.headers['x-request-id']}")).status_code == 200:
            return headers["x-voice"]
    raise AssertionError("every voice goes elsewhere")
