"""The server's side of a job: runs its process, handles its messages, speaks its texts after all live requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vivavoce.child import python_command
from vivavoce.engine.request import AudioChunk
from vivavoce.errors import OutOfMemory, StageFailed, VivavoceError
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeechRequest
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.rate_limiter import Principal
from vivavoce_books.jobs.values import error_of

log = logging.getLogger(__name__)

PROTOCOL = "jobs"
WORKER = "vivavoce_books.jobs.worker"
LINE_BYTES = 1 << 22
SHORTEST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Shortest and longest wait, in seconds, before a text that a busy engine refused is sent to it again."""

Message = dict[str, Any]
Process = asyncio.subprocess.Process


async def converse(
    mode: str, folder: Path, begin: Message, take: Callable[[Message, Process], Awaitable[None]]
) -> None:
    """Run a worker process to its end, and call `take` with each message. Raises the error that the process reports."""
    pipe = asyncio.subprocess.PIPE
    command = python_command(WORKER, mode, str(folder))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE_BYTES)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(begin).encode() + b"\n")
        async for line in process.stdout:
            message = json.loads(line)
            if message["kind"] == "failed":
                raise error_of(message)
            await take(message, process)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def answer(
    dispatcher: RequestDispatcher, principal: Principal, asked: Message, process: Process, job: str
) -> None:
    """Speak or normalise a text, and answer the worker; if the engine is busy, try again later."""
    number, attempt, content = asked["number"], 0, b""
    told: Message = {}
    options = {name: asked[name] for name in ("text", "voice", "speed", "seed", "language") if name in asked}
    while True:
        attempt += 1
        try:
            request = SpeechRequest(**options, owner=principal.owner, reasoning="read", priority="batch")
            if asked["kind"] == "normalize":  # checks that the language is known
                await dispatcher.backend.normalize(request)
            else:
                told, content = await _speak(dispatcher, principal, request, f"{job}~{number}~{attempt}")
            break
        except VivavoceError as error:
            if error.http_status not in (429, 503) or isinstance(error, OutOfMemory):
                told = {"error": str(error), "code": error.code, "status": error.http_status}
                break
            await asyncio.sleep(min(LONGEST_WAIT_S, error.retry_after_s or SHORTEST_WAIT_S))
        except Exception:
            log.exception("job failed: segment of %(job)s", {"job": job})
            told = {"error": "server: an internal error, which was logged", "code": StageFailed.code, "status": 500}
            break
    assert process.stdin is not None
    line = json.dumps({"number": number, "bytes": len(content), **told}).encode() + b"\n"
    with suppress(ConnectionError):  # the process has ended; `converse` notices it
        process.stdin.write(line + content)
        await process.stdin.drain()


async def _speak(
    dispatcher: RequestDispatcher, principal: Principal, request: SpeechRequest, name: str
) -> tuple[Message, bytes]:
    spans: list[tuple[int, int]] = []
    samples: list[int] = []
    parts: list[bytes] = []
    speaking = dispatcher.speak(principal, request, protocol=PROTOCOL, request_id=name, begins=False)
    async with await speaking as active:
        async for event in active:
            if isinstance(event, SegmentText):
                spans.append((event.start, event.end))
                samples.append(0)
            elif isinstance(event, AudioChunk):
                samples[event.segment] += len(event.samples)
                parts.append(event.samples.astype("<f4", copy=False).tobytes())
        cut = active.whole().reason is FinishReason.LENGTH
    return {"spans": spans, "samples": samples, "cut": cut}, b"".join(parts)
