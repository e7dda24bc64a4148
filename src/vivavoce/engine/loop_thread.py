"""The thread that an engine's loop runs in: begun at the first request, over when the engine is closed or forgotten."""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Protocol

from vivavoce.engine.collector import LivingSetAside
from vivavoce.engine.messages import Stop
from vivavoce.errors import EngineStopped


class RunningLoop(Protocol):
    """What runs in the thread."""

    ended: bool
    """It takes nothing any more."""

    def run(self) -> None:
        """Work until told to stop."""
        ...

    def post(self, message: Stop, /) -> None:
        """Leave a message for it; from any thread."""
        ...


class LoopThread:
    """Belongs to one engine. It holds the loop, not the engine: an engine that nobody uses any more stops by itself.

    Args:
        engine: whose end ends the loop.
        loop: what runs.
        name: of the thread.
    """

    def __init__(self, engine: object, loop: RunningLoop, name: str) -> None:
        self._loop, self._name = loop, name
        self._starting = threading.Lock()
        self._stopped = False
        self.thread: threading.Thread | None = None
        """None before the start."""
        self.set_aside = LivingSetAside()
        """Ends with the engine."""
        weakref.finalize(engine, _leave, loop, self.set_aside)

    @property
    def healthy(self) -> bool:
        """The loop takes messages, or will once it is started."""
        return not (self._stopped or self._loop.ended)

    def start(self) -> None:
        """Begin; again: nothing happens."""
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self._loop.run, name=self._name, daemon=True)
                self.thread.start()
                atexit.register(_stop_at_exit, weakref.ref(self.thread), weakref.ref(self._loop))

    def close(self, *, drain: bool, timeout_s: float | None) -> None:
        """Stop: what was accepted is finished (`drain`, for `timeout_s` at most), or ends with EngineStopped."""
        self._stopped = True
        self._loop.post(Stop(drain))
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
            if self.thread.is_alive():
                self._loop.post(Stop(drain=False))
                self.thread.join()
        self.set_aside.end()


def stopped() -> EngineStopped:
    """What is said to whoever comes after the end."""
    return EngineStopped("engine: it has stopped; start it again")


def _leave(loop: RunningLoop, set_aside: LivingSetAside) -> None:
    """What becomes of an engine that nobody uses any more, and nobody closed."""
    loop.post(Stop(drain=False))
    set_aside.end()


def _stop_at_exit(thread: weakref.ref[threading.Thread], loop: weakref.ref[RunningLoop]) -> None:
    """A thread that still computes while the interpreter goes away would crash it, whether its engine lives or not."""
    running, its_loop = thread(), loop()
    if running is not None and its_loop is not None:
        its_loop.post(Stop(drain=False))
        running.join()
