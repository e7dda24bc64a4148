"""Threads for one kind of work: so many at once, so many that wait, and so long for each."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from vivavoce.errors import VivavoceError

Result = TypeVar("Result")


class BoundedExecutor:
    """Work that blocks, asked for by one event loop. Work that hangs keeps its thread, and work behind it its place
    until it ends; those who asked are told in time.

    name: what the work is about, for errors and threads; threads, waiting: how much is done at once, and may wait;
    limit_s: how long work may take, its waiting included; error: made of what is wrong, for work that was not done;
    niceness: by how much its threads give way to others, where threads have priorities of their own (Linux).
    """

    def __init__(
        self,
        name: str,
        threads: int,
        waiting: int,
        limit_s: float,
        error: Callable[[str], VivavoceError],
        niceness: int = 0,
    ) -> None:
        self._name, self._num_threads, self._limit_s, self._error = name, threads, limit_s, error
        self._places, self._taken = threads + waiting, 0
        self._began: dict[int, float] = {}
        """When each thread that is at work began with it."""
        self._threads = ThreadPoolExecutor(threads, f"vivavoce-{name}", _give_way, (niceness,))

    async def run(self, work: Callable[[], Result], instead: Result | None = None) -> Result:
        """What `work` returns or raises; `instead`, or the pool's error, if there is no room or time for it."""
        if self._taken < self._places:
            given_up = threading.Event()
            doing = asyncio.get_running_loop().run_in_executor(self._threads, self._do, work, given_up)
            self._taken += 1
            doing.add_done_callback(self._leave)
            try:
                # It is not cancelled: the executor would keep it, and what it holds, beyond the places.
                await asyncio.wait((doing,), timeout=self._limit_s)
                if doing.done():
                    return cast(Result, doing.result())
            finally:
                given_up.set()
        if instead is not None:
            return instead
        problem = f"not done within {self._limit_s:g} s, or {self._places} are before it"
        raise self._error(f"{self._name}: {problem}; try again in some seconds")

    def moved_since(self, moment: float) -> bool:
        """Whether a thread is idle, or has begun something since then (seconds of `time.monotonic`)."""
        began = list(self._began.values())
        return len(began) < self._num_threads or max(began) > moment

    @property
    def longest_s(self) -> float:
        """For how long the oldest work of its threads has gone on; 0: there is none."""
        now = time.monotonic()
        return now - min(list(self._began.values()), default=now)

    def _do(self, work: Callable[[], Result], given_up: threading.Event) -> Result | None:
        if given_up.is_set():
            return None
        self._began[threading.get_ident()] = time.monotonic()
        try:
            return work()
        finally:
            del self._began[threading.get_ident()]

    def _leave(self, doing: asyncio.Future[Result | None]) -> None:
        self._taken -= 1
        if not doing.cancelled():
            doing.exception()  # is known now, even if nobody waits for it any more


def _give_way(niceness: int) -> None:
    """Let this thread, and those that it starts, have less of the processors than others."""
    if niceness and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
