"""The sentences of a text that is there, or of one that arrives, as they are asked for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from queue import SimpleQueue

from vivavoce.errors import StageFailed, VivavoceError
from vivavoce.service.text.rules import is_speakable
from vivavoce.service.text.sentences import Sentence, located_sentences

log = logging.getLogger(__name__)


async def sentences_of(text: str) -> AsyncIterator[Sentence]:
    """All that can be spoken of a whole text."""
    for sentence in located_sentences([text]):
        if is_speakable(sentence.text):
            yield sentence


class ArrivingText:
    """Pieces in, sentences out: read in a thread of its own, which waits for what has not come yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._sentences: asyncio.Queue[Sentence | VivavoceError | None] = asyncio.Queue()
        threading.Thread(target=self._read, name="vivavoce-bridge-text", daemon=True).start()

    def push(self, text: str | None) -> None:
        """The next piece; None: there is no more."""
        self._pieces.put(text)

    def close(self) -> None:
        """Nobody asks any more: the thread ends, and so does the iteration."""
        self._pieces.put(None)
        self._sentences.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Sentence]:
        """Each sentence as soon as it is known to be complete; raises what is wrong with the text."""
        while (found := await self._sentences.get()) is not None:
            if isinstance(found, VivavoceError):
                raise found
            yield found

    def _read(self) -> None:
        end: VivavoceError | None = None
        try:
            for sentence in located_sentences(self._come()):
                if is_speakable(sentence.text):
                    self._tell(sentence)
        except VivavoceError as error:
            end = error
        except Exception:  # whatever it is, who listens must not wait for text that nobody brings
            log.exception("a text that arrived could not be read")
            end = StageFailed("text: an internal error, which was logged; send the text again")
        self._tell(end)

    def _come(self) -> Iterator[str]:
        while (piece := self._pieces.get()) is not None:
            yield piece

    def _tell(self, found: Sentence | VivavoceError | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._sentences.put_nowait, found)
