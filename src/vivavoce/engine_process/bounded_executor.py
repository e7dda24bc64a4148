"""A thread pool for one kind of work, with limits on running work, on waiting work, and on the time of each work."""

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
    """Runs blocking work for one event loop. Work that hangs keeps its thread, but its caller gets an error in time.

    threads, waiting: the most calls of `run` that work at once, and that wait; limit_s: seconds for each call, its wait
    included; error: makes the error of a call without result; niceness: the threads' niceness, on Linux.
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
        self._threads = ThreadPoolExecutor(threads, f"vivavoce-{name}", _give_way, (niceness,))

    async def run(self, work: Callable[[], Result], instead: Result | None = None) -> Result:
        """Run `work` and return its result. Without a place or time, return `instead`; if it is None, raise."""
        if self._taken < self._places:
            given_up = threading.Event()
            doing = asyncio.get_running_loop().run_in_executor(self._threads, self._do, work, given_up)
            self._taken += 1
            doing.add_done_callback(self._leave)
            try:
                # At the time limit the work is not cancelled, because its place would then count as free although the
                # executor still holds the work.
                await asyncio.wait((doing,), timeout=self._limit_s)
                if doing.done():
                    return cast(Result, doing.result())
            finally:
                given_up.set()
        if instead is not None:
            return instead
        problem = f"not done within {self._limit_s:g} s, or {self._places} others run or wait"
        raise self._error(f"{self._name}: {problem}; try again in some seconds")

    def moved_since(self, moment: float) -> bool:
        """Return whether a thread is idle, or has started work since `moment`, in seconds of `time.monotonic`."""
        began = list(self._began.values())
        return len(began) < self._num_threads or max(began) > moment

    @property
    def longest_s(self) -> float:
        """Seconds for which the oldest running work has run; 0 if no work runs."""
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
            doing.exception()  # marks the exception as read: the caller may have left


def _give_way(niceness: int) -> None:
    if niceness and sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
