"""Text, a voice and options → sequences for the engine, without an engine."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import regex
import torch

from vivavoce.checkpoint.config import Generation, MelConfig
from vivavoce.checkpoint.folder import BACKBONE, YAML_OF, TextStream
from vivavoce.engine.request import InputMode, SamplingParams
from vivavoce.errors import InvalidRequest, InvalidText, RequestCancelled
from vivavoce.frontend.front_end import load_front_end
from vivavoce.frontend.modes import MODES, choose_mode, condition
from vivavoce.frontend.speech import INSTRUCTIONS_LEFT_OUT, SILENCE_S, Mark, Mode, SpeakOptions, marks_of
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT, TextTokenizer
from vivavoce.frontend.voices.voice import Voice
from vivavoce.rates import Rates

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


@pytest.fixture(scope="module")
def third(babble_v3):
    """A front end of CosyVoice3, which is not told what scripts it knows."""
    front_end = load_front_end(babble_v3)
    return replace(front_end, text=TextFrontEnd(front_end.text._tokenizer))


@pytest.fixture(scope="module")
def first(front_end, tmp_path_factory):
    """A front end of CosyVoice 1, without a vocabulary in its folder."""
    folder = tmp_path_factory.mktemp("first")
    (folder / YAML_OF[Generation.V1]).touch()
    lm = replace(front_end.config.lm, text_vocab_size=51_866)
    mel = MelConfig(22_050, n_fft=1024, win_size=1024, hop=256, num_bins=80, fmin_hz=0.0, fmax_hz=8_000.0)
    config = replace(front_end.config, generation=Generation.V1, rates=Rates(22_050, 256, 50), lm=lm, mel=mel)
    text = TextFrontEnd(TextTokenizer.from_folder(folder / BACKBONE))
    return replace(
        front_end, config=config, text=text, extractor=replace(front_end.extractor, config=config, text=text)
    )


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
@pytest.mark.parametrize("generation", list(Generation))
def test_the_fullest_mode_is_chosen(voice, instruct, mode, generation):
    assert choose_mode(voice, generation, instruct) is mode


def test_words_that_a_voice_lacks_come_with_a_recording_or_a_new_voice():
    remedy = "give prompt_text with a recording, add a stored voice again with its transcript, or use cross_lingual"
    with pytest.raises(InvalidRequest, match=f"^mode: zero_shot needs the reference's transcript; {remedy}$"):
        choose_mode(WORDLESS, Generation.V2, wanted="zero_shot")


def test_a_mode_that_a_generation_lacks_is_refused_by_name(front_end, monkeypatch):
    modes = MODES[Generation.V2]
    monkeypatch.setitem(MODES, Generation.V2, replace(modes, routes={Mode.SFT: modes.routes[Mode.SFT]}))
    with pytest.raises(InvalidRequest, match=r"^mode: CosyVoice2 has no zero_shot; use one of sft, or another model$"):
        front_end.conditioning(replace(FULL))


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


@pytest.mark.parametrize("generation", list(Generation))
@pytest.mark.parametrize(
    ("mode", "text", "speech", "frames"),
    [
        (Mode.ZERO_SHOT, (8, 9), (0, 1, 2, 3, 4), 10),
        (Mode.CROSS_LINGUAL, (), (), 10),
        (Mode.INSTRUCT, (8, 9), (), 10),
        (Mode.SFT, (), (), 0),
    ],
)
def test_the_table(mode, text, speech, frames, generation):
    first = generation is Generation.V1
    frames = 0 if first and mode is Mode.INSTRUCT else frames
    route = MODES[generation].routes[mode]
    routed = condition(FULL, route, (8, 9), (7,))
    assert (routed.lm_system_text, routed.lm_prompt_text, routed.lm_prompt_tokens) == ((7,), text, speech)
    assert (len(routed.flow_tokens), len(routed.flow_mel)) == (frames // 2, frames)
    assert torch.equal(routed.embedding, EMBEDDING)
    heard = EMBEDDING if first and mode is not Mode.INSTRUCT else None
    assert routed.lm_embedding is heard


def test_cosyvoice_1_is_given_an_instruction_and_no_prompt(first):
    """Ids as the official front end gives them; the mark is text, and is added where it is missing."""
    ids = (32, 7151, 8145, 13, 27, 521, 2670, 28722, 662, 29)
    for instruct in ("A calm speaker.", "A calm speaker.<endofprompt>"):
        told = first.conditioning(FULL, SpeakOptions(instruct=instruct))
        assert (told.lm_prompt_text, len(told.flow_tokens), told.lm_embedding) == (ids, 0, None)
    told = first.conditioning(FULL, SpeakOptions(instruct="A calm speaker.<|endofprompt|>"))  # as later scripts have it
    assert told.lm_prompt_text == first.text.encode("A calm speaker.<|endofprompt|>")
    tagged = "Well, [laughter] that is <strong>so</strong> good."
    assert first.text.segments(tagged) == [tagged]


def test_a_text_for_cosyvoice_1_arrives_by_sentences(first):
    assert first.arrival is InputMode.SEGMENTS
    said = "The ferry has left without its captain, and nobody knows why."
    planned = list(first.plan_arriving([said[:5], said[5:] + " Wh", "o does?"], FULL))
    assert [first.text._tokenizer.decode(one.request.text) for one in planned] == [said, "Who does?"]


def test_a_prompt_of_cosyvoice_1_is_not_cut(first, front_end):
    """Its mel has more frames than its tokens say: it is made of 24 kHz with the hop of 22.05 kHz."""
    wave = torch.rand(16_000, generator=torch.Generator().manual_seed(1)) - 0.5
    voice, other = (one.extractor.extract((wave, 16_000), "Hello.") for one in (first, front_end))
    assert voice.mel.shape == (93, 80)
    assert other.mel.shape == (50, 80)
    assert first.conditioning(voice).flow_mel.shape == (93, 80)
    with pytest.raises(InvalidRequest, match=r"its mel is \[93, 64\], expected \[93, 80\]"):
        first.conditioning(replace(voice, mel=voice.mel[:, :64]))


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
            front_end.requests("Hello.", foreign)


def test_an_instruction_ends_with_its_mark_and_reaches_the_language_model(front_end):
    instruction, mark = front_end.instruction("Slowly."), front_end.text.encode(END_OF_PROMPT)
    assert instruction[-len(mark) :] == mark
    assert front_end.instruction("Slowly." + END_OF_PROMPT) == instruction
    (request,) = front_end.requests("Hello.", BARE, SpeakOptions(instruct="Slowly."))
    assert request.conditioning.lm_prompt_text == instruction


@pytest.mark.parametrize("mode", [Mode.ZERO_SHOT, Mode.CROSS_LINGUAL, Mode.SFT])
def test_a_system_prompt_stands_before_every_text_of_the_third_generation(third, mode):
    (request,) = third.requests("Hello.", FULL, SpeakOptions(mode=mode))
    told = request.conditioning
    assert third.text._tokenizer.decode(told.lm_system_text) == f"You are a helpful assistant.{END_OF_PROMPT}"
    assert told.lm_prompt_text == (FULL.prompt_text if mode is Mode.ZERO_SHOT else ())
    assert request.text == third.text.encode("Hello.")


@pytest.mark.parametrize(
    "instruct", ["请用广东话表达。", f"You are a helpful assistant. 请用广东话表达。{END_OF_PROMPT}"]
)
def test_an_instruction_of_the_third_generation_belongs_to_its_system_prompt(third, instruct):
    """Built by us, or as official scripts write it; it is no part of the text, nor of its length."""
    (segment,) = third.plan("Hello.", FULL, SpeakOptions(instruct=instruct))
    told = segment.request.conditioning
    written = f"You are a helpful assistant. 请用广东话表达。{END_OF_PROMPT}"
    assert third.text._tokenizer.decode(told.lm_system_text) == written
    assert (told.lm_prompt_text, told.lm_prompt_tokens) == ((), ())
    assert (segment.request.text, segment.start, segment.end) == (third.text.encode("Hello."), 0, 6)


OWN = f"Speak like 3 wizards.{END_OF_PROMPT}"


@pytest.mark.parametrize("arrives", [None, *TextStream])
def test_a_system_prompt_in_the_text_is_used_as_it_stands_and_never_spoken(third, arrives):
    said, text = TEXT.strip(), OWN + TEXT.strip()
    if arrives is None:
        plan, whole = list(third.plan(text, FULL)), third.plan(said, FULL)
    else:
        arriving = replace(third, card=replace(third.card, text_stream=arrives))
        plan = list(arriving.plan_arriving([text[:60], text[60:]], FULL))
        whole = list(arriving.plan_arriving([said], FULL))
    assert {one.request.conditioning.lm_system_text for one in plan} == {third.text.encode(OWN)}
    assert {one.request.conditioning.lm_prompt_text for one in plan} == {FULL.prompt_text}
    assert sum((one.request.text for one in plan), ()) == sum((one.request.text for one in whole), ())
    assert (plan[0].start, plan[-1].end) == (len(OWN), len(text))
    if arrives is None:
        assert "".join(text[one.start : one.end] for one in plan) == said


@pytest.mark.parametrize("by", list(TextStream))
def test_a_system_prompt_comes_with_the_first_piece(third, by):
    arriving = replace(third, card=replace(third.card, text_stream=by))
    with pytest.raises(InvalidText, match=r"^text: <\|endofprompt\|> came after the first piece; send the whole"):
        list(arriving.plan_arriving(["Hello there. ", OWN, "Hi."], FULL))


def test_a_transcript_may_bring_its_system_prompt_and_the_text_s_takes_its_place(third):
    """Of zero_shot only, whose transcript is used; behind the mark it is read as any other."""
    assert third.text.normalize(OWN + "I am 5.") == OWN + "I am five."
    said = third.text.encode("I am five.")
    voice = replace(FULL, prompt_text=(*third.text.encode(OWN), *said))
    told = third.conditioning(voice)
    assert (told.lm_system_text, told.lm_prompt_text) == (third.text.encode(OWN), said)
    other = third.conditioning(voice, system=f"Softly.{END_OF_PROMPT}")
    assert (other.lm_system_text, other.lm_prompt_text) == (third.text.encode(f"Softly.{END_OF_PROMPT}"), said)
    plain = third.conditioning(voice, SpeakOptions(mode=Mode.CROSS_LINGUAL)).lm_system_text
    assert plain == third.conditioning(FULL).lm_system_text


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (OWN + "Hi.", {"instruct": "Slowly."}, "^instruct: the text brings a prompt of its own"),
        (OWN, {}, "^text: nothing in '' can be spoken"),
        (5, {}, "^text: int is not a text"),
    ],
)
def test_a_system_prompt_is_checked_as_the_text_is(third, text, options, message):
    with pytest.raises((InvalidRequest, InvalidText), match=message):
        third.requests(text, FULL, SpeakOptions(**options))


def test_segments_cover_the_text_and_their_seeds_follow_one_another(front_end):
    plan = list(front_end.plan(TEXT, FULL, SpeakOptions(seed=5, speed=1.5, sampling=SamplingParams(top_k=3))))
    assert len(plan) > 1
    assert [one.request.seed for one in plan] == list(range(5, 5 + len(plan)))
    assert {(one.request.speed, one.request.sampling.top_k) for one in plan} == {(1.5, 3)}
    assert "".join(TEXT[one.start : one.end] for one in plan) == TEXT


@pytest.mark.parametrize("by", list(TextStream))
def test_what_nothing_can_say_is_left_out_of_a_text(front_end, by):
    text = "<think>Is it 3?</think>\x1b[1mGood\x1b[0m \ud83dday to\x00 you. It is 5 \ud83d\ude00 now."
    arriving = replace(front_end, card=replace(front_end.card, text_stream=by))
    (said,) = arriving.plan(text, FULL)
    assert text[said.start : said.end] == text
    assert said.request.text == front_end.text.encode("Good day to you. It is five now.")
    for options in (SpeakOptions(), SpeakOptions(reading="official"), SpeakOptions(reading="off")):
        for pieces in (text, [text]):
            planned = list(arriving.plan_arriving(pieces, FULL, options))
            words = front_end.text._tokenizer.decode(sum((one.request.text for one in planned), ()))
            assert "Good day to you." in " ".join(words.split())
            assert "3" not in words
            assert planned[-1].end == len(text)
    read = SpeakOptions(reasoning="read")
    assert next(arriving.plan_arriving([text], FULL, read)).request.text[:3] == front_end.text.encode("Is it")[:3]


@pytest.mark.parametrize("text", ["👍", "\n\n", "***", "<think>Hm.</think>", "\x07"])
@pytest.mark.parametrize("by", list(TextStream))
def test_a_text_with_nothing_to_say_is_silence_where_that_is_wanted(front_end, by, text):
    arriving = replace(front_end, card=replace(front_end.card, text_stream=by))
    for planned in (arriving.plan(text, FULL, silent=True), arriving.plan_arriving([text], FULL, silent=True)):
        (one,) = planned
        assert (one.start, one.end, one.request.text, one.request.pause_s) == (0, len(text), (), SILENCE_S)
    with pytest.raises(InvalidText) as caught:
        list(arriving.plan(text, FULL))
    assert caught.value.nothing_to_say
    with pytest.raises(InvalidText):
        list(arriving.plan("", FULL, silent=True))
    assert not list(arriving.plan_arriving(["", ""], FULL, silent=True))


def test_a_sentence_that_is_silent_ends_no_stream(front_end):
    arriving = replace(front_end, card=replace(front_end.card, text_stream=TextStream.SENTENCES))
    planned = arriving.plan_arriving(["First this one.\n`code = 1`\nThen that one."], FULL, SpeakOptions(code="silent"))
    assert len(list(planned)) == 2


@pytest.mark.parametrize("by", list(TextStream))
@pytest.mark.parametrize(
    "text",
    [
        "Here you are:\n```bash\nmake all\n```\nThat is everything.",
        "Look at this.\n~~~\nls -l\n\ncd here. Go on.\n~~~\nDone now, my friend.",
        "And this one:\n```python\nprint(1)",
        "~~~ So cute!\nThen we left, and it was good.",
    ],
)
def test_fenced_code_is_read_alike_whole_and_in_pieces(front_end, by, text):
    arriving = replace(front_end, card=replace(front_end.card, text_stream=by))

    def words(planned):
        said = [front_end.text._tokenizer.decode(one.request.text) for one in planned]
        return regex.findall(r"\w+", " ".join(said))

    for code in ("read", "silent"):
        options = SpeakOptions(code=code)
        whole = words(arriving.plan(text, FULL, options))
        for size in (1, 7, len(text)):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            assert words(arriving.plan_arriving(pieces, FULL, options)) == whole, (code, size)


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
        said = "It is eleven forty two in Boston now. The evening train leaves at six. Good!"
        assert sum((one.request.text for one in planned), ()) == front_end.text.encode_piece(said)
    else:
        sentences = ["It is 11:42 in Boston now.", "The evening train leaves at 6.", "* * *\nGood!"]
        assert [text[one.start : one.end] for one in planned] == sentences
        alone = [front_end.plan(one, FULL, SpeakOptions(seed=4 + place)) for place, one in enumerate(sentences)]
        assert [(one.request.text, one.request.seed) for one in planned] == [
            (only.request.text, only.request.seed) for (only,) in alone
        ]


def test_text_that_arrives_by_words_is_read_by_the_natural_reading_alone(front_end):
    arriving = replace(front_end, card=replace(front_end.card, text_stream=TextStream.INTERLEAVED))
    pieces = ("It is **1", "1:4", "2** in Boston now 😀. Ta", "ke 2")
    for reading, said in (
        ("natural", "It is eleven forty two in Boston now. Take two"),
        ("official", "It is **11:42** in Boston now 😀. Take 2"),
        ("off", "It is **11:42** in Boston now 😀. Take 2"),
    ):
        planned = list(arriving.plan_arriving(pieces, FULL, SpeakOptions(reading=reading)))
        assert sum((one.request.text for one in planned), ()) == front_end.text.encode_piece(said)
        assert planned[-1].end == len("".join(pieces))
        assert sorted(one.end for one in planned) == [one.end for one in planned]


def test_reading_ends_with_who_wants_it_also_where_text_arrives(front_end):
    arriving = replace(front_end, card=replace(front_end.card, text_stream=TextStream.SENTENCES))
    for planned in (
        arriving.plan(TEXT, FULL, is_cancelled=lambda: True),
        arriving.plan_arriving([TEXT], FULL, is_cancelled=lambda: True),
    ):
        with pytest.raises(RequestCancelled):
            next(planned)


@pytest.mark.parametrize("piece", ["Привет", 5])
def test_pieces_are_checked_as_text_is(front_end, piece):
    with pytest.raises(InvalidText):
        list(front_end.plan_arriving(["Hello", " there", piece], FULL))


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**60), ("speed", 0.1), ("language", "pt"), ("language", ""), ("mode", "sing")],
)
def test_options_outside_their_limits_are_refused(field, value):
    with pytest.raises(InvalidRequest, match=f"{field}: "):
        SpeakOptions(**{field: value})


def test_the_language_reaches_the_text(front_end):
    with pytest.raises(InvalidRequest, match=r"language: the model does not know 'zh' \(which yue is taken for\) \("):
        front_end.requests("Hello.", FULL, SpeakOptions(language="zh"))
    told, asked = (front_end.requests("It is 5.", FULL, SpeakOptions(language=language)) for language in (None, "en"))
    assert [one.text for one in told] == [one.text for one in asked]


def test_a_text_that_arrives_stays_in_its_language(front_end):
    """The second sentence alone does not show its language: it is in that of the first."""
    any_script = replace(front_end.card, text_stream=TextStream.SENTENCES, scripts=None)
    speaker = replace(front_end, card=any_script, text=TextFrontEnd(front_end.text._tokenizer))
    text = "Wir sind heute da. Zimmer 21, 3 Betten."
    for language, second in ((None, "Zimmer einundzwanzig, drei Betten."), ("en", "Zimmer twenty one, three Betten.")):
        parts = list(speaker.plan_arriving(text, FULL, SpeakOptions(language=language)))
        assert [text[one.start : one.end] for one in parts] == ["Wir sind heute da.", "Zimmer 21, 3 Betten."]
        assert parts[1].request.text == speaker.text.encode(second)


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
    voice = Voice(EMBEDDING, "f", speech_tokens=torch.arange(tokens), mel=torch.ones(frames, 80)).aligned(
        Rates(24_000, 480, 25)
    )
    assert (len(voice.speech_tokens), len(voice.mel)) == (kept, 2 * kept)


def test_a_recording_is_improved_unless_the_official_reading_is_wanted(front_end, caplog):
    """Silence at its ends is trimmed, quiet speech brought up, and a demo warns of one that is too long for it."""
    rate = 16_000
    speech = np.random.default_rng(0).normal(size=3 * rate).astype(np.float32) * 0.1
    silent = np.pad(speech, (rate, rate))
    extractor = front_end.extractor
    official = replace(extractor, as_recorded=True)
    mels = [len(one.extract((silent, rate)).mel) for one in (extractor, official)]
    assert mels[0] < 3.5 * 50 < 5 * 50 - 2 <= mels[1]
    levels = [one.extract((speech * 0.003, rate)).mel.mean() for one in (extractor, official)]
    assert levels[0] > levels[1] + 1
    long = "has 3.0 s of speech; this model may speak wrong words after more than 2.5 s"
    assert not any(long in record.getMessage() for record in caplog.records)
    warned = replace(extractor, advised_s=2.5)
    warned.extract((speech, rate))
    assert any(long in record.getMessage() for record in caplog.records)
