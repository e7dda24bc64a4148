"""CosyVoice's own HTTP and gRPC services in front of a Triton server, asked as their own clients ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

pytest.importorskip("tritonclient.grpc")

from tests.dialects.test_cosyvoice_grpc import SECOND
from tests.dialects.test_cosyvoice_http import ROUTES, TEXT, WAV
from tests.grpc_service.calling import METHOD, audio, request
from tests.triton.client.fake_triton import INPUTS
from tests.triton.upstream.test_triton_backend import WHOLE, Watched, folder, speaking
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_legacy_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import Listener, bind
from vivavoce.server.keys import KeyRing
from vivavoce.server.settings import ServerSection, ServerSettings
from vivavoce_dialects.table import DIALECTS
from vivavoce_grpc.server import start_grpc

__all__ = ["folder"]
SPOKEN = to_int16(WHOLE).astype("<i2").tobytes()
ANNA = "What Anna says."


@dataclass
class Bridge:
    """Both services, and the Triton server behind them."""

    url: str
    channel: grpc.aio.Channel
    triton: Watched

    async def ask(self, route: str, fields: dict[str, str], recording: bytes | None = None) -> httpx.Response:
        """As the original client: a GET with a form in its body."""
        files = recording and [("prompt_wav", ("prompt_wav", recording, "application/octet-stream"))]
        async with httpx.AsyncClient() as client:
            return await client.request("GET", f"{self.url}/{route}", data=fields, files=files or None, timeout=60)

    def sent(self) -> tuple[str | None, str | None]:
        """The recording's text and the instruction of the last request; None: there was none."""
        seen: dict[str, Any] = self.triton.seen[-1]
        assert ("reference_wav" in seen) is ("reference_text" in seen)
        return seen.get("reference_text"), seen.get("instruct_text")


@pytest.fixture
def instructed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model takes instructions."""
    monkeypatch.setattr("tests.triton.client.fake_triton.INPUTS", (*INPUTS, "instruct_text"))


@asynccontextmanager
async def bridged(folder: Path) -> AsyncIterator[Bridge]:
    async with speaking(folder) as (speaker, triton):
        state = AppState(RequestDispatcher(speaker), KeyRing(), ServerSettings(), dialects=DIALECTS)
        listener = Listener(build_legacy_app(state), bind("127.0.0.1", 0, "port"), state.settings.server)
        await listener.start()
        server, port = await start_grpc(state.dispatcher, state.keys, ServerSection(grpc_port=0), DIALECTS)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Bridge(f"http://127.0.0.1:{listener.port}", channel, triton)
        await server.stop(None)
        await listener.stop()


@pytest.mark.usefixtures("instructed")
async def test_every_route_speaks(folder: Path) -> None:
    sent = {}
    async with bridged(folder) as bridge:
        for route, fields, with_recording, _ in ROUTES:
            answer = await bridge.ask(route, {"tts_text": TEXT, **fields}, WAV if with_recording else None)
            assert (answer.status_code, answer.content) == (200, SPOKEN), answer.text
            sent[route.removeprefix("inference_")] = bridge.sent()
    assert sent == {
        "sft": (ANNA, None),
        "zero_shot": ("希望你以后能够做的比我还好呦。", None),
        "cross_lingual": ("", None),
        "instruct": (ANNA, "Softly."),
        "instruct2": ("", "用四川话说这句话"),
    }


async def test_a_voice_of_the_folder_in_place_of_a_recording_is_used_as_the_route_says(folder: Path) -> None:
    stored = {"tts_text": TEXT, "zero_shot_spk_id": "anna"}
    async with bridged(folder) as bridge:
        for route, sent in (("inference_zero_shot", ANNA), ("inference_cross_lingual", "")):
            assert (await bridge.ask(route, stored)).status_code == 200
            assert bridge.sent() == (sent, None)


@pytest.mark.usefixtures("instructed")
async def test_every_call_speaks(folder: Path) -> None:
    calls: list[tuple[str, dict[str, str | bytes], tuple[str, str | None]]] = [
        ("sft_request", {"spk_id": "anna"}, (ANNA, None)),
        ("zero_shot_request", {"prompt_text": "What I say.", "prompt_audio": SECOND}, ("What I say.", None)),
        ("cross_lingual_request", {"prompt_audio": SECOND}, ("", None)),
        ("instruct_request", {"spk_id": "anna", "instruct_text": "Softly."}, (ANNA, "Softly.")),
    ]
    async with bridged(folder) as bridge:
        for kind, fields, sent in calls:
            call = bridge.channel.unary_stream(METHOD)(request(kind, tts_text=TEXT, **fields))
            assert b"".join([audio(response) async for response in call]) == SPOKEN
            assert bridge.sent() == sent


async def test_what_cannot_be_done_is_left_out_or_said(folder: Path) -> None:
    async with bridged(folder) as bridge:  # whose model takes no instructions
        fields = {"tts_text": TEXT, "spk_id": "anna", "instruct_text": "Softly."}
        answer = await bridge.ask("inference_instruct", fields)
        assert (answer.status_code, answer.content) == (200, SPOKEN)
        assert bridge.sent() == (ANNA, None)
        (folder / "anna.txt").unlink()
        answer = await bridge.ask("inference_zero_shot", {"tts_text": TEXT, "zero_shot_spk_id": "anna"})
        assert answer.json()["error"]["message"].startswith("mode: zero_shot needs the recording's transcript")
        assert len(bridge.triton.seen) == 1
