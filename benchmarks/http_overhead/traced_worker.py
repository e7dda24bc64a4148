"""The engine's process of a traced server: notes when a request comes, is with the engine, and has its first chunk."""

from __future__ import annotations

from contextvars import ContextVar
from unittest.mock import patch

from benchmarks.http_overhead.trace import TraceLog
from vivavoce.engine.request import SpeechRequest
from vivavoce.service.host import worker
from vivavoce.service.host.messages import Speak
from vivavoce.service.host.speaker import SpeechEvent, SpeechPiece
from vivavoce.service.host.talk import Talk

LOG = TraceLog("engine")
_number: ContextVar[int] = ContextVar("number")
"""Of the request that the task works on."""


class TracedWorker(worker.Worker):
    """See `TracedHost`."""

    async def _speak(self, message: Speak) -> None:
        _number.set(message.number)
        LOG.begin(message.number)
        LOG.mark(message.number, "received")
        await super()._speak(message)

    async def _say(self, number: int, event: SpeechEvent) -> None:
        if isinstance(event, SpeechPiece):
            LOG.end(number, "made")
        await super()._say(number, event)


class TracedTalk(Talk):
    """See `TracedHost`."""

    def _submit(self, request: SpeechRequest) -> None:
        super()._submit(request)
        LOG.mark(_number.get(), "submitted")


if __name__ == "__main__":
    with patch.object(worker, "Worker", TracedWorker), patch.object(worker, "Talk", TracedTalk):
        worker.main()
