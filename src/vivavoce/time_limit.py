"""Ends work that takes too long. One thread watches all of it, because starting a thread takes milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread

_CHECK_EVERY_S, _IDLE_S = 0.1, 10.0
_due: dict[object, tuple[float, Callable[[], object]]] = {}
_watcher: list[Thread] = []
_lock = Lock()


@contextmanager
def time_limit(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Call `end` once, in another thread, if the block is not left within this time."""
    work = object()
    with _lock:
        _due[work] = time.monotonic() + seconds, end
        if not _watcher or not _watcher[0].is_alive():  # a forked process has no such thread
            _watcher[:] = [Thread(target=_watch, name="vivavoce-time-limit", daemon=True)]
            _watcher[0].start()
    try:
        yield
    finally:
        with _lock:
            _due.pop(work, None)


def _watch() -> None:
    used_at = time.monotonic()
    while True:
        time.sleep(_CHECK_EVERY_S)
        with _lock:
            if _due:
                used_at = time.monotonic()
            elif time.monotonic() > used_at + _IDLE_S:
                return _watcher.clear()
            late = [_due.pop(work)[1] for work, (at, _) in list(_due.items()) if at <= time.monotonic()]
        for end in late:
            end()
