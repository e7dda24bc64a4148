from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivavoce.errors import CheckpointError, InvalidRequest, InvalidText
from vivavoce.service.text.checks import MAX_TEXT_CHARS
from vivavoce.service.text.frontend import MAX_SEGMENT_TOKENS, MAX_SEGMENT_TOKENS_SMALL, TextFrontEnd
from vivavoce.service.text.rules import is_only_punctuation, is_speakable
from vivavoce.service.text.tokenizer import TextTokenizer

ANY_TEXT = st.text(alphabet=st.characters(), max_size=80)  # surrogates and control characters included
PUZZLING = st.text(alphabet="ab 1230.,:/$€%#&@\\\"'<>|[]{}-\n\t😀❤️é한好。²½", max_size=60)
QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def letters(text: str) -> str:
    return "".join(character for character in text if is_speakable(character))


@pytest.mark.parametrize("text", ["", "   ", "\n\t\u3000", "!!!", "😀😀", "❤️", "。。。", "\u0301\u0301", "<||>"])
def test_text_with_nothing_to_speak_is_refused(text: str, front_end: TextFrontEnd, plain: TextFrontEnd) -> None:
    for end in (front_end, plain):
        with pytest.raises(
            InvalidText, match=r"^text: nothing in .* can be spoken; write at least one word$"
        ) as caught:
            end.segments(text)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a " * 500_000, "a" * (MAX_TEXT_CHARS + 1)])
def test_text_that_is_too_long_is_refused_with_both_numbers(text: str, front_end: TextFrontEnd) -> None:
    message = rf"^text: {len(text)} characters are more than the limit of 20000; split it into several requests$"
    for prepare in (front_end.segments, front_end.normalize):
        with pytest.raises(InvalidText, match=message):
            prepare(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\x00b", r"control character U\+0000 at position 1"),
        ("hello\x1b[31m", r"control character U\+001B at position 5"),
        ("\x9f", r"control character U\+009F at position 0"),
        ("a\ud800", r"U\+D800 at position 1 is half of a surrogate pair"),
    ],
)
def test_characters_that_are_no_text_are_refused(text: str, message: str, front_end: TextFrontEnd) -> None:
    for prepare in (front_end.segments, front_end.normalize):
        with pytest.raises(InvalidText, match=message):
            prepare(text)


def test_every_kind_of_white_space_is_text(front_end: TextFrontEnd) -> None:
    assert front_end.segments("one\ttwo\r\nthree\x0bfour\x85five\u2028six")


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_the_transcript_of_nothing_is_empty(text: str, front_end: TextFrontEnd, plain: TextFrontEnd) -> None:
    assert front_end.normalize(text) == ""
    assert plain.normalize(text) == ""


@pytest.mark.parametrize(
    ("text", "transcript"),
    [("word " * 3, "word word word"), ("你好 ", "你好"), (" 3 cats", "three cats"), ("!!!", "!!!")],
)
def test_transcripts(text: str, transcript: str, front_end: TextFrontEnd) -> None:
    assert front_end.normalize(text) == transcript


def test_markup_switches_normalisation_and_splitting_off(front_end: TextFrontEnd) -> None:
    text = " You are kind.<|endofprompt|>I have 3. And more! " + "So it goes. " * 8

    assert front_end.segments(text) == [text]
    assert front_end.normalize(text) == text


@pytest.mark.parametrize("unit", ["x", "长", "ab ", "dog, ", "😀a", "[laughter]", "<|a|>b"])
def test_no_segment_exceeds_the_bound(unit: str, plain: TextFrontEnd) -> None:
    text = unit * (MAX_TEXT_CHARS // len(unit))
    segments = plain.segments(text)

    assert "".join(segments) == text
    assert max(len(plain.encode(segment)) for segment in segments) <= MAX_SEGMENT_TOKENS_SMALL
    assert min(len(plain.encode(segment)) for segment in segments) > MAX_SEGMENT_TOKENS_SMALL // 8


def test_normalised_text_without_marks_is_bounded_too(front_end: TextFrontEnd) -> None:
    segments = front_end.segments("then " * 300 + "we went on " * 100)

    assert len(segments) > 1
    assert max(len(front_end.encode(segment)) for segment in segments) <= MAX_SEGMENT_TOKENS_SMALL


class LargeVocabulary(TextTokenizer):
    def __len__(self) -> int:
        return 151_665


def test_a_vocabulary_of_release_size_has_the_tighter_bound(tokenizer: TextTokenizer) -> None:
    end = TextFrontEnd(LargeVocabulary(tokenizer._tokenizer), normalize=False)

    lengths = [len(end.encode(segment)) for segment in end.segments("word " * 200)]

    assert MAX_SEGMENT_TOKENS // 2 < max(lengths) <= MAX_SEGMENT_TOKENS


@given(text=ANY_TEXT)
@QUICK
def test_any_text_gives_segments_or_a_refusal(
    text: str, front_end: TextFrontEnd, latin: TextFrontEnd, plain: TextFrontEnd
) -> None:
    for end in (front_end, latin, plain):
        try:
            segments = end.segments(text)
        except InvalidText:
            continue
        assert segments
        assert not any(is_only_punctuation(segment) for segment in segments)
        assert all(end.encode(segment) for segment in segments)


@given(text=PUZZLING)
@QUICK
def test_text_that_puzzles_the_normaliser_is_spoken(text: str, front_end: TextFrontEnd, latin: TextFrontEnd) -> None:
    if not is_speakable(text):
        return
    assert front_end.segments(text)
    assert front_end.normalize(text)
    if "好" not in text and "한" not in text:
        assert not any("😀" in segment for segment in latin.segments(text))


@given(text=st.text(alphabet="ab1 ,.!？。你好\n😀", max_size=2000))
@QUICK
def test_without_normalisation_every_letter_is_kept(text: str, plain: TextFrontEnd) -> None:
    if is_speakable(text):
        assert letters("".join(plain.segments(text))) == letters(text)


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("Great 😀!", "Great!"),
        ("I won 👍🏽👨‍👩‍👧 twice", "I won twice."),
        ("❤️ love it 1️⃣", "love it one."),
        ("hot😀dog", "hot dog."),
        ("20°C → warm", "twenty degrees Celsius warm."),
        ("I paid $3 & 50% more", "I paid three dollars and fifty percent more."),
        ('"Hi," he said.', '"Hi," he said.'),
        ("it´s naïve, ﬁne", "it´s naïve, ﬁne."),
        ("e\u0301te\u0301", "e\u0301te\u0301."),
        ("2024", "twenty twenty four."),
        ("[laughter] ok", "[laughter] ok."),
    ],
)
def test_a_latin_model_is_spared_symbols(text: str, segment: str, latin: TextFrontEnd) -> None:
    assert latin.segments(text) == [segment]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("你好", "'你', '好' (it knows the script Latin)"),
        ("Привет!", "'П', 'р', 'и', 'в', 'е' and 1 more (it knows"),
        ("ラーメン", "'ラ', 'ー', 'メ', 'ン' (it knows"),
        ("room 〇", "'〇' (it knows"),
        ("a <|tag|> λ", "'λ' (it knows"),
    ],
)
def test_a_latin_model_names_letters_it_does_not_know(text: str, named: str, latin: TextFrontEnd) -> None:
    for prepare in (latin.segments, latin.normalize):
        with pytest.raises(InvalidText, match=r"choose another model$") as caught:
            prepare(text)
        assert named in str(caught.value)


def test_emoji_alone_are_nothing_to_speak_for_a_latin_model(latin: TextFrontEnd) -> None:
    with pytest.raises(InvalidText, match="can be spoken"):
        latin.segments("😀 👍")


def test_a_model_of_several_scripts_takes_letters_of_each(tokenizer: TextTokenizer) -> None:
    end = TextFrontEnd(tokenizer, scripts=frozenset({"Latin", "Han"}))

    assert end.segments("12345") == ["幺二三四五."]
    assert end.segments("你好 😀 world") == ["你好 world。"]
    with pytest.raises(InvalidText, match=r"'е' \(it knows the script Han, Latin\)"):
        end.segments("hеllo")  # the е is Cyrillic


@pytest.mark.parametrize("name", ["Latn1", "", "Latin}"])
def test_a_script_that_does_not_exist_is_refused(name: str, tokenizer: TextTokenizer) -> None:
    with pytest.raises(CheckpointError, match=r"^scripts: .* a name that Unicode does not know; use names such as"):
        TextFrontEnd(tokenizer, scripts=frozenset({name}))


def test_without_normalisation_text_is_given_as_it_is(plain: TextFrontEnd) -> None:
    assert plain.segments(" I have 3. Yes! ") == [" I have 3. Yes! "]
    assert plain.normalize(" I have 3. ") == " I have 3. "


@pytest.mark.parametrize(
    ("text", "language", "segments"),
    [
        ("I have 3 cats", "en", ["I have three cats."]),
        ("I have 3 cats", "zh", ["I have三cats。"]),
        ("OK 2024", "zh", None),
        ("我有3只猫", "en", None),
        ("我有3只猫", "zh", ["我有三只猫。"]),
    ],
)
def test_who_asks_chooses_the_language(
    text: str, language: str, segments: list[str] | None, front_end: TextFrontEnd
) -> None:
    chosen = front_end.segments(text, language)
    if segments is None:
        assert chosen != front_end.segments(text)
    else:
        assert chosen == segments


def test_a_language_that_is_not_known_is_refused(front_end: TextFrontEnd, latin: TextFrontEnd) -> None:
    with pytest.raises(InvalidRequest, match=r"^language: 'fr' is none of zh, en; choose one, or leave it out"):
        front_end.segments("Hello.", "fr")
    with pytest.raises(InvalidRequest, match=r"^language: the model does not know 'zh' \(it knows the script Latin\)"):
        latin.segments("Hello.", "zh")
    assert latin.segments("It is 5.", "en") == latin.segments("It is 5.")
