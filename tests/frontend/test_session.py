"""Whole speech, and one streamed request: chunks and marks, a text that arrives, a listener that is slow or leaves."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.engine.engine_helpers import running
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.handle import Handle, Outbox, RequestResult, RequestTimings
from vivavoce.engine.request import AudioChunk, EngineRequest, InputMode, SamplingParams, SegmentRequest
from vivavoce.errors import InvalidRequest, InvalidText, Overloaded, RequestCancelled
from vivavoce.frontend.front_end import FrontEnd, PlannedSegment, load_front_end
from vivavoce.frontend.session import AHEAD, RequestSession
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeakOptions
from vivavoce.frontend.text_threads import end_threads
from vivavoce.frontend.voices.voice import Voice

RATE = 24_000
SHORT = SpeakOptions(sampling=SamplingParams(max_ratio=2.0))
TEXT = "It is 5 past 9, and the ferry has left without its captain. " * 3
PIECES = ["Hello ", "", "there, how ", "are you", "?"]
BAD = InvalidText("text: letters that the model lacks")
LATE_S = 20.0


@pytest.fixture(scope="module")
def voice():
    return Voice(torch.randn(192, generator=torch.Generator().manual_seed(0)), "")


@pytest.fixture(scope="module")
def by_sentences(synthesizer, babble):
    """The same engine behind a card that wants arriving text sentence by sentence."""
    front_end = load_front_end(babble, synthesizer.front_end.config)
    card = replace(front_end.card, text_stream=TextStream.SENTENCES)
    return Vivavoce(synthesizer.engine, replace(front_end, card=card))


def test_a_system_prompt_is_in_no_mark_and_counts_for_nothing(models_v3, babble_v3, voice):
    """One in the text of CosyVoice3, whole and in pieces, is what the same instruction is."""
    prompt = "Softly.<|endofprompt|>"
    with running(models_v3) as engine:
        third = Vivavoce(engine, load_front_end(babble_v3, models_v3.config))
        told, plain = (
            third.speak(prompt + TEXT, voice, options=SHORT),
            third.speak(TEXT, voice, options=replace(SHORT, instruct=prompt)),
        )
        spans = [(one.start_character - len(prompt), one.end_character - len(prompt), one.text) for one in told.marks]
        assert spans == [(one.start_character, one.end_character, one.text) for one in plain.marks]
        assert abs(told.samples - plain.samples).max() < 1e-2
        tokens, text = [], third.front_end.text.encode("Hello there, how are you?")
        for pieces in ([prompt, *PIECES], [prompt + PIECES[0], *PIECES[1:]]):
            session = third.stream(pieces, voice, options=SHORT)
            tokens.append(heard(session)[0])
            assert session.verdict().text_tokens == len(text)
            (mark,) = session.marks
            assert mark.text == "".join(PIECES)
        assert tokens[0] == tokens[1]


def heard(session):
    """The speech tokens of each segment, and the chunks."""
    chunks = list(session)
    return session.handle.outcome.tokens, chunks


@pytest.mark.slow
def test_a_streamed_long_text_is_the_whole_in_chunks(synthesizer, voice):
    """Of two tokens for each of the text's, at least and at most, all segments are cut."""
    session = synthesizer.stream(TEXT, voice, options=SHORT)
    assert session.marks == ()
    chunks, seen = [], []
    for chunk in session:
        chunks.append(chunk)
        seen.append(session.marks)
    whole, marks = synthesizer.speak(TEXT, voice, options=SHORT), session.marks
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert sum(len(chunk.samples) for chunk in chunks) == len(whole.samples)
    assert marks == whole.marks
    assert all(mark.cut for mark in marks)
    assert (marks[0].start_s, marks[-1].end_s) == (0.0, len(whole.samples) / RATE)
    assert all(one.end_s == other.start_s for one, other in pairwise(marks))
    assert "".join(mark.text for mark in marks) == TEXT
    assert seen[0] == (replace(marks[0], end_s=seen[0][0].end_s, cut=False),)
    assert {len(so_far) for so_far in seen} == set(range(1, len(marks) + 1))
    verdict = session.verdict()
    assert (verdict.reason, verdict.segments_given) == (FinishReason.LENGTH, len(marks))
    assert verdict.speech_tokens == 2 * verdict.text_tokens


def test_streams_are_of_low_latency(synthesizer, voice):
    options = SpeakOptions(sampling=SamplingParams(exact_tokens=60))
    by_default, asked, official = (
        [len(chunk.samples) for chunk in synthesizer.stream("Hello.", voice, options=options, policy=policy)]
        for policy in (None, ChunkPolicy.low_latency(), ChunkPolicy.official())
    )
    assert by_default == asked != official


def test_streams_of_cosyvoice_1_are_official(front):
    front.config = SimpleNamespace(generation=Generation.V1)
    assert RequestSession(Engine(), front).policy == ChunkPolicy.overlapping()
    with pytest.raises(InvalidRequest, match="CosyVoice 1 has no equal; use official"):
        RequestSession(Engine(), front, ChunkPolicy.equal())


def test_words_may_arrive_in_pieces(synthesizer, voice):
    session = synthesizer.stream(iter(PIECES), voice, options=SHORT)
    tokens, chunks = heard(session)
    joined, _ = heard(synthesizer.stream(iter(["".join(PIECES)]), voice, options=SHORT))
    assert len(tokens) == 1, "one sequence, in which text and speech take turns"
    assert tokens == joined
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [mark.text for mark in session.marks] == ["".join(PIECES)]


def test_sentences_may_arrive_in_pieces(by_sentences, voice):
    sentences = ["It is 11:42 in Boston now.", "The evening train leaves at 6."]
    pieces = ["It is 11:", "42 in Boston now. The eve", "ning train leaves at", " 6.\n", "* * *\n"]
    session = by_sentences.stream(iter(pieces), voice, options=replace(SHORT, seed=4))
    tokens, _ = heard(session)
    alone = [
        heard(by_sentences.stream(one, voice, options=replace(SHORT, seed=4 + n)))[0][0]
        for n, one in enumerate(sentences)
    ]
    assert list(tokens) == alone
    assert [mark.text for mark in session.marks] == sentences


def test_a_stream_ends_with_a_final_chunk_though_its_text_ends_later(by_sentences, voice):
    """What was heard last may have been sent before it was known that no more text would come."""
    listened = threading.Event()

    def pieces():
        yield "This is the only sentence. "
        assert listened.wait(50)

    stream = by_sentences.stream(pieces(), voice, options=SHORT)
    whole = by_sentences.speak("This is the only sentence.", voice, options=SHORT)
    played, chunks = 0, []
    while played < len(whole.samples):
        chunks.append(next(stream))
        played += len(chunks[-1].samples)
    listened.set()
    last = list(stream)
    assert not any(chunk.final for chunk in chunks)
    assert [(len(chunk.samples), chunk.index, chunk.final) for chunk in last] == [(0, len(chunks), True)]


def test_what_cannot_be_spoken_is_refused_before_it_starts_or_when_it_comes(synthesizer, voice):
    for text in ("", iter(["", ""]), iter(["Привет"]), 5, b"bytes"):
        with pytest.raises(InvalidText):
            synthesizer.stream(text, voice)
    with pytest.raises(InvalidText):
        list(synthesizer.stream(iter(["Hello", " there", "Привет"]), voice, options=SHORT))


class Engine:
    """Takes requests; speaks only what a test puts into its outbox."""

    def __init__(self):
        self.requests: list[EngineRequest] = []
        self.pushed = []
        self.outbox = Outbox()

    def submit(self, request):
        self.requests.append(request)
        return Handle(self.outbox, cancel=lambda: None, push=self.pushed.append)


class FrontEndOf:
    """Plans so many segments of a character each; the pieces of an arriving text are segments, or errors."""

    arrival = InputMode.SEGMENTS
    config = SimpleNamespace(rates=SimpleNamespace(sample_rate=RATE), generation=Generation.V2)
    card = SimpleNamespace(languages=("en",), guarded=False)
    resolved = FrontEnd.resolved

    def __init__(self, conditioning):
        self.conditioning = conditioning

    def plan(self, text, voice, options, left, silent):
        for n in range(len(text)):
            if left():
                raise RequestCancelled("given up")
            self.read = n + 1
            yield PlannedSegment(SegmentRequest(self.conditioning, (1, 2)), n, n + 1)

    def plan_arriving(self, pieces, voice, options, left, silent):
        self.left = left
        for place, piece in enumerate(pieces):
            if isinstance(piece, Exception):
                raise piece
            yield PlannedSegment(SegmentRequest(self.conditioning, (1, 2)), place, place + 1)


@pytest.fixture
def front(conditioning):
    return FrontEndOf(conditioning)


def wait_for(condition):
    late = time.monotonic() + LATE_S
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.01)


def test_the_engine_gets_what_its_listener_is_near(front, voice):
    engine = Engine()
    session = RequestSession(engine, front)
    session.start("x" * (AHEAD + 3), voice)
    assert (len(engine.requests[0].segments), engine.requests[0].arrival) == (AHEAD + 1, InputMode.SEGMENTS)
    session.on_heard(0)
    assert engine.pushed == []
    session.on_heard(1)
    wait_for(lambda: len(engine.pushed) == 1)
    session.on_heard(3)
    wait_for(lambda: len(engine.pushed) == 3)  # and the end
    assert engine.pushed[-1] is None


def test_a_short_text_is_given_whole(front, voice):
    engine = Engine()
    RequestSession(engine, front).start("x" * (AHEAD + 1), voice)
    assert (len(engine.requests[0].segments), engine.requests[0].arrival) == (AHEAD + 1, InputMode.WHOLE)


def test_a_long_text_is_read_on_while_it_is_heard(front, voice):
    """Its first segment does not wait for the next one, and what nobody comes near is not read."""
    engine = Engine()
    session = RequestSession(engine, front)
    session.start("x" * 1_000, voice)
    assert (len(engine.requests[0].segments), engine.requests[0].arrival) == (1, InputMode.SEGMENTS)
    wait_for(lambda: len(engine.pushed) == AHEAD)
    assert front.read == AHEAD + 1
    session.on_heard(5)
    wait_for(lambda: len(engine.pushed) == AHEAD + 5)
    assert (front.read, session.verdict().segments_given) == (AHEAD + 6, AHEAD + 6)


def test_a_listener_who_leaves_ends_the_reading(front, voice):
    """Before the engine has anything of the text, too."""
    engine, session = Engine(), None

    def plan(text, voice, options, left, silent):
        assert not left()
        session.close()
        assert left()
        raise RequestCancelled("given up")
        yield

    front.plan = plan
    session = RequestSession(engine, front)
    with pytest.raises(RequestCancelled):
        session.start("x" * 1_000, voice)
    assert engine.requests == []


def test_no_thread_brings_a_text_when_the_interpreter_ends(front, voice):
    session = RequestSession(Engine(), front)
    session.start(iter(["x"] * (AHEAD + 3)), voice)
    assert any(thread.name == "vivavoce-text" for thread in threading.enumerate())
    end_threads()
    assert not any(thread.name == "vivavoce-text" for thread in threading.enumerate())
    session.close()


def test_the_reading_of_a_text_that_arrives_ends_with_its_listener(front, voice):
    session = RequestSession(Engine(), front)
    session.start(iter(["x"]), voice)
    assert not front.left()
    session.close()
    assert front.left()


def test_what_came_before_a_bad_piece_is_spoken_to_its_end(front, voice):
    engine = Engine()
    session = RequestSession(engine, front)
    session.start(iter(["x"] * (AHEAD + 3) + [BAD]), voice)
    wait_for(lambda: len(engine.pushed) == AHEAD)  # the first went with the request, two wait for the listener
    session.on_heard(2)
    wait_for(lambda: len(engine.pushed) == AHEAD + 2)
    session.on_heard(3)
    wait_for(lambda: BAD in engine.pushed)
    assert len(engine.pushed) == AHEAD + 3


def test_a_bad_first_piece_or_a_listener_who_has_left_reaches_no_engine(front, voice):
    engine = Engine()
    with pytest.raises(InvalidText, match="letters"):
        RequestSession(engine, front).start(iter([BAD]), voice)
    session = RequestSession(engine, front)
    session.close()
    with pytest.raises(RequestCancelled):
        session.start(iter(["x"]), voice)
    assert engine.requests == []


def test_a_session_that_is_let_go_of_ends_its_thread(front, voice):
    before = threading.active_count()
    session = RequestSession(Engine(), front)
    session.start(iter(["x"] * (AHEAD + 3)), voice)
    assert threading.active_count() == before + 1
    del session
    wait_for(lambda: threading.active_count() == before)


async def test_events_announce_segments_and_audio_comes_before_a_failure(front, voice):
    engine = Engine()
    session = RequestSession(engine, front)
    session.start("x", voice)
    engine.outbox.put(AudioChunk(np.ones(3, np.float32), RATE))
    engine.outbox.end(RequestResult(Overloaded("engine: full"), (), RequestTimings()))
    events = session.events()
    assert await anext(events) == SegmentText(0, 0, 1)
    assert isinstance(await anext(events), AudioChunk)
    with pytest.raises(Overloaded):
        await anext(events)


def test_long_text_is_split_spoken_together_and_joined(synthesizer, voice):
    options = replace(SHORT, seed=5)
    requests = synthesizer.front_end.requests(TEXT, voice, options)
    speech = synthesizer.speak(TEXT, voice, options=options)
    alone = [synthesizer.engine.submit(EngineRequest((request,))).result().samples for request in requests]
    assert len(alone) > 1
    assert len(speech.samples) == sum(map(len, alone))
    np.testing.assert_allclose(speech.samples, np.concatenate(alone), atol=5e-2)
    assert [round((mark.end_s - mark.start_s) * 24_000) for mark in speech.marks] == [len(one) for one in alone]
    assert "".join(mark.text for mark in speech.marks) == TEXT


def test_timings_add_up(synthesizer, voice):
    speech = synthesizer.speak("Hello.", voice, options=SHORT)
    spent = speech.timings
    assert 0 < spent.text_s + spent.lm_s + spent.flow_s + spent.vocoder_s <= spent.total_s
    assert min(spent.lm_s, spent.flow_s, spent.vocoder_s) > 0
    assert speech.rtf == spent.total_s / speech.duration_s
    assert speech.duration_s == len(speech.samples) / 24_000


def test_a_full_engine_refuses_before_the_text_is_read(synthesizer, voice, monkeypatch):
    def refuse(streaming):
        raise Overloaded("slots: all are taken", 2.0)

    monkeypatch.setattr(synthesizer.engine, "check_load", refuse)
    monkeypatch.setattr(synthesizer.front_end.text, "located", pytest.fail)
    for use in (synthesizer.speak, synthesizer.stream):
        with pytest.raises(Overloaded):
            use("Hello.", voice)
