"""When each segment of a text is heard."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.service.chunk_stream import ChunkStream
from vivavoce.service.front_end import load_front_end
from vivavoce.service.marks import Mark, StreamMarks, marks_of
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.text.spans import TextSegment
from vivavoce.service.voices.voice import Voice

RATE = 24_000
SHORT = SpeakOptions(sampling=SamplingParams(max_ratio=2.0))
EXACT = SpeakOptions(sampling=SamplingParams(exact_tokens=10))
TEXT = "It is 5 past 9, and the ferry has left without its captain. " * 3


@pytest.fixture(scope="module")
def voice():
    return Voice(torch.randn(192, generator=torch.Generator().manual_seed(0)), "")


def stream(synthesizer, text, voice):
    """Its marks after each chunk and at the end, and the samples of all chunks."""
    marks = StreamMarks()
    chunks = ChunkStream(synthesizer.stream(text, voice, SHORT, marks=marks), marks, RATE)
    seen, count = [], 0
    for chunk in chunks:
        count += len(chunk.samples)
        seen.append(chunks.marks)
    return seen, chunks.marks, count


def check(marks, text, count):
    """They follow one another from the beginning of the audio to its end."""
    assert [mark.start_s for mark in marks] == [0.0, *(mark.end_s for mark in marks[:-1])]
    assert marks[-1].end_s == count / RATE
    assert all(text[mark.start_character : mark.end_character] == mark.text for mark in marks)
    assert all(before.end_character <= after.start_character for before, after in pairwise(marks))


def test_marks_are_sums_of_samples():
    segments = [TextSegment("one", "1, ", 0), TextSegment("two", "2", 3)]
    assert marks_of(segments, (240, 480), RATE, (False, True)) == (
        Mark("1, ", 0, 3, 0.0, 0.01),
        Mark("2", 3, 4, 0.01, 0.03, cut=True),
    )
    assert marks_of(segments, (240,), RATE) == (Mark("1, ", 0, 3, 0.0, 0.01),)
    assert marks_of((), (240,), RATE) == ()


def test_finished_speech_has_marks(synthesizer, voice):
    speech = synthesizer.speak(TEXT, voice, EXACT)
    assert [mark.text for mark in speech.marks] == [segment.text for segment in synthesizer.segments(TEXT)]
    assert len(speech.marks) > 1
    assert "".join(mark.text for mark in speech.marks) == TEXT
    check(speech.marks, TEXT, len(speech.samples))
    assert [mark.end_s - mark.start_s for mark in speech.marks] == pytest.approx([0.4] * len(speech.marks))
    assert not any(mark.cut for mark in speech.marks)


def test_a_streams_marks_are_those_of_the_whole(synthesizer, voice):
    """Of two tokens for each of the text's, at least and at most, all segments are cut."""
    seen, marks, count = stream(synthesizer, TEXT, voice)
    check(marks, TEXT, count)
    assert all(mark.cut for mark in marks)
    assert marks == synthesizer.speak(TEXT, voice, SHORT).marks
    assert seen[0] == (replace(marks[0], end_s=seen[0][0].end_s, cut=False),)
    assert {len(so_far) for so_far in seen} == set(range(1, len(marks) + 1))


@pytest.mark.parametrize("by", list(TextStream))
def test_text_that_arrives_has_marks(synthesizer, babble, voice, by):
    front_end = load_front_end(babble, synthesizer.config)
    speaking = Synthesizer(synthesizer.engine, replace(front_end, card=replace(front_end.card, text_stream=by)))
    pieces = [" It is 11:", "42 in Boston now. The eve", "ning train leaves at", " 6.\n", "* * *\n", "Good night!"]
    _, marks, count = stream(speaking, iter(pieces), voice)
    check(marks, "".join(pieces), count)
    sentences = ["It is 11:42 in Boston now.", "The evening train leaves at 6.", "* * *\nGood night!"]
    expected = sentences if by is TextStream.SENTENCES else ["".join(pieces)]
    assert [mark.text for mark in marks] == expected


@pytest.mark.parametrize("language", ["fr", "", "EN"])
def test_a_language_that_no_rules_read_is_refused(language):
    with pytest.raises(InvalidRequest, match=r"^language: .* is none of zh, en; choose one"):
        SpeakOptions(language=language)


def test_the_language_reaches_the_text(synthesizer, voice):
    chinese = SpeakOptions(language="zh")
    for use in (synthesizer.requests, synthesizer.speak, synthesizer.stream):
        with pytest.raises(InvalidRequest, match="language: the model does not know 'zh'"):
            use("Hello.", voice, chinese)
    told, asked = (
        [request.text for request in synthesizer.requests("It is 5.", voice, SpeakOptions(language=language))]
        for language in (None, "en")
    )
    assert told == asked
