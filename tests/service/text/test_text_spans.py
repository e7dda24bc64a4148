from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivavoce.errors import InvalidText
from vivavoce.service.text.checks import MAX_TEXT_CHARS
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.text.rules import is_speakable
from vivavoce.service.text.spans import find_spans

QUICK = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
ANY_TEXT = st.text(alphabet=st.characters(), max_size=80)
PUZZLING = st.text(alphabet="ab 1230.,:/$€%#&@\\\"'<>|[]{}-\n\té한好。²½", max_size=200)

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


def letters(text: str) -> str:
    return "".join(character for character in text if is_speakable(character))


def check(text: str, spans: tuple[tuple[int, int], ...], segments: list[str]) -> None:
    """The ranges follow one another and cover the text."""
    assert len(spans) == len(segments)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(text)
    assert all(start <= end for start, end in spans)


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
def test_each_segment_is_found(text: str, spoken: list[str], front_end: TextFrontEnd) -> None:
    segments = front_end.segments(text)
    assert [text[start:end] for start, end in find_spans(text, segments)] == spoken


@pytest.mark.parametrize(
    ("text", "segments", "spoken"),
    [
        ("I paid 3. 4 came.", ["I paid three.", " four came."], ["I paid 3. ", "4 came."]),
        ("3. 4. 5. Yes.", ["three. four.", " five. Yes."], ["3. 4. ", "5. Yes."]),
        ("From 12 34 on", ["From twelve ", "thirty four on."], ["From 12 ", "34 on"]),
        ("版本2.0.1好", ["版本二。", "零点一好。"], ["版本2.", "0.1好"]),
        ("在3（四）", ["在三", "四。"], ["在3", "（四）"]),
        ("We ... go!!! Now.", ["We. go!", " Now."], ["We ... go!!! ", "Now."]),
        ("A b.\n***\nC d.", ["A b.", " C d."], ["A b.\n", "***\nC d."]),
        ("ＡＢ Ｃ. d", ["AB c.", " d."], ["ＡＢ Ｃ. ", "d"]),
        ("abcdefgh", ["abc", "de", "fgh."], ["abc", "de", "fgh"]),
        ("9 " * 3, ["nine nine ", "nine."], ["9 9 ", "9 "]),
        ("!? 7", ["seven", "seven"], ["!? ", "7"]),
        ("什么？“好。”他说。", ["什么？", "“好。”他说。"], ["什么？", "“好。”他说。"]),
        ('他说："好。"你说："好。"', ["他说：", '"好。"', '你说："好。"'], ["他说：", '"好。"', '你说："好。"']),
        ('"Yes." "No." I', ['"Yes.', '" "No.', '" I.'], ['"Yes." ', '"No." ', "I"]),
    ],
)
def test_a_cut_is_found_though_what_is_around_it_was_rewritten(
    text: str, segments: list[str], spoken: list[str]
) -> None:
    spans = find_spans(text, segments)
    check(text, spans, segments)
    assert [text[start:end] for start, end in spans] == spoken


def test_no_segment_is_no_answer() -> None:
    with pytest.raises(ValueError, match="segments"):
        find_spans("a", [])


@pytest.mark.parametrize("sentences", [ENGLISH, CHINESE, CHINESE + ENGLISH[1:3]])
@given(data=st.data())
@QUICK
def test_what_a_range_holds_is_what_its_segment_says(
    sentences: list[str], data: st.DataObject, front_end: TextFrontEnd
) -> None:
    """Normalised by itself, each range's text is its segment."""
    # A text with Chinese in it is read in Chinese throughout.
    language = "好" if sentences is not ENGLISH else ""
    text = language + "".join(data.draw(st.lists(st.sampled_from(sentences), min_size=1, max_size=20)))
    segments = front_end.segments(text)
    spans = find_spans(text, segments)
    check(text, spans, segments)
    for (start, end), segment in zip(spans, segments, strict=True):
        assert letters(front_end.normalize(language + text[start:end])) == language + letters(segment)


@given(text=st.text(alphabet="ab1 ,.!？。你好\n😀", max_size=2000))
@QUICK
def test_every_letter_is_in_its_segments_range(text: str, plain: TextFrontEnd) -> None:
    if not is_speakable(text):
        return
    segments = plain.segments(text)
    spans = find_spans(text, segments)
    check(text, spans, segments)
    assert [letters(text[start:end]) for start, end in spans] == [letters(segment) for segment in segments]


@given(text=st.one_of(ANY_TEXT, PUZZLING))
@QUICK
def test_any_text_is_covered(text: str, front_end: TextFrontEnd, latin: TextFrontEnd) -> None:
    for end in (front_end, latin):
        try:
            segments = end.segments(text)
        except InvalidText:
            continue
        check(text, find_spans(text, segments), segments)


@given(text=st.text(max_size=60), segments=st.lists(st.text(max_size=20), min_size=1, max_size=8))
@QUICK
def test_segments_of_another_text_are_given_ranges_too(text: str, segments: list[str]) -> None:
    check(text, find_spans(text, segments), segments)


@pytest.mark.parametrize("unit", ["x", "长", "ab ", "dog, ", "7 ", "12. ", "[laughter]"])
def test_long_texts_without_sentences(unit: str, plain: TextFrontEnd) -> None:
    text = unit * (MAX_TEXT_CHARS // len(unit))
    segments = plain.segments(text)
    spans = find_spans(text, segments)
    check(text, spans, segments)
    assert [letters(text[start:end]) for start, end in spans] == [letters(segment) for segment in segments]


@pytest.mark.parametrize("sentences", [ENGLISH, CHINESE])
def test_long_texts(sentences: list[str], front_end: TextFrontEnd) -> None:
    text = ("".join(sentences) * 200)[:4_000]
    segments = front_end.segments(text)
    spans = find_spans(text, segments)
    check(text, spans, segments)
    starts = {text[start : start + 4] for start, _ in spans}
    known = "".join(sentences * 2)
    assert all(start in known for start in starts)
    assert max(end - start for start, end in spans) < 400
