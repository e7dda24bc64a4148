"""A map over processes that outlives them: C code in a worker may crash or hang, and only that item is lost."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

PATIENCE_S = 30.0  # how long one item may take before its worker is given up
_START_PATIENCE_S = 300.0  # the same for the imports of a new worker on a busy machine
_WINDOW = 8  # items that wait in a worker's pipe, so that it never waits for the next
_MAX_AHEAD = 64  # results for each worker that may wait for an earlier one


def ordered_map(
    make_function: Callable[[], Callable[[Item], Result | None]],
    items: Iterable[Item],
    jobs: int,
    patience_s: float = PATIENCE_S,
) -> Generator[Result | None, None, None]:
    """The function's results in the order of the items; None for an item on which its worker died or hung.

    `make_function` is called once in each of the `jobs` worker processes, which are spawned: it must be picklable.
    Items may be without end; closing the iterator ends the workers.

    Raises:
        RuntimeError: the function raised an exception (a bug, unlike a crash), or a worker did not come to its start.
    """
    source = enumerate(items)
    waiting: deque[tuple[int, Item]] = deque()
    results: dict[int, Result | None] = {}
    due = 0
    workers: list[_Worker[Item, Result]] = []
    try:
        workers.extend(_Worker(make_function, patience_s) for _ in range(jobs))
        while True:
            for worker in workers:
                worker.fill(waiting, source, due + _MAX_AHEAD * jobs)
            if not any(worker.pending for worker in workers):
                return
            for worker in _wait_for_any(workers):
                results.update(worker.receive())
                if worker.is_lost:
                    waiting.extendleft(reversed(worker.replace()))
            while due in results:
                yield results.pop(due)
                due += 1
    finally:
        for worker in workers:
            worker.stop()


class _Worker(Generic[Item, Result]):
    def __init__(self, make_function: Callable[[], Callable[[Item], Result | None]], patience_s: float) -> None:
        self._make_function, self._patience_s = make_function, patience_s
        self.pending: deque[tuple[int, Item]] = deque()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._make_function), daemon=True)
        self._process.start()
        theirs.close()
        self.is_lost = self._is_ready = False
        self._since = time.monotonic()

    def fill(self, waiting: deque[tuple[int, Item]], source: Iterator[tuple[int, Item]], limit: int) -> None:
        """Send items while the window has room: those of lost workers first, then new ones below index `limit`."""
        if not self.pending and self._is_ready:
            self._since = time.monotonic()
        while len(self.pending) < _WINDOW:
            if not waiting:
                following = next(source, None)
                if following is None:
                    return
                waiting.append(following)
            if waiting[0][0] >= limit:
                return
            self.pending.append(waiting.popleft())
            try:
                self.connection.send(self.pending[-1][1])
            except OSError:  # it has died, which receive() will see
                return

    @property
    def is_late(self) -> bool:
        patience_s = self._patience_s if self._is_ready else _START_PATIENCE_S
        return time.monotonic() - self._since > patience_s

    def receive(self) -> dict[int, Result | None]:
        """The oldest item's answer by its index; None, and `is_lost`, if it will never come; {} for "ready"."""
        try:
            if not self.connection.poll():
                raise EOFError
            kind, answer = self.connection.recv()
        except (EOFError, OSError) as error:
            if not self._is_ready:
                raise RuntimeError("a worker process ended before its first item; see what it wrote") from error
            self.is_lost = True
            return {self.pending.popleft()[0]: None}
        self._since = time.monotonic()
        if kind == "raised":
            raise RuntimeError(f"a worker failed:\n{answer}")
        if kind == "ready":
            self._is_ready = True
            return {}
        return {self.pending.popleft()[0]: answer}

    def replace(self) -> list[tuple[int, Item]]:
        """Start a new process; returns what the old one leaves undone."""
        left = list(self.pending)
        self.pending.clear()
        self.stop()
        self._start()
        return left

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _wait_for_any(workers: list[_Worker[Item, Result]]) -> list[_Worker[Item, Result]]:
    busy = [worker for worker in workers if worker.pending]
    while True:
        heard = wait([worker.connection for worker in busy], timeout=1.0)
        ready = [worker for worker in busy if worker.connection in heard or worker.is_late]
        if ready:
            return ready


def _serve(connection: Connection, make_function: Callable[[], Callable[[Item], Result | None]]) -> None:
    """The worker's life: "ready", then an answer to each item until the pipe closes."""

    def send(kind: Literal["ready", "answer", "raised"], value: object) -> None:
        connection.send((kind, value))

    try:
        function = make_function()
        send("ready", None)
        while True:
            try:
                item = connection.recv()
            except EOFError:  # the parent has gone
                return
            send("answer", function(item))
    except Exception:
        send("raised", traceback.format_exc())
        raise
