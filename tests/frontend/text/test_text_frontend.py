"""Any text becomes segments, each with the characters that it speaks, or is refused in one line."""

from __future__ import annotations

import pytest
import regex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frontend.text.ranges import letters, spans
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.settings import MAX_POSITIONS
from vivavoce.errors import CheckpointError, InvalidText, RequestCancelled
from vivavoce.frontend.text.segmentation import cut_long, find_spans, is_only_punctuation, split_paragraph
from vivavoce.frontend.text.text_front_end import (
    MAX_SEGMENT_TOKENS,
    TextFrontEnd,
    drop_symbols,
)
from vivavoce_textnorm import MAX_BLOCK_CHARS, MAX_TEXT_CHARS, blocks, contains_chinese, is_speakable
from vivavoce_textnorm.official import (
    Languages,
    OfficialNormalizer,
    close_trailing_comma,
    remove_bracket,
    replace_blank,
    replace_corner_mark,
)

ANY_TEXT = st.text(alphabet=st.characters(), max_size=80)  # surrogates and control characters included
PUZZLING = st.text(alphabet="ab 1230.,:/$€%#&@\\\"'<>|[]{}-\n\t😀❤️é한好。²½", max_size=200)
QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

ENGLISH = [
    "On 3/4/2024 I paid $5.50. ",
    "It was 11:42. ",
    '"Really?" he asked. ',
    "Dr. Smith (aged 42) said: no! ",
    "The train leaves at 6.\n",
    "In 1984. ",
    "1985 was a better year, I am told. ",
    "Well... so it goes. ",
    "“Are you sure?” she said; he was. ",
    "There are 1,234,567 people, and 50% of them are happy. ",
]
CHINESE = [
    "我在2024年3月4日买了3.5公斤苹果。",
    "“真的吗？”他问。",
    "今天温度是-5℃——很冷！",
    "电话是13800138000。",
    "我们使用Python 3.12来处理数据。",
    "他说：“好。”",
    "花了¥25.80，还剩（大概）10元。",
    "好的好的好的。",
]


@pytest.mark.parametrize(
    "text", ["", "   ", "\n\t\u3000", "...", "?", "！", "😀👍", "❤️", "。。。！！！", "\u0301\u0301", "<||>"]
)
def test_text_with_nothing_to_speak_is_refused(text, front_end, plain):
    for end in (front_end, plain):
        with pytest.raises(
            InvalidText, match=r"^text: nothing in .* can be spoken; write at least one word$"
        ) as caught:
            end.segments(text)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a " * 500_000,
            r"^text: 1000000 characters are more than the limit of 20000; split it into several requests$",
        ),
        ("a" * (MAX_TEXT_CHARS + 1), r"^text: 20001 characters are more than the limit of 20000"),
    ],
)
def test_text_that_is_too_long_is_refused(text, message, front_end):
    for prepare in (front_end.segments, front_end.normalize):
        with pytest.raises(InvalidText, match=message):
            prepare(text)


@pytest.mark.parametrize("sign", ["\x00", "\x1b[31m", "\x9f", "\ud800"])
def test_what_is_no_text_is_left_out_of_a_transcript_and_reaches_no_rule(sign, front_end):
    assert front_end.normalize(f"Five{sign} men.") == "Five men."
    with pytest.raises(InvalidText, match=r"control character U\+|half of a surrogate pair"):
        front_end.segments(f"Five{sign} men.")


@pytest.mark.parametrize(
    ("text", "transcript"),
    [
        ("word " * 3, "word word word"),
        ("你好 ", "你好"),
        (" 3 cats", "three cats"),
        ("!!!", "!!!"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_transcripts(text, transcript, front_end):
    assert front_end.normalize(text) == transcript


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("Give me 2 [T][UW1][M][AH0][T][OW2]!", ["Give me two [T][UW1][M][AH0][T][OW2]!"]),
        (
            "他的爱好[h][ào]有3个[g][è]，[laughter]真好[h][ǎo].",
            ["他的爱好[h][ào]有三个[g][è]，[laughter]真好[h][ǎo]。"],
        ),
        ("[HH][AH0][L][OW1]", ["[HH][AH0][L][OW1]."]),
        ("<strong>5</strong> [breath] cats", ["<strong>five</strong> [breath] cats."]),
    ],
)
def test_phones_and_pinyin_pass_the_rules_of_reading(text, segments, third):
    """The digit of a phone is not a number; every tag stays one id."""
    assert third.segments(text) == segments
    (said,) = segments
    assert sum(len(third.encode(tag)) == 1 for tag in regex.findall(r"\[[^]]+\]", said)) == said.count("[")


def test_no_phone_is_torn(third):
    segments = third.segments("[HH][AH0][L][OW1]" * 800)
    assert len(segments) > 1
    assert all(regex.fullmatch(r"(\[[A-Z]+\d?\])+\.?", segment) for segment in segments)


def test_markup_switches_normalisation_and_splitting_off(front_end):
    text = " You are kind.<|endofprompt|>I have 3. And more! " + "So it goes. " * 8
    assert front_end.segments(text) == [text]
    assert front_end.normalize(text) == text


@pytest.mark.parametrize("unit", ["x", "长", "ab ", "dog, ", "😀a", "7 ", "12. ", "[laughter]", "<|a|>b"])
def test_no_segment_exceeds_the_bound(unit, plain):
    text = unit * (MAX_TEXT_CHARS // len(unit))
    segments = plain.segments(text)
    assert "".join(segments) == text
    assert max(len(plain.encode(segment)) for segment in segments) <= MAX_SEGMENT_TOKENS
    assert min(len(plain.encode(segment)) for segment in segments) > MAX_SEGMENT_TOKENS // 8
    assert [letters(spoken) for spoken in spans(text, segments)] == [letters(segment) for segment in segments]


def test_a_segment_and_all_its_speech_leave_room_for_a_prompt_in_a_slot():
    assert MAX_SEGMENT_TOKENS * (1 + SamplingParams().max_ratio) <= MAX_POSITIONS - 900


@given(text=ANY_TEXT | PUZZLING)
@QUICK
def test_any_text_gives_segments_that_cover_it_or_a_refusal(text, front_end, latin, plain):
    for end in (front_end, latin, plain):
        try:
            segments = end.segments(text)
        except InvalidText:
            continue
        assert segments
        assert not any(is_only_punctuation(segment) for segment in segments)
        assert all(end.encode(segment) for segment in segments)
        spans(text, segments)


@given(text=PUZZLING)
@QUICK
def test_text_that_puzzles_the_normaliser_is_spoken(text, front_end, latin):
    if not is_speakable(text):
        return
    assert front_end.segments(text)
    assert front_end.normalize(text)
    if "好" not in text and "한" not in text:
        assert not any("😀" in segment for segment in latin.segments(text))


@given(text=st.text(alphabet="ab1 ,.!？。你好\n😀", max_size=2000))
@QUICK
def test_without_normalisation_every_letter_is_in_its_segments_range(text, plain):
    if is_speakable(text):
        segments = plain.segments(text)
        assert letters("".join(segments)) == letters(text)
        assert [letters(spoken) for spoken in spans(text, segments)] == [letters(segment) for segment in segments]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello there.", ["Hello there."]),
        (" One. ", [" One. "]),
        (
            "It was 5:30 when she came in with 21 guests for dinner, all of them hungry. “Now!” she said, "
            "3 times over, and everybody sat down at the long table. 22 chairs were there (one too many).",
            [
                "It was 5:30 when she came in with 21 guests for dinner, all of them hungry. “Now!” ",
                "she said, 3 times over, and everybody sat down at the long table. "
                "22 chairs were there (one too many).",
            ],
        ),
    ],
)
def test_each_segment_is_found(text, spoken, front_end):
    assert spans(text, front_end.segments(text)) == spoken
    assert [text[one.start : one.end] for one in front_end.located(text)] == spoken


@pytest.mark.parametrize("sentences", [ENGLISH, CHINESE, CHINESE + ENGLISH[1:3]])
@given(data=st.data())
@settings(QUICK, max_examples=25)
def test_what_a_range_holds_is_what_its_segment_says(sentences, data, front_end):
    """Normalised by itself, each range's text is its segment."""
    # A text with Chinese in it is read in Chinese throughout.
    language = "好" if sentences is not ENGLISH else ""
    text = language + "".join(data.draw(st.lists(st.sampled_from(sentences), min_size=1, max_size=20)))
    segments = front_end.segments(text)
    for spoken, segment in zip(spans(text, segments), segments, strict=True):
        assert letters(front_end.normalize(language + spoken)) == language + letters(segment)


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
def test_a_latin_model_is_spared_symbols(text, segment, latin):
    assert latin.segments(text) == [segment]


def test_greek_letters_of_units_are_read(latin):
    spoken = [one.spoken for one in latin.located("A 10 kΩ part, 5 μg of it.", reading="natural")]
    assert spoken == ["A ten kilohm part, five micrograms of it."]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("你好", "'你', '好' (it knows the script Latin)"),
        ("Привет!", "'П', 'р', 'и', 'в', 'е' and 1 more (it knows"),
        ("ラーメン", "'ラ', 'ー', 'メ', 'ン' (it knows"),
        ("room 〇", "'〇' (it knows"),
        ("a <|tag|> λ", "'λ' (it knows"),
        ("Ω 10", "'Ω' (it knows"),
    ],
)
def test_a_latin_model_names_letters_it_does_not_know(text, named, latin):
    for prepare in (latin.segments, latin.normalize):
        with pytest.raises(InvalidText, match=r"choose another model$") as caught:
            prepare(text)
        assert named in str(caught.value)


def test_a_model_of_several_scripts_takes_letters_of_each(tokenizer):
    end = TextFrontEnd(tokenizer, scripts=frozenset({"Latin", "Han"}))
    assert end.segments("12345") == ["幺二三四五."]
    assert end.segments("你好 😀 world") == ["你好 world。"]
    with pytest.raises(InvalidText, match=r"'е' \(it knows the script Han, Latin\)"):
        end.segments("hеllo")  # the е is Cyrillic


@pytest.mark.parametrize("name", ["Latn1", "", "Latin}"])
def test_a_script_that_does_not_exist_is_refused(name, tokenizer):
    with pytest.raises(CheckpointError, match=r"^scripts: .* a name that Unicode does not know; use names such as"):
        TextFrontEnd(tokenizer, scripts=frozenset({name}))


@pytest.mark.parametrize(
    ("text", "language", "segments"),
    [
        ("I have 3 cats", "en", ["I have three cats."]),
        ("I have 3 cats", "zh", ["I have三cats。"]),
        ("OK 2024", "zh", ["OK两千零二十四。"]),
        ("我有3只猫", "en", ["我有 three 只猫."]),
        ("我有3只猫", "zh", ["我有三只猫。"]),
    ],
)
def test_who_asks_chooses_the_language(text, language, segments, front_end):
    assert front_end.segments(text, language) == segments


def whole(end, text):
    """The segments of a text that is read, split and searched as a whole."""
    language = "zh" if contains_chinese(text) else "en"
    said = "".join(end._official.languages.read(block, language) for block in blocks(text.strip(), language))
    if language == "zh":
        said = replace_corner_mark(replace_blank(said.replace("\n", ""))).replace(".", "。").replace(" - ", "，")
        said = close_trailing_comma(remove_bracket(said))
    said = drop_symbols(said) if end._scripts else said
    measure = len if language == "zh" else end._num_tokens
    parts = (
        cut_long(piece, end._num_tokens, end._max_tokens) for piece, _ in split_paragraph([said], measure, language)
    )
    segments = [part for piece in parts for part in piece if not is_only_punctuation(part)]
    return list(find_spans(text, [(segments, "")], [(len(text), said)]))


LONG_ENGLISH = [
    *ENGLISH,
    "He waited, and waited (for hours), until the sea came in — grey and cold — and took the posts. ",
]


@pytest.mark.slow
@pytest.mark.parametrize("sentences", [LONG_ENGLISH, CHINESE, CHINESE + ENGLISH[1:3], [*LONG_ENGLISH, "I 😀 it! "]])
@given(data=st.data())
@settings(QUICK, max_examples=6)
def test_a_text_that_is_read_block_by_block_gives_the_segments_of_the_whole(sentences, data, front_end, latin):
    text = "".join(data.draw(st.lists(st.sampled_from(sentences), min_size=30, max_size=50)))
    end = latin if sentences is LONG_ENGLISH else front_end
    assert list(end.located(text)) == whole(end, text)


@pytest.mark.parametrize("marks", ["😀" * 400, "-#" * 300])
def test_marks_that_become_a_part_of_their_own_move_no_range(marks, counting):
    """Nobody says them, though what follows a segment held them."""
    text = f"{'The lazy dog slept, ' * 20}the quick one ran. A {marks} fox jumped over five more dogs. " * 3
    assert list(counting.located(text)) == whole(counting, text)


class Counting(Languages):
    """Reads letters and figures like a slow reader, in so many words; `count` blocks so far."""

    def __init__(self, words="nine "):
        super().__init__(str, lambda text: "".join(words if one == "9" else one for one in text), str)
        object.__setattr__(self, "count", 0)

    def read(self, block, rules, *rest, **more):
        object.__setattr__(self, "count", self.count + 1)
        return super().read(block, rules, *rest, **more)


@pytest.fixture
def counting(tokenizer):
    end = TextFrontEnd(tokenizer).as_written()
    end._official = OfficialNormalizer(Counting())
    return end


@pytest.mark.parametrize(
    ("unit", "most"),
    [
        ("The lazy dog slept. ", 2),
        ("好的好的好的。", 2),
        ("9", 10),
        ("9 9, ", 10),
        ("and so on ", 10),
        ("A.", 10),
        ("a", 10),
    ],
)
def test_the_first_segment_of_a_long_text_comes_before_the_rest_is_read(unit, most, counting):
    text = (unit * MAX_TEXT_CHARS)[:MAX_TEXT_CHARS]
    segments = counting.located(text)
    first = next(segments)
    assert is_speakable(first.spoken)
    assert counting._official.languages.count <= most
    found = [first, *segments]
    assert counting._official.languages.count >= MAX_TEXT_CHARS // MAX_BLOCK_CHARS
    assert found[-1].end == len(text)
    if most == 2:
        assert found == whole(counting, text)


@pytest.mark.parametrize("unit", ['"', "(", "=", "，", "😀", "- "])
def test_a_long_text_with_nothing_to_speak_is_refused_unread(unit, counting, monkeypatch):
    monkeypatch.setattr(counting, "_num_tokens", pytest.fail)
    with pytest.raises(InvalidText, match=r"nothing in .* can be spoken"):
        next(counting.located(unit * 9_000))
    assert counting._official.languages.count == 0


def test_reading_can_be_given_up_between_blocks(counting):
    left = []
    segments = counting.located("The lazy dog slept. " * 1_000, None, lambda: bool(left))
    next(segments)
    left.append(True)
    with pytest.raises(RequestCancelled):
        list(segments)
    assert counting._official.languages.count <= 2


@pytest.mark.parametrize("end", [" and '好'", " and \x07", "<|a|> \ud800"])
def test_a_long_text_is_checked_to_its_end_before_it_is_read(end, tokenizer):
    latin = TextFrontEnd(tokenizer, scripts=frozenset({"Latin"})).as_written()
    latin._official = OfficialNormalizer(Counting())
    with pytest.raises(InvalidText):
        next(latin.located("The lazy dog slept. " * 500 + end))
    assert latin._official.languages.count == 0
