"""Several Triton servers behind the bridge: Envoy between, as deploy/ configures it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tritonclient.grpc")

from tests.deploy.proxies import DEPLOY, MISSING, addresses, envoy, free_ports, running
from tests.triton.client.fake_triton import CHUNKS, FakeTriton, serving
from vivavoce.engine.request import AudioChunk
from vivavoce.errors import EngineStopped
from vivavoce.frontend.speech import SpeechRequest
from vivavoce_triton.upstream.triton_backend import TritonBackend

pytestmark = pytest.mark.process

TEXT = "One sentence. And another one. "
"""Short sentences are asked for together."""
SAMPLES = sum(map(len, CHUNKS))
"""Of what a stand-in answers to any request."""


@asynccontextmanager
async def health() -> AsyncIterator[int]:
    """Triton's HTTP port, of which only readiness is asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while b" /v2/health/ready " in await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def speak(speaker: TritonBackend, text: str) -> int:
    """Samples of what is said."""
    stream = await speaker.speak(SpeechRequest(text))
    return sum([len(event.samples) async for event in stream if isinstance(event, AudioChunk)])


@pytest.mark.skipif("envoy" in MISSING, reason=MISSING.get("envoy", ""))
async def test_sentences_of_one_bridge_are_spread_and_a_triton_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    config = yaml.safe_load((DEPLOY / "kubernetes" / "tritons" / "envoy.yaml").read_text(encoding="utf-8"))
    async with AsyncExitStack() as stack:
        fakes = [FakeTriton(), FakeTriton()]
        serve = [stack.enter_context(ExitStack()) for _ in fakes]
        for own, fake in zip(serve, fakes, strict=True):
            own.enter_context(serving(fake))
        ports = [await stack.enter_async_context(health()) for _ in fakes]
        (port,) = free_ports(1)
        (listener,) = [place for place in addresses(config) if place["address"] == "0.0.0.0"]
        listener.update(address="127.0.0.1", port_value=port)
        cluster = config["static_resources"]["clusters"][0]
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {
                "endpoint": {
                    "address": {
                        "socket_address": {"address": "127.0.0.1", "port_value": int(fake.address.rpartition(":")[2])}
                    },
                    "health_check_config": {"port_value": checked},
                }
            }
            for fake, checked in zip(fakes, ports, strict=True)
        ]
        await stack.enter_async_context(running(envoy(config, tmp_path), tmp_path / "log", port))
        speaker = await TritonBackend.open(f"triton://127.0.0.1:{port}", None)
        stack.push_async_callback(speaker.close)
        assert await speak(speaker, TEXT * 20) == 20 * SAMPLES
        assert all(fake.seen for fake in fakes), "one connection, two servers"
        assert sum(len(fake.seen) for fake in fakes) == 20
        serve[0].close()
        before = len(fakes[1].seen)
        assert await speak(speaker, TEXT * 5) == 5 * SAMPLES
        assert len(fakes[1].seen) == before + 5
        serve[1].close()
        with pytest.raises(EngineStopped):
            await speak(speaker, "Nobody is there.")
