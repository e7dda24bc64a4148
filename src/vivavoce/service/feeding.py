"""Texts that arrive piece by piece, and the thread that brings them to the engine as it asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from vivavoce.engine.handle import ArrivingText
from vivavoce.engine.request import SynthesisRequest
from vivavoce.errors import InvalidText

Parts = Iterator["tuple[int, ...] | SynthesisRequest"]
"""Text ids, or whole segments."""


def feed(text: ArrivingText, parts: Parts) -> None:
    """Bring the parts, each when speech waits for it, in a thread of its own.

    The parts' source may block; the request may end meanwhile, and the thread then ends with the next part.
    """
    threading.Thread(target=_feed, args=(text, parts), name="vivavoce-text", daemon=True).start()


def _feed(text: ArrivingText, parts: Parts) -> None:
    try:
        while text.wait_until_wanted():
            part = next(parts, None)
            if part is None:
                text.close()
                return
            text.push(part)
    except BaseException as error:
        # Whatever ends this thread, the listener must not wait for text that nobody brings.
        stopped = InvalidText(f"text: its source stopped with {type(error).__name__}; send the text again")
        text.fail(error if isinstance(error, Exception) else stopped)
