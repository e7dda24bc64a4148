"""A text that arrives piece by piece: read in a thread of its own, which waits for what has not come yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Protocol

from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.request import SynthesisRequest
from vivavoce.service.host.parts import Part, sentence_parts
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.text.rules import is_speakable
from vivavoce.service.text.sentences import located_sentences
from vivavoce.service.voices.voice import Voice


class Taker(Protocol):
    """Who is told, in the event loop, what becomes of the text."""

    def offer(self, part: Part) -> None:
        """The next segment."""

    def offer_words(self, request: SynthesisRequest, end: int) -> None:
        """The next words of a text that is one segment; end: its characters so far."""

    def complete(self) -> None:
        """There is no more."""

    def fail(self, error: Exception) -> None:
        """The rest cannot be spoken."""


class Arrivals:
    """Pieces in, segments or words out, as the model's card says."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        voice: Voice,
        options: SpeakOptions,
        taker: Taker,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._synthesizer, self._voice, self._options = synthesizer, voice, options
        self._taker, self._loop = taker, loop
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._closed = False
        self._length = 0
        """Characters of the pieces that were read."""
        threading.Thread(target=self._read, name="vivavoce-text", daemon=True).start()

    def push(self, text: str | None) -> None:
        """The next piece; None: there is no more."""
        self._pieces.put(text)

    def close(self) -> None:
        """Nobody listens any more."""
        self._closed = True
        self._pieces.put(None)

    def _read(self) -> None:
        try:
            if self._synthesizer.card.text_stream is TextStream.SENTENCES:
                self._read_sentences()
            else:
                self._read_words()
        except Exception as error:
            self._tell(self._taker.fail, error)
        else:
            self._tell(self._taker.complete)

    def _read_sentences(self) -> None:
        place = 0
        for sentence in located_sentences(self._come()):
            if self._closed:
                return
            if not is_speakable(sentence.text):
                continue  # a line of dashes, say: the text around it is spoken
            parts = sentence_parts(self._synthesizer, sentence.text, sentence.start, self._voice, self._options, place)
            place += len(parts)
            for part in parts:
                self._tell(self._taker.offer, part)

    def _read_words(self) -> None:
        for request in self._synthesizer.word_requests(self._come(), self._voice, self._options):
            self._tell(self._taker.offer_words, request, self._length)

    def _come(self) -> Iterator[str]:
        while (piece := self._pieces.get()) is not None:
            self._length += len(piece)
            yield piece

    def _tell(self, what: object, *arguments: object) -> None:
        if self._closed:
            return
        try:
            self._loop.call_soon_threadsafe(what, *arguments)  # type: ignore[arg-type]
        except RuntimeError:  # the process ends
            self._closed = True
