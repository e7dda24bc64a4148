"""A text that arrives in pieces is read as a whole one would be, each word as early as that can be."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import chain, pairwise
from threading import Thread

import pytest

from tests.textnorm.acceptable import load_cases
from tests.textnorm.test_reader import _texts
from vivavoce.errors import InvalidText
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import SPECIAL_TOKENS
from vivavoce_textnorm.lexicon import Lexicon
from vivavoce_textnorm.normalizer import whole_words
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.types import Settings
from vivavoce_textnorm.verbalizer import VERBALIZERS
from vivavoce_textnorm.word_stream import MOST_HELD, READING, WordStream, natural_words

_SETTINGS = Settings(marks=frozenset(SPECIAL_TOKENS))
_TIGHT = ("zh", "yue", "ja")
_LONG = """\
# A long heading of more than sixty-four characters that goes on and on to the end

Here is **some bold text which is so long that nobody would ever hold all of it back before it is spoken** and *an
italic stretch that is long enough to have left what is remembered behind when it closes at last* then more.

- **First item:** it costs $3.50 a month, and no mark ends this line although it is long enough to be a sentence
- **Second item:** see [the documentation of a thing of rather long a name, it goes on](https://example.com/a?b=1) now
1. First, take 2 eggs

| Name | Price |
|---|---|
| Apple pie with cream | $3.50 |

```python
print("hello world and more words", 5)
    x = i * 2
```

The <span class="a b c d e f g">word</span> is on Mon, Jan 5 at 5pm. On the one hand no, on the other hand yes.
"""


def _arrived(pieces: Iterable[str], language: str | None, settings: Settings = _SETTINGS) -> list[tuple[str, int]]:
    text = WordStream(language, settings)
    return [*chain.from_iterable(map(text.add, pieces)), *text.end()]


def _torn(text: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randint(1, 30)))
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


def _texts_of(language: str, chance: random.Random) -> list[str]:
    """Those of the table, and paragraphs and lines of some of them."""
    texts = [case.text.replace("⏎", "\n").replace("⇥", "\t") for case in load_cases(language)]
    texts = [text for text in texts if "<break" not in text]  # a comma here
    between = "" if language in _TIGHT else " "
    joined = [joint.join(chance.sample(texts, 4)) for joint in (between, "\n", "\n\n") * 4]
    return [*texts, *joined, *([_LONG] if language == "en" else ())]


@pytest.mark.slow
@pytest.mark.parametrize("language", VERBALIZERS)
def test_a_text_that_arrives_is_read_as_a_whole_one(language: str) -> None:
    chance = random.Random(11)
    for text in _texts_of(language, chance):
        said = _arrived([text], language)
        assert _arrived(_torn(text, chance), language) == said, text
        assert "".join(words for words, _ in said) == read(text, language, _SETTINGS).spoken, text


@pytest.mark.parametrize(
    ("language", "text"),
    [("en", "Open Mon-Fri, and on Sat night too."), ("de", "Mo-Fr geschlossen, und So zu wie immer.")],
)
def test_days_without_a_full_stop_are_read(language: str, text: str) -> None:
    assert "".join(words for words, _ in _arrived(text, language)) == read(text, language, _SETTINGS).spoken != text


@pytest.mark.slow
def test_what_is_given_depends_on_the_text_alone_and_comes_in_order() -> None:
    chance = random.Random(13)
    for place, text in enumerate(_texts(250)):
        language = ("en", "zh", "de", None)[place % 4]
        said = _arrived([text], language)
        assert _arrived(text, language) == _arrived(_torn(text, chance), language) == said, text
        ends = [0, *(end for _, end in said)]
        assert all(start < end <= len(text) for start, end in pairwise(ends)), text


def _at_once(text: str, language: str | None = "en", settings: Settings = _SETTINGS) -> str:
    """What is given before the text has ended."""
    return "".join(words for words, _ in WordStream(language, settings).add(text))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("Hello", ""),
        ("Hello ", "Hello"),
        ("Hello, ", "Hello,"),
        ("don't well-known (so) “yes” ", "don't well-known (so) “yes”"),
        ("I paid $3.50 for ", "I paid"),
        ("I paid $3.50 for it ", "I paid three dollars and fifty cents for it"),
        ("and we ", "and we"),
        ("and/or they came ", "and or they came"),
        ("Dr. Smith ", ""),
        ("Dr. Smith came ", "Doctor Smith came"),
        ("May we go ", "May we go"),
        ("May 5 we go ", "May fifth we go"),
        ("here <!-- one two three four five ", "here"),
        ("the *very good text ", "the very good text"),
        ("well [laughter] ", "well"),
        ("well [laughter] they came ", "well [laughter] they came"),
        ("你好世界", "你好世界"),
        ("我有2个苹果", "我有"),
        ("我有2个苹果和一个", "我有两个苹果和一个"),
        ("我有2个。", "我有两个。"),
    ],
)
def test_words_are_given_as_soon_as_they_cannot_change(text: str, given: str) -> None:
    assert _at_once(text, "zh" if given > "一" or "我" in text else "en") == given


def test_the_language_is_told_from_what_has_come() -> None:
    german = "Das ist nicht sehr viel und wir haben es auch. Es kostet 3,50 € im Monat, und 21 Leute kommen um 5 Uhr."
    assert (
        "".join(words for words, _ in _arrived(german.split("s"), None)) == read(german.replace("s", ""), None).spoken
    )


def test_words_of_a_lexicon_are_not_torn() -> None:
    settings = Settings(lexicon=Lexicon({"New York": "the big apple", "重庆": "崇庆", "SQL": "sequel"}))
    assert _at_once("go to New York or they came ", "en", settings) == "go to the big apple or they came"
    assert "".join(words for words, _ in _arrived("我在重庆写SQL呢", "zh", settings)) == "我在崇庆写sequel呢"


@pytest.mark.parametrize(
    "text",
    [
        " ".join(map(str, range(200))),
        ", ".join(f"{number}.5 km" for number in range(90)),
        "+1 " + "(555) 123-4567 " * 30,
        "https://a.b/" + "c/" * 500,
        "5" * 700,
        "a" * 700,
        "x " + "😀" * 500 + " y",
        "<a " + "word " * 200 + "> x",
        "\n" * 700 + "b",
    ],
)
def test_what_is_held_is_bounded_and_nothing_is_said_twice(text: str) -> None:
    held = 0
    said: list[tuple[str, int]] = []
    arriving = WordStream("en", _SETTINGS)
    for place, one in enumerate(text, start=1):
        said += arriving.add(one)
        silent = not text[said[-1][1] if said else 0 : place].strip("\n😀")
        held = max(held, 0 if silent else place - (said[-1][1] if said else 0))
    assert held <= MOST_HELD + 1
    words = "".join(one for one, _ in [*said, *arriving.end()])
    if max(map(len, text.split())) < MOST_HELD and "<" not in text:
        assert words.split() == read(text, "en", _SETTINGS).spoken.split()


@pytest.mark.slow
def test_ids_are_those_of_the_whole_reading(front_end: TextFrontEnd) -> None:
    """Wherever those of a text that is spoken as it is written would be."""
    chance = random.Random(17)
    compared = 0
    for language in ("en", "de", "fr", "ru", "ko"):  # without spaces, text passes as it comes
        for text in _texts_of(language, chance):
            whole, pieces = read(text, language, _SETTINGS).spoken, _torn(text, chance)
            plain = [front_end.encode(words) for words, _ in whole_words(_torn(whole, chance))]
            if tuple(chain.from_iterable(plain)) == front_end.encode(whole):
                said = [front_end.encode(words) for words, _ in natural_words(pieces, language, _SETTINGS)]
                assert tuple(chain.from_iterable(said)) == front_end.encode(whole), text
                compared += 1
    assert compared > 300


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidText, match="int"):
        list(natural_words([3], "en", _SETTINGS))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "language", "spoken"),
    [
        ("Flour\nSugar\nTwo eggs", "en", "Flour. Sugar. Two eggs"),
        ("You need:\nA pan\nA lid\nHeat both for an hour.", "en", "You need: A pan. A lid. Heat both for an hour."),
        ("面粉\n糖\n两个鸡蛋", "zh", "面粉。糖。两个鸡蛋"),
        ("Mehl\nZucker\nZwei Eier", "de", "Mehl. Zucker. Zwei Eier"),
        ("밀가루\n설탕\n달걀", "ko", "밀가루. 설탕. 달걀"),
        ("Мука\nСахар", "ru", "Мука. Сахар"),
        ("The bus leaves for\nLondon", "en", "The bus leaves for London"),
        ("A short line\nthat goes on", "en", "A short line that goes on"),
        ("A paragraph that was wrapped at\nForty letters goes on.", "en", None),
    ],
)
def test_short_lines_pause_as_items_of_a_list_do(text: str, language: str, spoken: str | None) -> None:
    """A wrapped paragraph does not: its lines are longer, or go on in lower case or behind a word such as "for"."""
    assert read(text, language, _SETTINGS).spoken == (spoken or text.replace("\n", " "))
    for step in (1, 2, 5):
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        assert "".join(words for words, _ in _arrived(pieces, language)) == (spoken or text.replace("\n", " "))


@pytest.mark.parametrize("pieces", [["It is ", "11:42 now."], ["<speak>It is 11:42.</speak>"]])
def test_words_that_arrive_are_read_while_no_other_text_is(pieces):
    said = []
    reading = Thread(target=lambda: said.extend(natural_words(pieces, "en", Settings())))
    with READING:
        reading.start()
        reading.join(0.2)
        assert reading.is_alive()
    reading.join()
    assert "eleven forty two" in "".join(words for words, _ in said)
