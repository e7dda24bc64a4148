"""Measures how many listeners the HTTP server alone can serve, with a backend that computes no speech.

The backend gives each listener half a second of audio every half second. A piece that leaves the server late has waited
for other pieces to be encoded and sent: `python -m benchmarks.door_listeners --format mp3 --listeners 64 256`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np

from vivavoce.engine.request import AudioChunk
from vivavoce.frontend.audio.encode import AudioFormat
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import ModelInfo, SpeechBackend
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import Listener, bind
from vivavoce.server.keys import KeyRing
from vivavoce.server.settings import ServerSettings

RATE = 24_000
PIECE_S = 0.5
FIRST_S = 0.12
ARRIVING = 0.3
"""All listeners connect within this share of the length of their speech."""


@dataclass
class Lateness:
    """Seconds from the due time of a piece until it has left the server, for first pieces and for all others."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)


@dataclass
class PacedStream:
    """A stream of half a second of a hummed vowel for each letter of the text, sent in real time."""

    letters: int
    lateness: Lateness
    sample_rate: int = RATE
    verdict: Verdict | None = None
    stopped: bool = False

    def cancel(self) -> None:
        """Stop the stream, whose listener has left."""
        self.stopped = True

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        yield SegmentText(0, 0, self.letters)
        for place in range(self.letters):
            due = began + place * PIECE_S
            await asyncio.sleep(max(0.0, due - loop.time()))
            if self.stopped:
                return
            yield AudioChunk(hum(PIECE_S if place else FIRST_S), RATE)
            (self.lateness.later if place else self.lateness.first).append(loop.time() - due)
        self.verdict = Verdict(FinishReason.STOP, FIRST_S + (self.letters - 1) * PIECE_S, 1, 1)


@dataclass
class PacedSpeaker:
    """A speech backend with only the members that speaking needs."""

    lateness: Lateness = field(default_factory=Lateness)
    about: ModelInfo = field(default_factory=lambda: ModelInfo("paced", "a hum", RATE, demo=True))
    ready: bool = True

    async def speak(self, order: SpeechRequest) -> PacedStream:
        """Return a stream without waiting."""
        return PacedStream(len(order.text or ""), self.lateness)


@cache
def hum(seconds: float) -> np.ndarray:
    """[n] float32: forty harmonics of 120 Hz and some noise; encoding it costs about as much as encoding speech."""
    time_s = np.arange(int(RATE * seconds)) / RATE
    voice = sum(np.sin(2 * np.pi * 120 * k * time_s + k * k) / k for k in range(1, 41))
    return (0.2 * voice + 0.01 * np.random.default_rng(0).standard_normal(len(time_s))).astype(np.float32)


def serve(control: Connection) -> None:
    """The server's process: send its port; after any message, send the lateness and the CPU seconds."""

    async def run() -> None:
        speaker = PacedSpeaker()
        dispatcher = RequestDispatcher(cast(SpeechBackend, speaker))
        state = AppState(dispatcher, KeyRing(), ServerSettings())
        for seconds in (FIRST_S, PIECE_S):
            hum(seconds)  # fills the cache
        listener = Listener(build_app(state), bind("127.0.0.1", 0, "port"), state.settings.server)
        await listener.start()
        control.send(listener.port)
        began = time.process_time()
        await asyncio.to_thread(control.recv)
        control.send((speaker.lateness, time.process_time() - began))
        await listener.stop()

    asyncio.run(run())


async def listen(port: int, audio_format: AudioFormat, listeners: int, pieces: int) -> None:
    """Run all listeners; RuntimeError: an answer is missing or cut."""
    body = json.dumps({"input": "a" * pieces, "response_format": audio_format.value}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    head += "content-type: application/json\r\nconnection: close\r\n\r\n"

    async def one(place: int) -> None:
        await asyncio.sleep(ARRIVING * pieces * PIECE_S * place / listeners)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200") or not answer.endswith(b"0\r\n\r\n"):
            raise RuntimeError(f"an answer is missing or cut: {answer[:100]!r}")

    await asyncio.gather(*map(one, range(listeners)))


def measure(audio_format: AudioFormat, listeners: int, seconds: float) -> str:
    """Measure one load; the result is a line of figures."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    there.close()  # so that `recv` ends if the server cannot start
    port = here.recv()
    began = time.perf_counter()
    asyncio.run(listen(port, audio_format, listeners, round(seconds / PIECE_S)))
    took_s = time.perf_counter() - began
    here.send("enough")
    lateness, busy_s = cast(tuple[Lateness, float], here.recv())
    server.join()
    figures: dict[str, Any] = {"first": lateness.first, "later": lateness.later}
    told = ", ".join(
        f"{name} pieces late by {np.percentile(late, 50) * 1e3:.1f} / {np.percentile(late, 99) * 1e3:.1f} ms"
        for name, late in figures.items()
    )
    name = f"{audio_format.value}, {listeners} listeners"
    return f"{name}: {told} (p50 / p99); the server took {busy_s / took_s:.0%} of a core"


def main() -> None:
    """Measure each format with each number of listeners."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    formats = [each.value for each in AudioFormat]
    parser.add_argument("--format", nargs="+", choices=formats, default=["pcm", "mp3"], help="formats to try")
    parser.add_argument("--listeners", nargs="+", type=int, default=[16, 64, 128, 256], help="listeners at once")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of speech for each listener")
    options = parser.parse_args()
    for name in options.format:
        for listeners in options.listeners:
            print(measure(AudioFormat(name), listeners, options.seconds), flush=True)


if __name__ == "__main__":
    main()
