"""Daemon threads that read texts. They are told to end when the interpreter exits."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar
from weakref import WeakKeyDictionary

from vivavoce.errors import RequestCancelled

T = TypeVar("T")
_ENDING_S = 1.0
"""Seconds to wait for all threads together at the interpreter's exit. Reading a block of text takes about 0.3 s."""
AT_ONCE = 4
"""Maximum number of threads that read whole texts for one event loop; hundreds of threads would slow the engine."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_threads: WeakKeyDictionary[threading.Thread, Callable[[], object]] = WeakKeyDictionary()
"""Running threads, each with the function that tells the thread to end early."""


def start_thread(call: Callable[[], object], leave: Callable[[], object]) -> None:
    """Run `call` in a daemon thread. leave: a function, called when Python ends, that makes `call` return early."""
    thread = threading.Thread(target=call, name="vivavoce-text", daemon=True)
    _threads[thread] = leave
    thread.start()


async def in_thread(call: Callable[[], T], leave: Callable[[], object]) -> T:
    """Run `call` in a new daemon thread, since it may wait for text, and await its result. leave: a function that makes
    `call` return early; called if the awaiting task is cancelled, or when Python ends."""
    future: Future[T] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    start_thread(run, leave)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        leave()
        raise


async def in_turn(call: Callable[[], T], leave: Callable[[], object]) -> T:
    """Like `in_thread`, for a whole text. At most `AT_ONCE` calls have threads; the others wait in the event loop."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)):
        return await in_thread(call, leave)


@atexit.register
def end_threads() -> None:
    """End all threads. Otherwise, a thread that is inside wetext's C++ code at the exit would abort the process."""
    until = time.monotonic() + _ENDING_S
    for leave in list(_threads.values()):
        leave()
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


def read_in_loop(text: AsyncIterable[str], loop: asyncio.AbstractEventLoop) -> tuple[Iterator[str], Callable[[], None]]:
    """Return an iterator, for use in a thread, over the pieces of an async iterable, and a function that ends reading.

    A task of the event loop reads the pieces. The task stays one piece ahead of the thread."""
    taken, arrived = asyncio.Semaphore(1), SimpleQueue[str | Exception]()

    async def read() -> None:
        try:
            async for piece in text:
                arrived.put(piece)
                await taken.acquire()
            arrived.put(StopIteration())
        except Exception as error:
            arrived.put(error)
        finally:
            arrived.put(RequestCancelled("request: was cancelled"))

    def close() -> None:
        arrived.put(RequestCancelled("request: was cancelled"))
        if not loop.is_closed():
            reading.cancel()

    def pieces() -> Iterator[str]:
        while not isinstance(piece := arrived.get(), Exception):
            loop.call_soon_threadsafe(taken.release)
            yield piece
        if not isinstance(piece, StopIteration):
            raise piece

    reading = asyncio.run_coroutine_threadsafe(read(), loop)
    return pieces(), close
