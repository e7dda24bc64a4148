from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vivavoce.service.text.languages.reader import WHOLE_CHARS, Reader, load_reader

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

    def normalize(self, text: str) -> str:
        self.seen.append(text)
        assert self.unknown not in text
        return text.strip().replace("1", "one")


def test_text_that_can_be_read_is_read_once_and_whole() -> None:
    fake = FakeNormalizer()

    assert Reader("en", fake)(" 1 fish,  1 fish ") == "one fish,  one fish"
    assert fake.seen == ["1 fish,  1 fish"]


def test_only_the_part_at_fault_stays_as_it_was() -> None:
    assert Reader("en", FakeNormalizer())("1 dog, 1 cat for € 1. 1 cow") == "one dog, one cat for € one. one cow"


def test_spaces_in_a_row_are_mended_before_the_text_is_taken_apart() -> None:
    fake = FakeNormalizer(unknown="  ")

    assert Reader("en", fake)("1 dog,  1\n\ncat") == "one dog, one cat"
    assert fake.seen == ["1 dog,  1\n\ncat", "1 dog, 1 cat"]


@dataclass
class Swallower:
    def normalize(self, text: str) -> str:
        return ""


def test_text_is_not_swallowed() -> None:
    assert Reader("en", Swallower())("two words") == "two words"


@pytest.mark.parametrize("text", ["a" * 1800, "ab " * 700, "Some thing here. " * 120, "好，" * 900])
def test_long_text_is_read_in_blocks(text: str) -> None:
    fake = FakeNormalizer()

    assert Reader("en", fake)(text) == text.strip()
    assert all(len(block) <= WHOLE_CHARS for block in fake.seen)
    assert len(fake.seen) < 4 * len(text) / WHOLE_CHARS


@pytest.mark.parametrize(("blank", "seam"), [(" ", " "), ("\n", "\n"), (" \n", " \n"), ("", "")])
def test_white_space_at_seams_of_chinese_is_kept(blank: str, seam: str) -> None:
    assert (
        Reader("zh", FakeNormalizer())("好" * 400 + "。" + blank + "吗" * 400) == "好" * 400 + "。" + seam + "吗" * 400
    )


def test_white_space_at_seams_of_english_is_one_space() -> None:
    assert Reader("en", FakeNormalizer())("o" * 400 + "!  " + "x" * 400) == "o" * 400 + "! " + "x" * 400


def test_numbers_stay_with_their_words() -> None:
    fake = FakeNormalizer()

    Reader("en", fake)("we ran 5 km on May 5 " * 100)

    assert len(fake.seen) > 4
    assert not any(block.endswith(("5", "May")) or block.startswith(("5", "km")) for block in fake.seen[:-1])


@given(sentences=st.lists(st.sampled_from(SENTENCES), min_size=25, max_size=35))
@settings(deadline=None, max_examples=5, phases=[Phase.generate])
def test_english_blocks_read_as_the_whole(sentences: list[str]) -> None:
    reader = load_reader("en")
    text = " ".join(sentences[:12]) + "\n" + "\n".join(sentences[12:])

    assert len(text) > WHOLE_CHARS
    assert reader(text) == reader.normalizer.normalize(text)


@given(sentences=st.lists(st.sampled_from(CHINESE), min_size=60, max_size=80))
@settings(deadline=None, max_examples=5, phases=[Phase.generate])
def test_chinese_blocks_read_as_the_whole(sentences: list[str]) -> None:
    reader = load_reader("zh")
    text = "".join(sentences)

    assert len(text) > WHOLE_CHARS
    assert reader(text) == reader.normalizer.normalize(text.strip())


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
def test_english_that_wetext_cannot_read_whole(text: str, spoken: str) -> None:
    assert load_reader("en")(text) == spoken


def test_threads_share_a_reader() -> None:
    reader = load_reader("en")
    texts = [f"I have {number} apples and ${number}.50 on May {number + 1}, 1999" for number in range(24)]
    alone = [reader(text) for text in texts]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(reader, texts)) == alone
