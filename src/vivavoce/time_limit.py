"""Time limits of blocks of code. One thread watches all limits, because starting a thread takes milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Thread

_due: dict[object, tuple[float, Callable[[], object]]] = {}
_changed = Condition()
_watcher: list[Thread] = []
_wakes_at = [0.0]
"""The monotonic time at which the watcher wakes. A new block wakes the watcher only if its limit ends before that."""


@contextmanager
def time_limit(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Call `end` once, in another thread, if the block is not left within this time."""
    work, at = object(), time.monotonic() + seconds
    with _changed:
        _due[work] = at, end
        if not _watcher or not _watcher[0].is_alive():  # a forked process has no such thread
            _watcher[:] = [Thread(target=_watch, name="vivavoce-time-limit", daemon=True)]
            _watcher[0].start()
        elif at < _wakes_at[0]:
            _changed.notify()
    try:
        yield
    finally:
        with _changed:
            _due.pop(work, None)


def _watch() -> None:
    while True:
        with _changed:
            if not _due:
                return _watcher.clear()
            _wakes_at[0] = min(at for at, _ in _due.values())
            _changed.wait(max(0.0, _wakes_at[0] - time.monotonic()))
            late = [_due.pop(work)[1] for work, (at, _) in list(_due.items()) if at <= time.monotonic()]
        for end in late:
            end()
