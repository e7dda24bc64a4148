"""Encoding beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.doors.http.serving import serving
from vivavoce.doors.http import encoding
from vivavoce.doors.http.app import build_app
from vivavoce.doors.http.encoding import Encoding, open_encoding
from vivavoce.service.audio.encode import open_encoder
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.types import Samples

LATE_S = 20.0
"""Nothing here takes so long; it ends a test that would hang."""


class HeldEncoder:
    """Makes nothing until it may."""

    def __init__(self) -> None:
        self.working, self.may_go_on = threading.Event(), threading.Event()
        self.closed = False

    def encode(self, samples: Samples) -> bytes:
        self.working.set()
        assert self.may_go_on.wait(LATE_S), "nobody else was served meanwhile"
        return b"sound"

    def finish(self) -> bytes:
        return b""

    def whole_header(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed = True


def test_a_slow_encoder_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldEncoder()
    monkeypatch.setattr(
        encoding,
        "open_encoder",
        lambda audio_format, rate: held if audio_format is AudioFormat.MP3 else open_encoder(audio_format, rate),
    )

    def speak(server: str, wanted: str) -> bytes:
        answer = httpx.post(f"{server}/v1/audio/speech", json={"input": "Hello.", "response_format": wanted})
        assert answer.status_code == 200
        return answer.content

    with serving(build_app) as server, ThreadPoolExecutor(1) as aside:
        slow = aside.submit(speak, server.url, "mp3")
        assert held.working.wait(LATE_S)
        assert len(speak(server.url, "pcm")) > 1_000
        held.may_go_on.set()
        assert slow.result(LATE_S) == b"sound"
    assert held.closed


def test_who_leaves_while_a_thread_encodes_may_close() -> None:
    async def scene() -> None:
        held = HeldEncoder()
        stream = Encoding(AudioFormat.OPUS, held)
        piece = asyncio.ensure_future(stream.encode(np.zeros(10, np.float32)))
        while not held.working.is_set():
            await asyncio.sleep(0)
        piece.cancel()
        with pytest.raises(asyncio.CancelledError):
            await piece
        stream.close()
        held.may_go_on.set()
        assert held.closed

    asyncio.run(scene())


@pytest.mark.parametrize("audio_format", list(AudioFormat))
def test_the_bytes_are_the_encoders(audio_format: AudioFormat) -> None:
    pieces = np.array_split(np.sin(np.arange(24_000) / 20).astype(np.float32), 7)
    encoder = open_encoder(audio_format, 24_000)
    wanted = [*map(encoder.encode, pieces), encoder.finish()]

    async def scene() -> list[bytes]:
        stream = open_encoding(audio_format, 24_000)
        return [*[await stream.encode(piece) for piece in pieces], await stream.finish()]

    made = asyncio.run(scene())
    if audio_format is AudioFormat.OPUS:  # Ogg numbers its streams at random
        made, wanted = [[len(each) for each in both] for both in (made, wanted)]  # type: ignore[misc]
    assert made == wanted
