"""Brackets and SSML: what they say, of which characters, what is refused; marks of the model pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from vivavoce.errors import InvalidText
from vivavoce.frontend.text.segmentation import TextSegment
from vivavoce.frontend.text.sentence_stream import sentence_stream
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import PRONUNCIATION_TOKENS, SPECIAL_TOKENS, TextTokenizer
from vivavoce_textnorm.inline_tags import FORMS, MAX_RUNS
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.ssml import find_runs
from vivavoce_textnorm.types import Settings
from vivavoce_textnorm.word_stream import natural_words

T = TypeVar("T")
_SECOND = tuple(one for one in SPECIAL_TOKENS if not one.startswith("<|"))
_THIRD = _SECOND + tuple(one for one in PRONUNCIATION_TOKENS if not one.startswith("<|"))
_ALL = frozenset(_THIRD)
_NONE: frozenset[str] = frozenset()


def said(text: str, language: str | None = "en", marks: frozenset[str] = _ALL) -> str:
    return read(text, language, Settings(marks=marks)).spoken


def segments(front_end: TextFrontEnd, text: str, language: str | None = None) -> list[TextSegment]:
    """Those of a text; their characters are all of it, in order."""
    found = list(front_end.located(text, language, reading="natural"))
    assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == len(text)
    return found


def or_refused(call: Callable[..., T], *given: object) -> tuple[T | None, InvalidText | None]:
    try:
        return call(*given), None
    except InvalidText as refused:
        return None, refused


@pytest.mark.parametrize(
    ("language", "text", "spoken"),
    [
        ("en", "[spell: NASA] and [spell: a-1]", "N A S A and A dash one"),
        ("en", "in [digits: 2024], [cardinal: 1999], [cardinal: -1,234.5]",
         "in two zero two four, one thousand nine hundred and ninety nine, "
         "minus one thousand two hundred and thirty four point five"),
        ("en", "the [ordinal: 3] in [year: 1999]", "the third in nineteen ninety nine"),
        ("en", "[date: 3/4/2024] at [time: 14:30]", "March fourth, twenty twenty four at fourteen thirty"),
        ("en", "[date: 3 March 2024]", "the third of March, twenty twenty four"),
        ("en", "[phone: 5551234], [phone: +1 555]", "five five five one two three four, plus one, five five five"),
        ("en", "[phone:911]now [digits: 1][digits: 2]", "nine one one now one two"),
        ("en", "# [spell: AB]\n\n- **[digits: 12]**", "A B. one two"),
        ("de", "am [date: 3/4/2024] die [ordinal: 3]", "am dritter April zweitausendvierundzwanzig die dritte"),
        ("zh", "我在[digits: 2024]和[spell: NASA]，[phone: 110]。", "我在二零二四和N A S A，幺幺零。"),
        ("en", "Wait [pause 0.5s] now", "Wait now"),
    ],
)  # fmt: skip
def test_brackets_are_said_in_the_language_of_their_sentence(language: str, text: str, spoken: str) -> None:
    assert said(text, language) == spoken


@pytest.mark.parametrize(
    "written",
    [
        "[pause 2s]",
        "[pause:2s]",
        "[pause=2s]",
        "[pause: 2000 ms]",
        '<break time="2s"/>',
        "<break time='2.0s' ></break>",
        '<break time="2,0S"/>',
    ],
)
@pytest.mark.parametrize("text", ["Hi {} there.", "Hi.{}There.", "你好{}再见。", "Hallo{} du."])
def test_a_pause_is_honoured_as_models_write_it(written: str, text: str) -> None:
    runs = find_runs(text.format(written), _NONE)
    assert [run.pause_s for run in runs] == [0, 2, 0]
    assert [run.plain for run in runs] == [*text.partition("{}")[:1], "", text.partition("{}")[2]]


def test_a_break_without_a_time_pauses_as_in_ssml() -> None:
    runs = find_runs('One <break/> two <break strength="strong"/> three <break time="soon"/>.', _NONE)
    assert [run.pause_s for run in runs] == [0, 0.4, 0, 0.7, 0]
    for unknown in ('time="soon"', 'strength="xweak"', 'strength="-strong"'):
        assert said(f"three <break {unknown}/> four") == "three four"


@pytest.mark.parametrize(
    "text",
    ["[date: tomorrow]", "[pause]", "[pause 5]", "[cardinal: many]", "[year: 20245]", "[Spell: AB]", "[digits: ]"],
)
def test_what_is_no_bracket_of_ours_is_text(text: str) -> None:
    runs = find_runs(text, _NONE)
    assert [run.plain for run in runs] == [text]


@pytest.mark.parametrize(
    ("inside", "spoken"),
    [
        ('<sub alias="World Wide Web">WWW</sub> <b>2</b> is it', "World Wide Web two is it"),
        ('<say-as interpret-as="characters">ok</say-as> <say-as interpret-as="number">1999</say-as>',
         "O K one thousand nine hundred and ninety nine"),
        ('<say-as interpret-as="date" format="dmy">3/4/2024</say-as>', "April third, twenty twenty four"),
        ('<say-as interpret-as="date" format="dmy">3/14/2024</say-as>', "March fourteenth, twenty twenty four"),
        ('<say-as interpret-as="telephone">555<b> 12</b></say-as>', "five five five, one two"),
        ('<say-as interpret-as="currency">$5</say-as> <say-as interpret-as="year">soon</say-as>', "five dollars soon"),
        ('<phoneme alphabet="pinyin" ph="hao4 nǚ zhuang1 er2">好</phoneme>', "[h][ào][n][ǚ][zh][uāng][ér]"),
        ('<phoneme alphabet="arpabet" ph="M AY0 N UW1 T">minute</phoneme>', "[M][AY0][N][UW1][T]"),
        ('<phoneme alphabet="ipa" ph="x">5</phoneme> <phoneme alphabet="pinyin" ph="qqq">6</phoneme>', "five six"),
        ("<p><s>One</s><s>Two!</s></p><p>Three</p>", "One. Two! Three."),
        ("a <emphasis>b</emphasis> <emphasis level='none'>c</emphasis>", "a <strong>b</strong> c"),
        ('<laughter>ha</laughter> [breath] <x:y z="1">on</x:y> <![CDATA[1 < 2]]> &amp; &#x35;<!-- no --> [spell: AB]',
         "<laughter>ha</laughter> [breath] on one is less than two and five A B"),
        ('You say <lang xml:lang="de">21</lang> and 21', "You say einundzwanzig and twenty one"),
    ],
)  # fmt: skip
def test_elements_of_ssml(inside: str, spoken: str) -> None:
    assert said(f" \n<speak>{inside}</speak>\n") == spoken
    assert said(f'<?xml version="1.0" encoding="utf-16"?><speak version="1.1">{inside}</speak>') == spoken


def test_phones_and_stress_need_marks_of_the_model() -> None:
    text = '<speak><phoneme alphabet="arpabet" ph="M AY0">my</phoneme> <emphasis>own</emphasis></speak>'
    assert said(text, marks=_NONE) == "my own"


def test_each_bracket_and_element_is_explained() -> None:
    text = "Hi [pause 0.5s] [spell: AB]"
    changed = [(text[one.start : one.end], one.spoken, one.rule) for one in read(text, "en").pieces if one.rule]
    assert ("[pause 0.5s]", "", "pause") in changed
    assert ("[spell: AB]", "A B", "say-as") in changed
    text = '<speak>Hi <break/> <sub alias="you">U</sub> <prosody rate="slow">there</prosody></speak>'
    changed = [(text[one.start : one.end], one.spoken, one.rule) for one in read(text, "en").pieces if one.rule]
    for expected in (
        ("<speak>", "", "speak"),
        ("<break/>", "", "pause"),
        ('<sub alias="you">U</sub>', "you", "sub"),
        ('<prosody rate="slow">', "", "prosody"),
    ):
        assert expected in changed


def test_pauses_and_rates_are_segments_of_their_own(front_end: TextFrontEnd) -> None:
    text = (
        '<speak xml:lang="de">Es ist <prosody rate="slow">3 Uhr <break time="300ms"/> <prosody rate="80%">ja</prosody>'
        '</prosody> und <lang xml:lang="en">at 5pm, right</lang> gut. <break time="1s"/><break strength="none"/>'
        "</speak>"
    )
    found = [(one.spoken.strip(), one.rate, one.pause_s) for one in segments(front_end, text)]
    assert found == [
        ("Es ist.", 1.0, 0.0),
        ("drei Uhr.", 0.75, 0.0),
        ("", 1.0, 0.3),
        ("ja.", pytest.approx(0.6), 0.0),
        ("und at five PM, right gut.", 1.0, 0.0),
        ("", 1.0, 1.0),
    ]


def test_characters_of_pauses_are_theirs(front_end: TextFrontEnd) -> None:
    text = " [pause 1s][pause 250 ms]Hi **you** [pause .5s]."
    found = [(text[one.start : one.end], one.spoken, one.pause_s) for one in segments(front_end, text)]
    assert found == [
        (" [pause 1s]", "", 1.0),
        ("[pause 250 ms]", "", 0.25),
        ("Hi **you** ", "Hi you.", 0.0),
        ("[pause .5s].", "", 0.5),
    ]


def test_long_texts_have_exact_places(front_end: TextFrontEnd) -> None:
    sentence = "It is [spell: AB] now, at 5 km. "
    text = sentence * 80 + "[pause 1s] End."
    found = segments(front_end, text)
    assert [one.pause_s for one in found[-2:]] == [1.0, 0.0]
    assert all((one.start % len(sentence), one.end % len(sentence)) == (0, 0) for one in found[:-3])
    assert "".join(one.spoken for one in found).count("It is A B now, at five kilometers.") == 80


@pytest.mark.parametrize("reading", ["official", "off"])
def test_other_readings_know_nothing_of_it(front_end: TextFrontEnd, reading: str) -> None:
    (one,) = front_end.located("Wait [pause 1s] here", reading=reading)  # type: ignore[arg-type]
    assert "pause" in one.spoken
    assert not one.pause_s


def test_pauses_alone_are_silence(front_end: TextFrontEnd) -> None:
    for text, seconds in [("[pause 1s] [pause 2s].", 3), ('<speak><break time="1s"/></speak>', 1)]:
        assert sum(one.pause_s for one in front_end.located(text, reading="natural")) == seconds
    with pytest.raises(InvalidText, match="can be spoken") as refused:
        list(front_end.located("<speak/>", reading="natural"))
    assert refused.value.nothing_to_say


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hi [pause 11s]", r"pause at character 3 is 11 s, the limit is 10 s"),
        ("[pause 10s] a " * 13, r"pauses add up to 130 s, the limit is 120 s"),
        ("a[pause 1ms]" * MAX_RUNS, rf"more than {MAX_RUNS} stretches"),
        ("<speak>", r"line 1, column 8: .*no element found"),
        ("\n\n <speak>\n <b></speak>", r"line 4, column 7: .*mismatched tag"),
        ("<speak>&nbsp;</speak>", r"line 1, column 8: .*undefined entity"),
        ("<speak/>more", r"junk after document element"),
        ('<!DOCTYPE speak [<!ENTITY a "b">]><speak>&a;</speak>', r"line 1, column \d+: SSML with <!DOCTYPE"),
        ('<?xml version="1.0"?><!DOCTYPE speak SYSTEM "http://x"><speak/>', r"SSML with <!DOCTYPE"),
        ("<speak><?do it?></speak>", r"line 1, column 8: SSML with <!DOCTYPE or <\?instructions"),
        (f"<speak>{'<a>' * 40}{'</a>' * 40}</speak>", r"more than 32 elements of SSML are open at character 100"),
        ('One <break time="500"/>', r"break '500' at character 4 is unknown; write time='500ms'"),
        ('One <break time="-1s"/>', r"break '-1s' at character 4 is unknown"),
        ('<speak><break time="soon"/>a</speak>', r"break 'soon' at character 7 is unknown"),
        ('<speak><break strength="big"/>a</speak>', r"break 'big' at character 7 is unknown"),
        ('<speak><break time="11s"/>a</speak>', r"pause at character 7 is 11 s, the limit is 10 s"),
        ('<speak><prosody rate="300%">a</prosody></speak>', r"rate 3 at character 7 is outside of 0\.5 … 2\.0"),
        ('<speak><prosody rate="soon">a</prosody></speak>', r"rate='soon' at character 7 is unknown"),
    ],
)
def test_what_cannot_be_is_refused_by_name(front_end: TextFrontEnd, text: str, message: str) -> None:
    with pytest.raises(InvalidText, match=message) as refused:
        next(front_end.located(text, reading="natural"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("known", [_SECOND, _THIRD], ids=["second", "third"])
def test_marks_pass_wherever_they_stand(known: tuple[str, ...]) -> None:
    """The first generation passes the second's: it was trained with some of them, as text."""
    marks = frozenset(known)
    for mark in known:
        for text, spoken in (
            (mark, mark),
            (f"a{mark}word, {mark} 5", f"a{mark}word, {mark} five"),
            (f"**{mark}word** _{mark}_", f"{mark}word {mark}"),
            (f"# {mark}Head\n\n- {mark} one\n- two {mark}", f"{mark}Head. {mark} one. two {mark}"),
            (f"[pause 1s]{mark}[spell: AB]{mark}", f"{mark}A B{mark}"),
        ):
            assert said(text, "en", marks) == spoken
        assert said(f"他{mark}好{mark}{mark}是2个", "zh", marks) == f"他{mark}好{mark}{mark}是两个"
        name = mark.strip("</>")
        inside = mark if mark[0] == "[" else f"<{name}>so</{name}>"
        assert said(f"<speak>I {inside} <prosody rate='fast'>go {inside}</prosody></speak>", "en", marks) == (
            f"I {inside} go {inside}"
        )


def test_tokenizers_have_these_marks_and_no_bracket_of_ours(tokenizer: TextTokenizer, third: TextFrontEnd) -> None:
    assert tokenizer.marks == set(_SECOND)
    assert third.marks == set(_THIRD)
    for mark in _THIRD:
        assert [run.plain for run in find_runs(mark, _NONE)] == [mark]
        assert not {" ", ":"} & set(mark)


def test_syllables_in_a_row_are_no_stretch_of_latin_words() -> None:
    assert said("他[h][ào][n][ǚ]。", "zh") == "他[h][ào][n][ǚ]。"


def test_random_ssml_is_read_or_refused(front_end: TextFrontEnd) -> None:
    chance = random.Random(3)
    bits = [
        "<p>", "</p>", "<s>", "</s>", "<break/>", '<break time="1ms"/>', '<sub alias="5 km">', "</sub>", "é", "中文 2",
        '<say-as interpret-as="date">', '<say-as interpret-as="cardinal">', "</say-as>", "12.5", "1/2/2003", " a ",
        "\n", '<prosody rate="slow">', "</prosody>", "<lang xml:lang='zh'>", "</lang>", "&amp;", "&#8364;",
        "<![CDATA[", "]]>", "[pause 1ms]", "[spell: é5]", "[laughter]", "<", "\U000f0000", "https://a.b/", "  ", "\r\n",
    ]  # fmt: skip
    read_whole = 0
    for _ in range(1_500):
        chosen, open_ = list[str](), list[str]()
        for bit in chance.choices(bits, k=chance.randint(1, 14)):
            if bit.startswith("</") and open_ and chance.random() < 0.95:
                bit = open_.pop()
            elif bit[0] == "<" and bit[1:2].isalpha() and bit[-2] != "/":
                open_.append(f"</{bit[1:-1].split()[0]}>")
            chosen.append(bit)
        text = "<speak>" + "".join(chosen + open_[::-1]) + "</speak>"
        reading, refused = or_refused(read, text, None, Settings(marks=_ALL))
        if reading is None:
            assert "well-formed" in str(refused), text
            continue
        read_whole += 1
        assert [one.start for one in reading.pieces] == [0, *(one.end for one in reading.pieces[:-1])], text
        assert reading.pieces[-1].end == len(text)
        assert all(one.rule or one.spoken == text[one.start : one.end] for one in reading.pieces), text
        found, refused = or_refused(segments, front_end, text)
        assert found or (refused and refused.nothing_to_say), text
    assert read_whole > 300


@pytest.mark.slow
@pytest.mark.parametrize("how", FORMS)
def test_any_content_of_a_bracket_is_read(how: str) -> None:
    chance = random.Random(how)
    for _ in range(150):
        content = "".join(chance.choices("0123456789-+.,/: ()aé中XmpM٣'", k=chance.randint(1, 45))).strip() or "1"
        for language in ("en", "de", "zh", "ru", "ja", "ko", "fr", "el"):
            read(f"[{how}: {content}]", language)


def test_sentences_that_arrive_tear_no_bracket() -> None:
    text = (
        "[pause 1s]Hello there, this is the first long clause of it: go [time: 14:30] now. [pause .5s]\n[pause 1s] End."
    )
    for size in (1, 3, 200):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found = list(sentence_stream(pieces, _NONE))
        assert all(text[one.start : one.end] == one.text for one in found)
        assert found[0].text.startswith("[pause 1s]Hello there,")
        assert all(one.text.count("[") == one.text.count("]") for one in found)
        runs = [run.pause_s for one in found for run in find_runs(one.text, _NONE) if run.pause_s]
        assert runs == [1.0, 0.5, 1.0]


@pytest.mark.parametrize("size", [1, 4, 500])
def test_words_that_arrive_have_commas_for_pauses(size: int) -> None:
    def words(text: str) -> str:
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found = list(natural_words(pieces, "en", Settings(marks=_ALL)))
        assert found[-1][1] == len(text)
        return "".join(one for one, _ in found)

    assert words("Hello [pause 200ms] there[pause 1s] you. [pause 1s] I [laughter] am [spell: AB]") == (
        "Hello, there, you. I [laughter] am A B"
    )
    assert words(' <speak>Hi <break time="1s"/> it is <sub alias="5 km">x</sub></speak>') == "Hi, it is five kilometers"


def test_ssml_that_arrives_is_one_sentence() -> None:
    text = '<speak>Das ist es. <break time="1s"/> Und das nicht.</speak>'
    (one,) = sentence_stream(list(text), _NONE)
    assert (one.text, one.language) == (text, "de")
    with pytest.raises(InvalidText, match="limit of"):
        list(sentence_stream(["<speak>", *["a" * 10_000] * 3], _NONE))
