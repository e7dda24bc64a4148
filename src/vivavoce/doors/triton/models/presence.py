"""Noticing that a client has left.

The server tells nobody: it has to be asked, and answers with a message between processes. So it is asked now and then,
in a thread of its own, whether anything is made meanwhile or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

ASK_EVERY_S = 0.25
_ASKERS = 2


class Presence:
    """Asks for all requests of a model, in an event loop."""

    def __init__(self) -> None:
        self._askers = ThreadPoolExecutor(_ASKERS, "vivavoce-presence")

    @asynccontextmanager
    async def watched(self, left: Callable[[], bool], give_up: Callable[[], None]) -> AsyncIterator[None]:
        """Call `give_up` once soon after `left` has turned true, while the block runs; nothing is asked after it."""
        over = asyncio.Event()
        watching = asyncio.create_task(self._watch(left, give_up, over))
        try:
            yield
        finally:
            over.set()
            await watching

    def close(self) -> None:
        """Nothing is watched any more."""
        self._askers.shutdown()

    async def _watch(self, left: Callable[[], bool], give_up: Callable[[], None], over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not over.is_set():
            if await loop.run_in_executor(self._askers, left):
                give_up()
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), ASK_EVERY_S)
