"""One stream of speech for a text that is longer than a backend takes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace

import regex

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import InvalidText, Overloaded
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeechEvent, SpeechRequest, Verdict, joined, moved
from vivavoce.frontend.speech_backend import SpeechStream
from vivavoce_textnorm import MAX_TEXT_CHARS, is_speakable

NEAR_CHARS = 600
"""The next part is requested when a segment ends this many characters or fewer before the end of its part, so that the
next audio follows without a gap."""
_ENDS = (
    regex.compile(r"\n\s*\n"),
    regex.compile(r"[\p{Sentence_Terminal}…][\"'*_\p{Pe}\p{Pf}]*\s|\n"),
    regex.compile(r"\s"),
)
"""Places to cut, the best ones first: after a paragraph, a sentence, a word."""


def check_length(length: int, most: int) -> None:
    """Raise InvalidText if a text has more characters than the settings allow."""
    if length > most:
        raise InvalidText(
            f"text: {length} characters are more than the limit of {most}; split it into several requests"
        )


def parts_of(text: str, most: int = MAX_TEXT_CHARS) -> list[tuple[int, int]]:
    """Return the bounds of a text's parts. A part has at most `most` characters, and all but the last at least half.

    Parts without words are left out; the list is empty for a text without words.
    """
    bounds, begin = list[tuple[int, int]](), 0
    while begin < len(text):
        end = begin + most
        if end < len(text):
            last = (
                max((one.end() for one in sign.finditer(text, begin + most // 2, end)), default=0) for sign in _ENDS
            )
            end = next((one for one in last if one), end)
        end = min(end, len(text))
        if is_speakable(text[begin:end]):  # False for a part without words, such as a long line of dashes
            bounds.append((begin, end))
        begin = end
    return bounds


class LongStream:
    """A `SpeechStream` over all parts of a text; each part is a request of its own."""

    def __init__(
        self,
        first: SpeechStream,
        parts: Sequence[tuple[int, SpeechRequest]],
        speak: Callable[[SpeechRequest], Awaitable[SpeechStream]],
    ) -> None:
        """parts: each part's position in the text, and its request. first: the stream of the first part."""
        self._current, self._parts, self._speak = first, parts, speak
        self._next: asyncio.Future[SpeechStream] | None = None
        self.sample_rate = first.sample_rate
        self.verdict: Verdict | None = None

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        verdicts, given, begins_s = list[Verdict](), 0, 0.0
        for place, (offset, request) in enumerate(self._parts):
            if place:
                self._current = await self._asked(place)
                self._next = None
            segments, seconds = 0, 0.0
            async for event in self._current:
                if isinstance(event, SegmentText):
                    segments = max(segments, event.place + 1)
                    is_near = event.end > len(request.text or "") - NEAR_CHARS
                    if is_near and self._next is None and place + 1 < len(self._parts):
                        self._next = asyncio.ensure_future(self._ask(self._parts[place + 1][1]))
                    yield SegmentText(given + event.place, offset + event.start, offset + event.end)
                elif isinstance(event, AudioChunk):
                    words = tuple(moved(one, offset, begins_s) for one in event.words)
                    seconds += event.duration_s
                    yield replace(event, segment=given + event.segment, words=words)
            given, begins_s = given + segments, begins_s + seconds
            if self._current.verdict is None or self.verdict is not None:
                return
            verdicts.append(self._current.verdict)
        self.verdict = _together(verdicts)

    async def _asked(self, place: int) -> SpeechStream:
        return await (self._next or self._ask(self._parts[place][1]))

    async def _ask(self, request: SpeechRequest) -> SpeechStream:
        """Request a part; wait for room, because the text was accepted as a whole."""
        while True:
            try:
                return await self._speak(request)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s)

    async def push(self, text: str) -> None: ...

    async def end(self) -> None: ...

    def cancel(self) -> None:
        self._current.cancel()
        coming = self._next
        if coming is not None and not coming.cancel() and not coming.cancelled() and coming.exception() is None:
            coming.result().cancel()
        self.verdict = self.verdict or Verdict(FinishReason.CANCELLED)


async def speak_long(
    request: SpeechRequest, speak: Callable[[SpeechRequest], Awaitable[SpeechStream]], most: int = MAX_TEXT_CHARS
) -> SpeechStream:
    """Speak a text of any length. The errors of its first part are raised here, those of later parts by the stream."""
    text = request.text or ""
    if len(text) <= most:
        return await speak(request)
    parts = [(begin, replace(request, text=text[begin:end])) for begin, end in parts_of(text, most)]
    if not parts:
        raise InvalidText("text: it has no words; write at least one", nothing_to_say=True)
    return LongStream(await speak(parts[0][1]), parts, speak)


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    bad = next((one for one in verdicts if one.reason not in (FinishReason.STOP, FinishReason.LENGTH)), None)
    cut = any(one.reason is FinishReason.LENGTH for one in verdicts)
    return replace(
        bad or verdicts[-1],
        reason=bad.reason if bad else FinishReason.LENGTH if cut else FinishReason.STOP,
        audio_s=sum(one.audio_s for one in verdicts),
        segments_spoken=sum(one.segments_spoken for one in verdicts),
        segments_given=sum(one.segments_given for one in verdicts),
        text_tokens=None
        if any(one.text_tokens is None for one in verdicts)
        else sum(one.text_tokens or 0 for one in verdicts),
        speech_tokens=None
        if any(one.speech_tokens is None for one in verdicts)
        else sum(one.speech_tokens or 0 for one in verdicts),
        warnings=tuple(dict.fromkeys(line for one in verdicts for line in one.warnings)),
        delivery=joined([one.delivery for one in verdicts if one.delivery is not None]),
    )
