"""Text, a voice and options → sequences for the engine, without an engine."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from vivavoce.checkpoint.folder import TextStream
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest, InvalidText, RequestCancelled
from vivavoce.service.front_end import END_OF_PROMPT, choose_mode, condition, load_front_end
from vivavoce.service.speech import INSTRUCTIONS_LEFT_OUT, Mark, Mode, SpeakOptions, marks_of
from vivavoce.service.voices.voice import Voice

EMBEDDING = torch.arange(192.0)
FULL = Voice(
    EMBEDDING, "f", prompt_text=(1, 2), speech_tokens=torch.arange(5, dtype=torch.int32), mel=torch.ones(10, 80)
)
WORDLESS = replace(FULL, prompt_text=())
BARE = Voice(EMBEDDING, "f")
TEXT = "It is 5 past 9, and the ferry has left without its captain. " * 3


@pytest.fixture(scope="module")
def front_end(babble):
    return load_front_end(babble)


@pytest.mark.parametrize(
    ("voice", "instruct", "mode"),
    [
        (FULL, None, Mode.ZERO_SHOT),
        (WORDLESS, None, Mode.CROSS_LINGUAL),
        (BARE, None, Mode.SFT),
        (FULL, "slowly", Mode.INSTRUCT),
        (BARE, "slowly", Mode.INSTRUCT),
    ],
)
def test_the_fullest_mode_is_chosen(voice, instruct, mode):
    assert choose_mode(voice, instruct) is mode


def test_a_model_that_cannot_follow_instructions_never_gets_them(front_end, caplog):
    unguided = replace(front_end, card=replace(front_end.card, instructions=False))
    for mode in (None, Mode.INSTRUCT):
        told = unguided.conditioning(FULL, SpeakOptions(mode=mode, instruct="Speak like an old wizard."))
        assert told.lm_prompt_text == unguided.conditioning(FULL).lm_prompt_text == FULL.prompt_text
    assert front_end.conditioning(FULL, SpeakOptions(instruct="Slowly.")).lm_prompt_text != FULL.prompt_text
    assert [record.getMessage() for record in caplog.records] == [INSTRUCTIONS_LEFT_OUT]


@pytest.mark.parametrize(
    ("voice", "instruct", "wanted", "word"),
    [
        (BARE, None, Mode.ZERO_SHOT, "reference speech"),
        (BARE, None, Mode.CROSS_LINGUAL, "reference speech"),
        (WORDLESS, None, Mode.ZERO_SHOT, "transcript"),
        (FULL, None, Mode.INSTRUCT, "instruction"),
        (FULL, "slowly", Mode.ZERO_SHOT, "instruct"),
    ],
)
def test_what_a_mode_lacks_is_named(front_end, voice, instruct, wanted, word):
    front_end.conditioning(voice)  # that the voice is known makes no difference
    with pytest.raises(InvalidRequest, match=word):
        front_end.conditioning(voice, SpeakOptions(mode=wanted, instruct=instruct))


@pytest.mark.parametrize(
    ("mode", "text", "speech", "frames"),
    [
        (Mode.ZERO_SHOT, (1, 2), (0, 1, 2, 3, 4), 10),
        (Mode.CROSS_LINGUAL, (), (), 10),
        (Mode.INSTRUCT, (8, 9), (), 10),
        (Mode.SFT, (), (), 0),
    ],
)
def test_the_table(mode, text, speech, frames):
    routed = condition(FULL, mode, (8, 9))
    assert (routed.lm_prompt_text, routed.lm_prompt_tokens) == (text, speech)
    assert (len(routed.flow_tokens), len(routed.flow_mel)) == (frames // 2, frames)
    assert torch.equal(routed.embedding, EMBEDDING)


def test_a_voice_is_routed_once_for_each_mode_and_forgotten_with_it(front_end):
    voice, other = replace(FULL), replace(FULL, mel=torch.zeros(10, 80))
    full, timbre = (front_end.conditioning(voice, SpeakOptions(mode=mode)) for mode in (None, "cross_lingual"))
    assert front_end.conditioning(voice, SpeakOptions(mode="zero-shot")) is full
    assert front_end.conditioning(voice, SpeakOptions(mode=Mode.CROSS_LINGUAL)) is timbre
    assert front_end.conditioning(other).flow_key != full.flow_key
    gc.collect()
    before = len(front_end._known)
    del voice, other
    gc.collect()
    assert len(front_end._known) == before - 2


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
def test_a_voice_of_other_sizes_is_refused_each_time(front_end, features, word):
    foreign = Voice(**{"embedding": torch.zeros(192), "fingerprint": "", "name": "x", **features})
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"'x' does not fit this model .*{word}"):
            front_end.plan("Hello.", foreign)


def test_an_instruction_ends_with_its_mark_and_reaches_the_language_model(front_end):
    instruction, mark = front_end.instruction("Slowly."), front_end.text.encode(END_OF_PROMPT)
    assert instruction[-len(mark) :] == mark
    assert front_end.instruction("Slowly." + END_OF_PROMPT) == instruction
    (request,) = front_end.requests("Hello.", BARE, SpeakOptions(instruct="Slowly."))
    assert request.conditioning.lm_prompt_text == instruction


def test_segments_cover_the_text_and_their_seeds_follow_one_another(front_end):
    plan = front_end.plan(TEXT, FULL, SpeakOptions(seed=5, speed=1.5, sampling=SamplingParams(top_k=3)))
    assert len(plan) > 1
    assert [one.request.seed for one in plan] == list(range(5, 5 + len(plan)))
    assert {(one.request.speed, one.request.sampling.top_k) for one in plan} == {(1.5, 3)}
    assert "".join(TEXT[one.start : one.end] for one in plan) == TEXT


@pytest.mark.parametrize("by", list(TextStream))
def test_text_that_arrives_is_planned_as_soon_as_it_is_complete(front_end, by):
    """By sentences each is planned like a text of its own, numbers read out; a line of marks is passed over."""
    arriving = replace(front_end, card=replace(front_end.card, text_stream=by))
    read = []

    def pieces():
        for piece in (" It is 11:", "42 in Boston now. The eve", "ning train leaves at", " 6.\n", "* * *\n", "Good!"):
            read.append(piece)
            yield piece

    segments = arriving.plan_arriving(pieces(), FULL, SpeakOptions(seed=4))
    first = next(segments)
    planned = [first, *segments]
    text = "".join(read)
    if by is TextStream.INTERLEAVED:
        assert {(one.start, one.request.seed) for one in planned} == {(0, 4)}
        assert planned[-1].end == len(text)
        assert sum((one.request.text for one in planned), ()) == front_end.text.encode_piece(text)
    else:
        sentences = ["It is 11:42 in Boston now.", "The evening train leaves at 6.", "* * *\nGood!"]
        assert [text[one.start : one.end] for one in planned] == sentences
        alone = [front_end.plan(one, FULL, SpeakOptions(seed=4 + place)) for place, one in enumerate(sentences)]
        assert [(one.request.text, one.request.seed) for one in planned] == [
            (only.request.text, only.request.seed) for (only,) in alone
        ]


def test_reading_ends_with_who_wants_it_also_where_text_arrives(front_end):
    arriving = replace(front_end, card=replace(front_end.card, text_stream=TextStream.SENTENCES))
    for planned in (
        arriving.plan_as_read(TEXT, FULL, left=lambda: True),
        arriving.plan_arriving([TEXT], FULL, left=lambda: True),
    ):
        with pytest.raises(RequestCancelled):
            next(planned)


@pytest.mark.parametrize("piece", ["Привет", "bell\x07", 5])
def test_pieces_are_checked_as_text_is(front_end, piece):
    with pytest.raises(InvalidText):
        list(front_end.plan_arriving(["Hello", " there", piece], FULL))


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**60), ("speed", 0.1), ("language", "fr"), ("language", ""), ("mode", "sing")],
)
def test_options_outside_their_limits_are_refused(field, value):
    with pytest.raises(InvalidRequest, match=f"{field}: "):
        SpeakOptions(**{field: value})


def test_the_language_reaches_the_text(front_end):
    with pytest.raises(InvalidRequest, match="language: the model does not know 'zh'"):
        front_end.plan("Hello.", FULL, SpeakOptions(language="zh"))
    told, asked = (front_end.requests("It is 5.", FULL, SpeakOptions(language=language)) for language in (None, "en"))
    assert [one.text for one in told] == [one.text for one in asked]


def test_marks_are_sums_of_samples():
    spans = [(0, 3), (3, 4)]
    assert marks_of("1, 2", spans, (240, 480), 24_000, (False, True)) == (
        Mark("1, ", 0, 3, 0.0, 0.01),
        Mark("2", 3, 4, 0.01, 0.03, cut=True),
    )
    assert marks_of("1, 2", spans, (240,), 24_000) == (Mark("1, ", 0, 3, 0.0, 0.01),)
    assert marks_of("", (), (240,), 24_000) == ()


@pytest.mark.parametrize(("tokens", "frames", "kept"), [(5, 10, 5), (5, 13, 5), (9, 11, 5), (5, 0, 0)])
def test_tokens_and_mel_are_cut_to_the_same_duration(tokens, frames, kept):
    voice = Voice(EMBEDDING, "f", speech_tokens=torch.arange(tokens), mel=torch.ones(frames, 80)).aligned(2)
    assert (len(voice.speech_tokens), len(voice.mel)) == (kept, 2 * kept)
