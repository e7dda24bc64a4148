"""Numbers, dates and units in words, by the official rules: wetext made safe for any text, and the rules around it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier, BrokenBarrierError

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vivavoce_textnorm import MAX_BLOCK_CHARS, blocks, is_speakable
from vivavoce_textnorm.official import (
    Languages,
    WetextNormalizer,
    close_trailing_comma,
    load_reader,
    number_words,
    remove_bracket,
    replace_blank,
    replace_corner_mark,
    spell_out_number,
    spoken_form,
)


@pytest.mark.parametrize(
    ("rule", "cases"),
    [
        (replace_blank, {"a b": "a b", "a  b": "ab", "a 好": "a好", "好 a": "好a", "é b": "éb", " a ": "a"}),
        (replace_blank, {"a\n b": "a\n b", "": ""}),
        (is_speakable, {"": False, "?!…": False, "😀": False, "❤️": False, "a!": True, "½": True}),
        (close_trailing_comma, {"好，": "好。", "好,,": "好。", "好、，,": "好。"}),
        (lambda text: spell_out_number(text, "<{}>".format), {"12a3²b. 45": "<12>a<3²>b. <45>"}),
    ],
)
def test_rules(rule, cases):
    assert {text: rule(text) for text in cases} == cases


def test_digits_in_words():
    cases = {
        "0": "zero",
        "007": "seven",
        "2024": "two thousand and twenty-four",
        "12345": "twelve thousand, three hundred and forty-five",
        "²": "zero",
        "٣": "three",
        "1" * 37: " ".join(["one"] * 37),
    }
    assert {digits: number_words(digits) for digits in cases} == cases


SENTENCES = (
    "I paid $3.50 on May 5, 2024!",
    "Is it 20% off?",
    "Dr. Smith lives at 221B Baker St. in London.",
    "No. 5 is alive.",
    'She said: "Go home."',
    "It happened in 1999; nobody cared.",
    "See https://x.com/y for more.",
    "At 10:30 a.m. we left.",
    "The lazy dog slept.",
)
CHINESE = (
    "今天是2024年3月5日，气温-3℃。",
    "价格是3.14元！",
    "hello world 你好。",
    "1/2的人，20%的钱。",
    "第1行\n",
    "好 2 好，",
)


@dataclass
class FakeNormalizer:
    """Writes 1 as "one"; like wetext it strips the text and fails, as a whole, where it meets what it does not know."""

    unknown: str = "€"
    seen: list[str] = field(default_factory=list)

    def normalize(self, text):
        self.seen.append(text)
        assert self.unknown not in text
        return text.strip().replace("1", "one")


def read(reader, text):
    """Block by block."""
    return "".join(map(reader, blocks(text.strip(), reader.language)))


@pytest.mark.parametrize(
    ("unknown", "text", "spoken", "seen"),
    [
        # What can be read is read once and whole.
        ("€", " 1 fish,  1 fish ", "one fish,  one fish", ["1 fish,  1 fish"]),
        # Only the part at fault stays as it was.
        ("€", "1 dog, 1 cat for € 1. 1 cow", "one dog, one cat for € one. one cow", None),
        # Spaces in a row are mended before the text is taken apart.
        ("  ", "1 dog,  1\n\ncat", "one dog, one cat", ["1 dog,  1\n\ncat", "1 dog, 1 cat"]),
    ],
)
def test_text_is_taken_apart_no_further_than_it_must_be(unknown, text, spoken, seen):
    fake = FakeNormalizer(unknown)
    assert read(WetextNormalizer("en", fake.normalize), text) == spoken
    assert seen is None or fake.seen == seen


def test_text_is_not_swallowed():
    assert WetextNormalizer("en", lambda text: "")("two words") == "two words"


@pytest.mark.parametrize("text", ["a" * 1800, "ab " * 700, "Some thing here. " * 120, "好，" * 900])
def test_long_text_is_read_in_blocks(text):
    fake = FakeNormalizer()
    assert read(WetextNormalizer("en", fake.normalize), text) == text.strip()
    assert all(len(block) <= MAX_BLOCK_CHARS for block in fake.seen)
    assert len(fake.seen) < 4 * len(text) / MAX_BLOCK_CHARS


@pytest.mark.parametrize("blank", [" ", "\n", " \n", ""])
def test_white_space_at_seams_of_chinese_is_kept(blank):
    text = "好" * 400 + "。" + blank + "吗" * 400
    assert read(WetextNormalizer("zh", FakeNormalizer().normalize), text) == text


def test_numbers_stay_with_their_words():
    fake = FakeNormalizer()
    read(WetextNormalizer("en", fake.normalize), "we ran 5 km on May 5 " * 100)
    assert len(fake.seen) > 4
    assert not any(block.endswith(("5", "May")) or block.startswith(("5", "km")) for block in fake.seen[:-1])


@given(sentences=st.lists(st.sampled_from(SENTENCES), min_size=25, max_size=35))
@settings(deadline=None, max_examples=5, phases=[Phase.generate])
def test_english_blocks_read_as_the_whole(sentences):
    reader = load_reader("en")
    text = " ".join(sentences[:12]) + "\n" + "\n".join(sentences[12:])
    assert len(text) > MAX_BLOCK_CHARS
    assert read(reader, text) == reader.normalize(text)


@given(sentences=st.lists(st.sampled_from(CHINESE), min_size=60, max_size=80))
@settings(deadline=None, max_examples=5, phases=[Phase.generate])
@pytest.mark.slow
def test_chinese_blocks_read_as_the_whole(sentences):
    reader = load_reader("zh")
    text = "".join(sentences)
    assert len(text) > MAX_BLOCK_CHARS
    assert read(reader, text) == reader.normalize(text.strip())


@given(text=st.text(alphabet="好a1 -—.，,\n²（）", min_size=1_000, max_size=1_900))
@settings(deadline=None, max_examples=20, phases=[Phase.generate])
def test_no_rule_looks_across_the_end_of_a_piece(text):
    said = replace_corner_mark(replace_blank(text.strip().replace("\n", ""))).replace(".", "。").replace(" - ", "，")
    pieces = [words for words, _ in spoken_form(text, "zh", lambda block, rules: block)]
    assert "".join(pieces) == close_trailing_comma(remove_bracket(said))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("It costs 3€.", "It costs three euro."),
        ("#1 fan", "number one fan"),
        ("two  spaces, 2 words", "two spaces, two words"),
        ("see [3] and Mr. X", "see [ three ] and Mister X"),
        ("I have 3😀 left", "I have three 😀 left"),
        ("café3 or 4", "café three or four"),
    ],
)
def test_english_that_wetext_cannot_read_whole(text, spoken):
    assert load_reader("en")(text) == spoken


def test_threads_do_not_mix_their_numbers():
    before, read = sys.getswitchinterval(), partial(Languages(str, str, str).read, rules="en")
    numbers = [str(n * 7919) for n in range(1, 400)]
    alone = [number_words(number) for number in numbers]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(read, numbers * 4)) == alone * 4
    finally:
        sys.setswitchinterval(before)


def test_threads_read_one_block_after_the_other():
    together = Barrier(2)
    read = partial(Languages(lambda block: str(together.wait(0.2)), str, str).read, rules="zh")
    with ThreadPoolExecutor(2) as pool:
        for reading in [pool.submit(read, "好") for _ in range(2)]:
            with pytest.raises(BrokenBarrierError):
                reading.result()
