"""Text that arrives comes out in whole words or sentences, early, and all of it."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidText
from vivavoce.frontend.text.sentence_stream import (
    MAX_HELD,
    SentenceSplitter,
    sentence_stream,
)
from vivavoce_textnorm import MAX_TEXT_CHARS
from vivavoce_textnorm.normalizer import MAX_HELD_WORD, whole_words


def joined(pieces):
    return [words for words, _ in whole_words(pieces)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Hello ", "there, ", "my friend."], ["Hello", " there,", " my friend."]),
        (["gar", "den", " gate"], ["garden", " gate"]),
        (["It", "'s", " fine"], ["It's", " fine"]),
        (["One. ", "", "Two."], ["One.", " Two."]),
        (["你好", "世界。"], ["你好", "世界。"]),
        (["caf", "e\u0301 noir"], ["cafe\u0301", " noir"]),
        ([" "], [" "]),
        ([], []),
    ],
)
def test_words_are_not_torn(pieces, expected):
    assert joined(pieces) == expected


@given(st.lists(st.text(alphabet="ab ,.é你", max_size=6), max_size=12))
def test_nothing_is_lost(pieces):
    parts = joined(pieces)
    assert "".join(parts) == "".join(pieces)
    assert all(parts)


def test_what_is_held_is_bounded():
    assert max(map(len, joined(["a" * 10] * 30))) <= MAX_HELD_WORD + 10
    long = "! " + "x " * 9998 + "!"
    parts = joined(["ab", long])
    assert "".join(parts) == "ab" + long
    assert max(map(len, parts)) <= MAX_TEXT_CHARS


def cut(*pieces):
    return [sentence.text for sentence in sentence_stream(pieces)]


def at_once(text):
    """What is given before the text has ended."""
    return [sentence.text for sentence in SentenceSplitter().add(text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["This is the first.", "Is this the second?", "What a great third!", "And the fourth"],
        ["今天天气真的很好。", "我们要去公园吗？", "当然要去公园啦！", "好"],
        ["今日はいい天気です。", "散歩に行きましょう"],
        ["He said “I am here.”", "She said “so am I.”", "(They were both there.)", "**It was very late.**", "Good"],
        ["他说：“我现在在这里。”", "她也在这里。"],
        ["It costs 3.14 dollars.", "Version 2.0.1 costs more."],
        ["Mr. Smith met Dr. J. R. Jones.", "Prof. Lee met Mt. Fuji."],
        ["The U.S. Army came at 5 p.m. sharp.", "He has a Ph.D. in that."],
        ["Take fruit, e.g. apples or pears.", "Take five, i.e. Five."],
        ["See No. 5 and Fig. 3 first.", "They met on Jan. 5 there."],
        ["We have apples, pears, etc. in here.", "We have apples, pears, etc.", "Then we go home."],
        ["It is 5 km. away from here.", "It is just 5 km.", "Then we are there."],
        ["No, I really don't.", "She came in 1st.", "The ‘Mr. Smith’ in that book."],
        ["Do you mean vitamin C?", "Yes, I mean that."],
        ["So then do I.", "I. M. Pei built this house."],
        ["Visit https://example.com/a.b?c=d!e now.", "Write to me@example.com please."],
        ["Well... maybe it is so...", "But I doubt it… really."],
        ["我想……也许不是这样吧……这样。", "好"],
        ["“Really so?” he asked us (as ever!) and left.", "Then all was quiet."],
        ["we write in lower case. ", "it still has ends. ", "how are you now? ", "fine"],
        ["Wait, what was that?!", "Nothing at all!!!", "All is well."],
        ["Python很容易学的.", "我们一起来学习吧?", "好"],
        ["यह एक वाक्य है।", "यह दूसरा वाक्य है।"],
    ],
)
def test_sentences(sentences):
    between = "" if any("\u3040" <= character <= "\u9fff" for character in "".join(sentences)) else " "
    # Chinese goes on without white space, where Latin begins too.
    assert cut(between.join(sentences)) == [sentence.strip() for sentence in sentences]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes. No. I do not think so.", ["Yes. No. I do not think so."]),
        ("Sure! I can help you. Bye.", ["Sure! I can help you.", "Bye."]),
        ("好。我们马上就出发吧。好。", ["好。我们马上就出发吧。", "好。"]),
        ("Title\n\nThe text of it.\n- One\r\n- Two", ["Title", "The text of it.", "- One", "- Two"]),
        ("Yes. \nNo", ["Yes.", "No"]),
        ("---\n***\nNow the text.\n---", ["---\n***\nNow the text.", "---"]),
        ("1. Take two eggs. 2. Mix them well.", ["1. Take two eggs.", "2. Mix them well."]),
        ("etc.\nfoo and bar", ["etc.", "foo and bar"]),
        ("This is the exam-\nine of it.\nNext", ["This is the exam-\nine of it.", "Next"]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_short_sentences_are_joined_in_a_line(text, expected):
    assert cut(text) == expected


@pytest.mark.parametrize("mark", [",", ";", ":", " -", " –", " —", "—", " --", ",”"])
def test_the_first_sentence_is_cut_at_a_clause(mark):
    clause = f"one two three four five six seven eight{mark}"
    assert cut(f"{clause} nine ten eleven, {clause} twelve") == [clause, f"nine ten eleven, {clause} twelve"]
    short = f"one two three four five six seven{mark} eight"
    assert cut(f"{short} nine") == [f"{short} nine"]


@pytest.mark.parametrize("mark", "，；：、")
def test_the_first_chinese_sentence_is_cut_at_a_clause(mark):
    assert cut("今" * 20 + mark + "天" * 30 + mark + "好。") == ["今" * 20 + mark, "天" * 30 + mark + "好。"]
    assert cut("今" * 19 + mark + "天。") == ["今" * 19 + mark + "天。"]


@pytest.mark.parametrize("inside", ["1,000", "12:30", "well-known", "pre- and", "10–20", "1，000", "a:b", "http://a.b"])
def test_marks_inside_of_words_end_no_clause(inside):
    text = f"one two three four five six seven eight {inside} nine"
    assert cut(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "I will look. ",
            "I will look.\n",
            "I will look\n",
            "I will look! S",
            "我现在去看一下。我",
            "He saw apples, etc. \n",
        ),
        *("Let me look this up for you right now, p", "He saw apples, etc. T", "He saw apples, etc." + " " * 9),
    ],
)
def test_a_sentence_comes_as_soon_as_it_is_complete(text):
    assert len(at_once(text)) == 1


@pytest.mark.parametrize(
    "text",
    ["I will look.", "I will look.”", "我现在去看一下。", "He saw apples, etc. ", "I see it...  ", "Yes. ", "Hi, "],
)
def test_what_may_go_on_is_held(text):
    assert at_once(text) == []


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("letters " * 200, " "),
        ("the garden, " + "and the green house, " * 50, ","),
        ("字" * 700, ""),
        ("x" * 1000, ""),
        ("!" * 1000, ""),
        ("a" + " " * 1000 + "b", ""),
        ("see " + "x" * 1000, ""),
    ],
)
def test_text_without_ends_is_cut_at_a_bound(text, ends):
    sentences = cut(text)
    assert len(sentences) > 1
    assert max(map(len, sentences)) <= MAX_HELD
    assert "".join("".join(sentences).split()) == "".join(text.split())
    if ends == ",":
        assert all(sentence.endswith(",") and len(sentence) >= MAX_HELD // 2 for sentence in sentences[1:-1])
    if ends == " ":
        assert {word for sentence in sentences for word in sentence.split()} == {"letters"}


def test_where_the_bound_falls():
    """It is counted from the last cut, and a character keeps its accents."""
    first = "One " + "two " * 40 + "three, and then four."
    assert [len(sentence) for sentence in cut("A b c. " + first + " " + "x" * 400)][2:] == [MAX_HELD, 100]
    accented = cut("n" + "e\u0301" * 400)
    assert all(sentence.endswith("e\u0301") for sentence in accented)
    assert len(accented) == 3
    assert [len(sentence) for sentence in cut("e" + "\u0301" * MAX_HELD)] == [MAX_HELD, 1]


FRAGMENTS = st.sampled_from(
    [
        *("Hello", " the", " quick", " fox", " Mr", "Mr. ", "U.S.", " I", "etc", " he", "'s", "3", "14"),
        *("e\u0301", "x" * 50),
        *(" ", "  ", "\n", " \n", "\r\n", " " * 7, " " * 8, " " * 9),
        *(".", ". ", "...", "…", "?", "! ", '"', "”", "“", ")", "*", ", ", ",", "; ", ":", " - ", "-", "—", "--"),
        *("«", "»", " »", "„", "“ ", "Das ist", " Nr", "am 3", " ул", "Sr. ", "です", "네", "<|en|>"),
        *("字", "你好世界", "我们都很好", "。", "，", "？", "。”", "（", "a b c d e f g h"),
    ]
)


@given(st.lists(FRAGMENTS, max_size=150).map("".join), st.lists(st.integers(0, 40), max_size=60))
def test_all_comes_out_in_its_place_and_the_cuts_depend_on_the_text_alone(text, lengths):
    sentences = list(sentence_stream([text]))
    for sentence in sentences:
        assert sentence.text
        assert sentence.text == sentence.text.strip() == text[sentence.start : sentence.end]
        assert len(sentence.text) <= MAX_HELD
    ends = [0, *(sentence.end for sentence in sentences)]
    starts = [*(sentence.start for sentence in sentences), len(text)]
    assert all(end <= start and not text[end:start].strip() for end, start in zip(ends, starts, strict=True))
    places = [0, *accumulate(lengths), None]
    assert list(sentence_stream(text[start:end] for start, end in pairwise(places))) == sentences


def test_a_piece_is_read_only_when_it_is_needed():
    pieces = iter(["It is one.", " It is", " two. It is three."])
    sentences = sentence_stream(pieces)
    assert next(sentences).text == "It is one."
    assert next(pieces) == " two. It is three."


@pytest.mark.parametrize(
    ("pieces", "message"), [(["a", 3], "int"), ([b"a"], "bytes"), (["a" * (MAX_TEXT_CHARS + 1)], str(MAX_TEXT_CHARS))]
)
def test_what_is_no_text_or_too_long_is_refused(pieces, message):
    with pytest.raises(InvalidText, match=message):
        cut(*pieces)
