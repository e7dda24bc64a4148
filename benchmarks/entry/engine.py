"""`python -m benchmarks.entry.engine FD`: an engine process that sends audio in real time, without a model."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.entry.pace import RATE, pieces, stamped
from vivavoce.child import end_with_parent, ignore_signals
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process import messages
from vivavoce.engine_process.messages import framed, read_message
from vivavoce.frontend.speech import FinishReason, SegmentText, Verdict
from vivavoce.frontend.speech_backend import ModelInfo

CAPACITY = 100_000


@cache
def hum(samples: int) -> NDArray[np.float32]:
    return (0.2 * np.sin(2 * np.pi * 120 * np.arange(samples) / RATE)).astype(np.float32)


class PacedEngine:
    """Answers a server's messages as an engine's process does."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._speaking: dict[int, asyncio.Task[None]] = {}
        self._texts: dict[int, list[str]] = {}

    def take(self, message: Any) -> None:
        match message:
            case messages.Speak(number, request):
                self._send(messages.Answer(number))
                if request.text is None:
                    self._texts[number] = []
                else:
                    self._begin(number, len(request.text))
            case messages.MoreText(number, None) if number in self._texts:
                self._begin(number, sum(map(len, self._texts.pop(number))))
            case messages.MoreText(number, str(text)) if number in self._texts:
                self._texts[number].append(text)
            case messages.Cancel(number):
                self._texts.pop(number, None)
                if number in self._speaking:
                    self._speaking[number].cancel()
            case messages.Ping(number):
                self._send(messages.Answer(number, messages.Pulse("ok", CAPACITY)))
            case messages.MethodCall(number):
                self._send(messages.Answer(number))

    def _begin(self, number: int, letters: int) -> None:
        task = self._speaking[number] = asyncio.ensure_future(self._speak(number, letters))
        task.add_done_callback(lambda _: self._speaking.pop(number, None))

    async def _speak(self, number: int, letters: int) -> None:
        """Send each piece when all audio before it would have been played."""
        loop = asyncio.get_running_loop()
        due, sizes = loop.time(), pieces(letters)
        self._send(messages.Event(number, SegmentText(0, 0, letters)))
        for place, samples in enumerate(sizes):
            await asyncio.sleep(max(0.0, due - loop.time()))
            final = place == len(sizes) - 1
            chunk = AudioChunk(stamped(hum(samples), due), RATE, place, final, ended=final)
            self._send(messages.Event(number, chunk))
            await self._writer.drain()
            due += samples / RATE
        self._send(messages.End(number, Verdict(FinishReason.STOP, sum(sizes) / RATE, 1, 1)))

    def _send(self, message: messages.FromProcess) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(message))


async def run(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    if await read_message(reader) is None:
        return
    writer.write(framed(messages.Opening(ModelInfo("paced", "a hum", RATE, demo=True))))
    engine = PacedEngine(writer)
    while (message := await read_message(reader)) is not None:
        engine.take(message)


if __name__ == "__main__":
    end_with_parent()
    ignore_signals(signal.SIGTERM)
    asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))
