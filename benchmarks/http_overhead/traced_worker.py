"""The engine process of a traced server: records when a request comes, is submitted, and has its first chunk."""

from __future__ import annotations

from unittest.mock import patch

from benchmarks.http_overhead.trace import TraceLog
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process import process
from vivavoce.engine_process.messages import Answer, Event, FromProcess
from vivavoce.frontend.speech import SpeechRequest

LOG = TraceLog("engine")


class TracedServer(process.EngineServer):
    """An `EngineServer` that records the times of requests."""

    async def _speak(self, number: int, request: SpeechRequest) -> None:
        LOG.begin(number)
        LOG.mark(number, "received")
        await super()._speak(number, request)

    def _send(self, message: FromProcess) -> None:
        if isinstance(message, Answer) and message.number in self._sessions:
            LOG.mark(message.number, "submitted")
        elif isinstance(message, Event) and isinstance(message.event, AudioChunk):
            LOG.end(message.number, "made")
        super()._send(message)


if __name__ == "__main__":
    with patch.object(process, "EngineServer", TracedServer):
        process.main()
