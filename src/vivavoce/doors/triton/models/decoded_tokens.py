"""Speech tokens of one segment between the thread that fetches them and the one that makes audio of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class DecodedTokens:
    """Grows until it ends; one thread writes, one reads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens: list[int] = []
        self._ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """More have come."""
        with self._changed:
            self._tokens += tokens
            self._changed.notify_all()

    def end(self, error: Exception | None = None) -> None:
        """No more will come, because all are there or because of `error`."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def wait(self, count: int | None) -> tuple[int, ...]:
        """The first `count` tokens once they are there, all of them (fewer than `count`) at the end; None: all.

        Raises what ended them early, whether or not there are enough.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (count is not None and len(self._tokens) >= count))
            if self._error is not None:
                raise self._error
            return tuple(self._tokens[:count])
