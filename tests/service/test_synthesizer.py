import numpy as np
import pytest
import torch

from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.service.modes import END_OF_PROMPT
from vivavoce.service.synthesizer import SpeakOptions
from vivavoce.service.voices.voice import Voice

SHORT = SamplingParams(max_ratio=2.0)
LONG_TEXT = "This is a sentence of some length, and it goes on for a while. " * 3


@pytest.fixture(scope="module")
def voice():
    return Voice(torch.randn(192, generator=torch.Generator().manual_seed(0)), "")


def test_long_text_is_split_spoken_together_and_joined(synthesizer, voice):
    options = SpeakOptions(sampling=SHORT, seed=5)
    requests = synthesizer.requests(LONG_TEXT, voice, options)
    assert len(requests) > 1
    assert [request.seed for request in requests] == list(range(5, 5 + len(requests)))
    speech = synthesizer.speak(LONG_TEXT, voice, options)
    alone = [synthesizer.pipeline.run([request]).utterances[0].samples for request in requests]
    assert len(speech.samples) == sum(map(len, alone))
    np.testing.assert_allclose(speech.samples, np.concatenate(alone), atol=5e-2)


def test_timings_add_up(synthesizer, voice):
    speech = synthesizer.speak("Hello.", voice, SpeakOptions(sampling=SHORT))
    spent = speech.timings
    parts = spent.text_s + spent.lm_s + spent.flow_s + spent.vocoder_s
    assert 0 < parts <= spent.total_s
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


def test_a_stream_refuses_before_it_starts(synthesizer, voice):
    with pytest.raises(InvalidText):
        synthesizer.stream("   ", voice)
    with pytest.raises(InvalidText):
        synthesizer.stream(iter(["", ""]), voice)


def test_text_may_arrive_in_pieces(synthesizer, voice):
    pieces = ["Hello ", "", "there, how ", "are you", "?"]
    options = SpeakOptions(sampling=SHORT)
    chunks = list(synthesizer.stream(iter(pieces), voice, options))
    joined = list(synthesizer.stream(iter(["".join(pieces)]), voice, options))
    assert chunks[-1].final
    assert sum(len(c.samples) for c in chunks) == sum(len(c.samples) for c in joined)


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


def test_more_segments_than_a_batch_holds(synthesizer, voice, monkeypatch):
    options = SpeakOptions(sampling=SHORT)
    whole = synthesizer.speak(LONG_TEXT, voice, options)
    monkeypatch.setattr("vivavoce.service.synthesizer.MAX_BATCH_SEGMENTS", 1)
    alone = synthesizer.speak(LONG_TEXT, voice, options)
    np.testing.assert_allclose(alone.samples, whole.samples, atol=5e-2)


@pytest.mark.parametrize("piece", ["Привет", "bell\x07", 5])
def test_pieces_are_checked_as_text_is(synthesizer, voice, piece):
    with pytest.raises(InvalidText):
        synthesizer.stream(iter([piece]), voice)
    with pytest.raises(InvalidText):
        list(synthesizer.stream(iter(["Hello", " there", piece]), voice, SpeakOptions(sampling=SHORT)))


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
