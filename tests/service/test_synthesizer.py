import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams, SpeechRequest
from vivavoce.errors import InvalidRequest, InvalidText, Overloaded
from vivavoce.service.front_end import load_front_end
from vivavoce.service.modes import END_OF_PROMPT
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.voices.voice import Voice

SHORT = SamplingParams(max_ratio=2.0)
LONG_TEXT = "This is a sentence of some length, and it goes on for a while. " * 3


@pytest.fixture(scope="module")
def voice():
    return Voice(torch.randn(192, generator=torch.Generator().manual_seed(0)), "")


@pytest.fixture(scope="module")
def by_sentences(synthesizer, babble):
    """The same engine behind a card that wants arriving text sentence by sentence."""
    front_end = load_front_end(babble, synthesizer.config)
    card = replace(front_end.card, text_stream=TextStream.SENTENCES)
    return Synthesizer(synthesizer.engine, replace(front_end, card=card))


def heard(stream):
    """The speech tokens of each segment, and the chunks."""
    chunks = list(stream)
    return stream.result().tokens, chunks


def test_long_text_is_split_spoken_together_and_joined(synthesizer, voice):
    options = SpeakOptions(sampling=SHORT, seed=5)
    requests = synthesizer.requests(LONG_TEXT, voice, options)
    assert len(requests) > 1
    assert [request.seed for request in requests] == list(range(5, 5 + len(requests)))
    speech = synthesizer.speak(LONG_TEXT, voice, options)
    alone = [synthesizer.engine.submit(SpeechRequest((request,))).result().samples for request in requests]
    assert len(speech.samples) == sum(map(len, alone))
    np.testing.assert_allclose(speech.samples, np.concatenate(alone), atol=5e-2)


def test_timings_add_up(synthesizer, voice):
    speech = synthesizer.speak("Hello.", voice, SpeakOptions(sampling=SHORT))
    spent = speech.timings
    parts = spent.text_s + spent.lm_s + spent.flow_s + spent.vocoder_s
    assert 0 < parts <= spent.total_s
    assert min(spent.lm_s, spent.flow_s, spent.vocoder_s) > 0
    assert speech.rtf == spent.total_s / speech.duration_s
    assert speech.duration_s == len(speech.samples) / 24_000


def test_a_streamed_long_text_ends_once(synthesizer, voice):
    options = SpeakOptions(sampling=SHORT)
    chunks = list(synthesizer.stream(LONG_TEXT, voice, options))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks].count(True) == 1
    assert chunks[-1].final
    whole = synthesizer.speak(LONG_TEXT, voice, options)
    assert sum(len(chunk.samples) for chunk in chunks) == len(whole.samples)


def test_streams_are_of_low_latency(synthesizer, voice):
    options = SpeakOptions(sampling=SamplingParams(exact_tokens=60))
    by_default, asked, official = (
        [len(chunk.samples) for chunk in synthesizer.stream("Hello.", voice, options, policy)]
        for policy in (None, ChunkPolicy.low_latency(), ChunkPolicy.official())
    )
    assert by_default == asked != official


def test_a_stream_refuses_before_it_starts(synthesizer, voice):
    with pytest.raises(InvalidText):
        synthesizer.stream("   ", voice)
    with pytest.raises(InvalidText):
        synthesizer.stream(iter(["", ""]), voice)


PIECES = ["Hello ", "", "there, how ", "are you", "?"]


def test_text_may_arrive_in_pieces(synthesizer, voice):
    options = SpeakOptions(sampling=SHORT)
    tokens, chunks = heard(synthesizer.stream(iter(PIECES), voice, options))
    joined, _ = heard(synthesizer.stream(iter(["".join(PIECES)]), voice, options))
    assert len(tokens) == 1, "one sequence, in which text and speech take turns"
    assert tokens == joined
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_sentences_may_arrive_in_pieces(by_sentences, voice):
    """Each is spoken like a text of its own, numbers read out; a line of marks is passed over."""
    sentences = ["It is 11:42 in Boston now.", "The evening train leaves at 6."]
    pieces = ["It is 11:", "42 in Boston now. The eve", "ning train leaves at", " 6.\n", "* * *\n"]
    options = SpeakOptions(sampling=SHORT, seed=4)
    tokens, chunks = heard(by_sentences.stream(iter(pieces), voice, options))
    alone = [
        heard(by_sentences.stream(sentence, voice, replace(options, seed=4 + place)))[0][0]
        for place, sentence in enumerate(sentences)
    ]
    assert list(tokens) == alone
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_stream_ends_with_a_final_chunk_though_its_text_ends_later(by_sentences, voice):
    """What was heard last may have been sent before anyone knew that no more text would come."""
    listened = threading.Event()

    def pieces():
        yield "This is the only sentence. "
        assert listened.wait(50)

    stream = iter(by_sentences.stream(pieces(), voice, SpeakOptions(sampling=SHORT)))
    whole = by_sentences.speak("This is the only sentence.", voice, SpeakOptions(sampling=SHORT))
    played, chunks = 0, []
    while played < len(whole.samples):
        chunks.append(next(stream))
        played += len(chunks[-1].samples)
    listened.set()
    last = list(stream)
    assert not any(chunk.final for chunk in chunks)
    assert [(len(chunk.samples), chunk.index, chunk.final) for chunk in last] == [(0, len(chunks), True)]


def test_an_instruction_ends_with_its_mark(synthesizer):
    mark = synthesizer.text.encode(END_OF_PROMPT)
    assert synthesizer.instruction("Speak slowly.")[-len(mark) :] == mark
    assert synthesizer.instruction("Speak slowly." + END_OF_PROMPT) == synthesizer.instruction("Speak slowly.")


def test_an_instruction_reaches_the_language_model(synthesizer, voice):
    (request,) = synthesizer.requests("Hello.", voice, SpeakOptions(instruct="Slowly."))
    assert request.conditioning.lm_prompt_text == synthesizer.instruction("Slowly.")


@pytest.mark.parametrize(("field", "value"), [("seed", -1), ("seed", 2**60), ("speed", 0.1)])
def test_options_outside_their_limits_are_refused(field, value):
    with pytest.raises(InvalidRequest, match=f"{field}: "):
        SpeakOptions(**{field: value})


@pytest.mark.parametrize("piece", ["Привет", "bell\x07", 5])
def test_pieces_are_checked_as_text_is(synthesizer, voice, piece):
    with pytest.raises(InvalidText):
        synthesizer.stream(iter([piece]), voice)
    with pytest.raises(InvalidText):
        synthesizer.stream(iter(["Hello", " there", piece]), voice, SpeakOptions(sampling=SHORT)).result()


@pytest.mark.parametrize(
    ("features", "word"),
    [
        ({"embedding": torch.zeros(64)}, "embedding"),
        ({"prompt_text": (5000,)}, "text id 5000"),
        ({"speech_tokens": torch.tensor([6561], dtype=torch.int32), "mel": torch.zeros(2, 80)}, "speech token 6561"),
        ({"speech_tokens": torch.tensor([1], dtype=torch.int32), "mel": torch.zeros(2, 100)}, "mel"),
        ({"speech_tokens": torch.tensor([1], dtype=torch.int32), "mel": torch.zeros(4000, 80)}, "mel"),
    ],
)
def test_a_voice_of_other_sizes_is_refused(synthesizer, features, word):
    foreign = Voice(**{"embedding": torch.zeros(192), "fingerprint": "", "name": "x", **features})
    for use in (synthesizer.speak, synthesizer.stream):
        with pytest.raises(InvalidRequest, match=f"'x' does not fit this model .*{word}"):
            use("Hello.", foreign)


def test_who_would_be_refused_is_refused_before_anything_is_done(synthesizer, voice, monkeypatch):
    def refuse(streaming):
        raise Overloaded("slots: all are taken", 2.0)

    monkeypatch.setattr(synthesizer.engine, "check_load", refuse)
    monkeypatch.setattr(synthesizer.text, "segments", pytest.fail)
    for use in (synthesizer.speak, synthesizer.stream):
        with pytest.raises(Overloaded):
            use("Hello.", voice)
