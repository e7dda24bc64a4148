"""Python's garbage collector, kept from stopping streams.

A full collection visits every object of the process while no Python runs: 0.2 s for the 320,000 that torch and an
engine bring, again and again, and every stream waits. What lives once an engine is warm stays for as long as it serves,
so it is set aside (`gc.freeze`); collections then see what requests have left, and take next to no time.
"""

from __future__ import annotations

import gc
from threading import RLock

_lock = RLock()
"""Reentrant: a collection may end an engine that nobody uses any more, and so withdraw its wish."""
_wishes = 0


class LivingSetAside:
    """One engine's wish that collections pass over what lives now. They do until nobody wishes it any more."""

    def __init__(self) -> None:
        self._wished = False

    def begin(self) -> None:
        """Collect once more, and set aside what is left; again: what has come since, too."""
        global _wishes
        with _lock:
            gc.collect()
            gc.freeze()
            _wishes += not self._wished
            self._wished = True

    def end(self) -> None:
        """Nothing happens where it never began, or has ended."""
        global _wishes
        with _lock:
            _wishes -= self._wished
            if self._wished and not _wishes:
                gc.unfreeze()
            self._wished = False
