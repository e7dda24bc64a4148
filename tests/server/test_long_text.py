"""Texts that are longer than a backend takes at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.server.fake_backend import FakeBackend, FakeStream, Worded
from vivavoce.engine.request import AudioChunk
from vivavoce.errors import InvalidText, Overloaded
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeechRequest
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.long_text import parts_of, speak_long
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import RequestsSection

SENTENCES = [f"Sentence number {number} is here. " for number in range(40)]
TEXT = "".join(SENTENCES)


@dataclass
class Bounded(FakeBackend):
    """Takes texts of up to 200 characters; `busy`: refusals that come first."""

    busy: list[Overloaded] = field(default_factory=list)

    async def speak(self, order: SpeechRequest) -> FakeStream:
        assert len(order.text or "") <= 200
        if self.orders and self.busy:
            raise self.busy.pop()
        return await super().speak(order)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Nothing to cut.", ["Nothing to cut."]),
        ("One paragraph.\n\nAnother. One", ["One paragraph.\n\n", "Another. One"]),
        ("A sentence here. Another one", ["A sentence here. ", "Another one"]),
        ("only words are in here, and more", ["only words are in ", "here, and more"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("-" * 30 + "end", ["-" * 10 + "end"]),
        ("-" * 60, []),
    ],
)
def test_parts_end_where_the_text_allows_it(text: str, parts: list[str]) -> None:
    assert [text[begin:end] for begin, end in parts_of(text, 20)] == parts


async def test_a_long_text_is_one_stream() -> None:
    speaker = Bounded(busy=[Overloaded("server: busy", 0.001)])
    stream = await speak_long(SpeechRequest(TEXT, "anna"), speaker.speak, 200)
    texts, audio = list[SegmentText](), 0
    async for event in stream:
        if isinstance(event, SegmentText):
            texts.append(event)
        elif isinstance(event, AudioChunk):
            assert event.segment == len(texts) - 1
            audio += len(event.samples)
    assert [TEXT[one.start : one.end] for one in texts] == SENTENCES
    assert [one.place for one in texts] == list(range(40))
    assert audio == 240 * len(TEXT)
    assert len(speaker.orders) > 5
    verdict = stream.verdict
    assert verdict is not None
    assert (verdict.reason, verdict.segments_given, verdict.segments_spoken) == (FinishReason.STOP, 40, 40)


async def test_words_of_a_long_text_are_told_by_their_places_in_all_of_it() -> None:
    stream = await speak_long(SpeechRequest(TEXT, "anna", word_times=True), Worded().speak, 200)
    words = [word for event in [one async for one in stream] if isinstance(event, AudioChunk) for word in event.words]
    assert [TEXT[one.start_character : one.end_character] for one in words] == TEXT.split()
    assert [one.text for one in words] == TEXT.split()
    assert [one.start_s for one in words] == pytest.approx([one.start_character / 100 for one in words])
    assert [one.end_s for one in words] == pytest.approx([one.end_character / 100 for one in words])
    assert stream.verdict is not None
    delivery = stream.verdict.delivery
    assert delivery is not None
    assert (delivery.spoken, set(delivery.missing), len(delivery.missing) > 5) == (0.5, {"there,"}, True)


async def test_to_cancel_ends_the_part_that_is_spoken_and_the_next_one() -> None:
    speaker = Bounded()
    stream = await speak_long(SpeechRequest(TEXT, "anna"), speaker.speak, 200)
    async for event in stream:
        if isinstance(event, AudioChunk):
            await asyncio.sleep(0)  # the next part is asked for: the texts are short
            stream.cancel()
    assert stream.verdict is not None
    assert stream.verdict.reason is FinishReason.CANCELLED
    assert all(one.cancelled.is_set() for one in speaker.streams)


async def test_the_limit_is_a_setting() -> None:
    dispatcher = RequestDispatcher(FakeBackend(), rules=RequestsSection(max_text_chars=1_000))
    with pytest.raises(InvalidText, match="text: 1001 characters are more than the limit of 1000"):
        await dispatcher.speak(ANONYMOUS, SpeechRequest("a" * 1_001), protocol="openai", request_id="r")
