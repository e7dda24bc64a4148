"""What holds for any text: pieces cover it, its own output is read as it is, and the model's marks pass."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import SPECIAL_TOKENS, TextTokenizer
from vivavoce_textnorm.lexicon import Lexicon
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.types import Settings
from vivavoce_textnorm.verbalizer import VERBALIZERS

_SETTINGS = Settings(marks=frozenset(SPECIAL_TOKENS))
_WRITTEN = (
    "1 0 2024 3.5 1,000 - – ~ / : . .. , $ € ¥ % km m² °C am pm th s St. Dr. No. a I XIV Louis * ** _ ` ``` ~~ # ## "
    "< > <b> </b> <br/> &amp; & [ ] [a](b) ) ( | |---| 😀 ❤️ 👍🏽 https://a.b www. @ a@b.c C:\\ /etc "
    ":: 中 文 年 月 第 个 "
    "， 。 の か 한 я é [laughter] <|en|> ½ ² Ⅲ １ ①"
    " ٣ १ = + × ^ <!-- --> <script> ' \" ’ “ ” +1 ISBN \\ ! ? IV U.S. "
    "24/7 x 3x4 v2.0 +86 13812345678 { } $5 -5 (5) and the etc. Mon-Fri 5pm 9:30 1/2 3-2 10:1"
)
_BITS = _WRITTEN.split(" ")


def _texts(count: int) -> list[str]:
    """Random mixtures of all that rules look for, runs of one thing, and pieces of the tables' texts."""
    chance = random.Random(7)
    bits = [*_BITS, " ", "  ", "\n", "\n\n", "\u3000", "\u00a0", "\u200d"]
    folder = Path(__file__).parent
    written = [
        line.split("\t")[1]
        for language in VERBALIZERS
        for line in (folder / f"{language}.tsv").read_text("utf-8").splitlines()[1:]
    ]

    def one() -> str:
        kind = chance.random()
        if kind < 0.5:
            return "".join(chance.choice(bits) for _ in range(chance.randint(1, 40)))
        if kind < 0.6:
            return (chance.choice(bits) + chance.choice(bits)) * chance.randint(1, 60)
        letters = list(chance.choice(written) + chance.choice(written))
        for _ in range(chance.randint(0, 8)):
            letters.insert(chance.randrange(len(letters) + 1), chance.choice(bits))
        return "".join(letters)[chance.randrange(20) :]

    return [one() for _ in range(count)]


def _check(texts: list[str]) -> None:
    for place, text in enumerate(texts):
        language = (None, *VERBALIZERS)[place % 11]
        if text.lstrip().startswith("<speak"):
            continue  # torn SSML is refused
        reading = read(text, language, _SETTINGS)
        at = 0
        for piece in reading.pieces:
            assert piece.start == at <= piece.end, (text, piece)
            assert piece.rule or piece.spoken == text[piece.start : piece.end], (text, piece)
            at = piece.end
        assert at == len(text)
        assert read(reading.spoken, language, _SETTINGS).spoken == reading.spoken, text


def test_pieces_cover_a_text_and_its_reading_is_read_as_it_is() -> None:
    _check(_texts(400))


@pytest.mark.long
def test_so_they_do_for_ten_thousand_texts() -> None:
    _check(_texts(10_000))


@pytest.mark.parametrize("tag", [*SPECIAL_TOKENS, "<|en|>", "<|yue|>"])
def test_marks_of_the_model_pass_and_win_over_markup(tag: str) -> None:
    assert read(f"**{tag}** I have 3 of them.{tag}", "en", _SETTINGS).spoken == f"{tag} I have three of them.{tag}"


def test_phones_and_pinyin_pass_where_the_model_knows_them(tokenizer: TextTokenizer, third: TextFrontEnd) -> None:
    assert {"[laughter]", "<strong>", "</strong>"} < tokenizer.marks < third._tokenizer.marks
    assert read("[M] or [h]", "en", Settings(marks=tokenizer.marks)).spoken == "M or h"
    settings = Settings(marks=third._tokenizer.marks)
    assert read("a [M][AY0][N][UW1][T] detail", "en", settings).spoken == "a [M][AY0][N][UW1][T] detail"
    assert read("爱好[h][ào]", "zh", settings).spoken == "爱好[h][ào]"


def test_pieces_say_what_was_changed_where_and_by_which_rule() -> None:
    text = "It is **5** km."
    changed = [(text[one.start : one.end], one.spoken, one.rule) for one in read(text, "en").pieces if one.rule]
    assert changed == [("**", "", "emphasis"), ("5** km", "five kilometers", "unit")]


@pytest.mark.parametrize(
    ("text", "language", "spoken"),
    [
        ("价格$20的App", None, "价格二十美元的App"),
        ("Das Meeting at 5pm", "de", "Das Meeting at five PM"),
        ("他说I have 3 apples，有2个。", None, "他说I have three apples，有两个。"),
        ("World War II, 10 am, room 5", None, "World War two, ten AM, room five"),
        ("War Museum: 9 am - 5 pm, 12 seats", None, "War Museum: nine AM to five PM, twelve seats"),
        ("World War I, I am, Henry VIII", None, "World War one, I am, Henry the eighth"),
        ("I am 5", None, "I am five"),
        ("Ich war am 3. Mai 2 mal da.", None, "Ich war am dritten Mai zwei mal da."),
        ("I 3 libri", None, "I tre libri"),
        ("3 + 4", "zh", "三 加 四"),
        ("3 + 4", "en", "three plus four"),
    ],
)
def test_a_stretch_is_read_in_the_language_of_its_words(text: str, language: str | None, spoken: str) -> None:
    assert read(text, language).spoken == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Bake 25-30 min.\n3. Serve hot.", "Bake twenty five to thirty minutes. three. Serve hot."),
        ("- 5 min.\n- 10 min.", "five minutes. ten minutes."),
        ("- 5 ml.\n- 10 oz.\n- 3 lbs.\n\nDone", "five milliliters. ten ounces. three pounds. Done"),
        ("It took us 5 min.\nto run 3 mi. more.", "It took us five minutes to run three miles more."),
    ],
)
def test_the_full_stop_of_a_unit_ends_a_line(text: str, spoken: str) -> None:
    assert read(text, "en").spoken == spoken


def test_numbers_of_a_date_have_the_order_of_the_country() -> None:
    for language, march, text in (("en", True, "Due 3/4/2026."), ("en-GB", False, "Due 3/4/2026.")):
        said = read(text, language).spoken
        assert ("March fourth" in said, "the third of April" in said) == (march, not march)
    assert read("on 25/12, on 12/3", "en-GB").spoken == "on the twenty fifth of December, on the twelfth of March"
    assert read("by 5/6; March 3rd", "en-GB").spoken == "by five sixths; March third"
    assert read("[date: 3/4/2026]", "en-GB").spoken == "the third of April, twenty twenty six"
    british = '<speak xml:lang="en-GB">On 3/4/2026. <s xml:lang="en">On 3/4/2026.</s></speak>'
    assert read(british).spoken == "On the third of April, twenty twenty six. On March fourth, twenty twenty six."


@pytest.mark.parametrize("language", VERBALIZERS)
@pytest.mark.parametrize("text", ["{}x4", "1.{}x4", "{}:30", "12:{}", "1e{}", "1-{}", "No. {}", "第{}年"])
def test_more_digits_than_python_counts_with_are_said_one_by_one(language: str, text: str) -> None:
    assert len(read(text.format("3" * 5_000), language).spoken) >= 5_000


@pytest.mark.parametrize(
    ("digits", "groups"),
    [
        ("1234567", "7"),
        ("12345678", "4 4"),
        ("123456789", "3 3 3"),
        ("4008208820", "3 3 4"),
        ("15912345678", "3 4 4"),
        ("1234567890123", "4 4 5"),
        ("110101199003078888", "6 4 4 4"),
        ("6222021234567890123", "4 4 4 4 3"),
    ],
)
def test_long_numbers_are_said_in_groups(digits: str, groups: str) -> None:
    for language, text in (("en", f"Account number {digits}."), ("zh", f"编号{digits}。")):
        said = read(text, language).spoken.rstrip(".。").removeprefix("Account number ").removeprefix("编号")
        parts = said.split(", ") if language == "en" else said.split("，")
        lengths = [len(part.split()) if language == "en" else len(part) for part in parts]
        assert lengths == list(map(int, groups.split())), said


def test_the_blank_before_something_silent_goes_with_it() -> None:
    assert read("Good 【4:0†source】. Fine <!-- 1 -->, too ![](a.png)!", "en").spoken == "Good. Fine, too!"
    pieces = read("Good 【4:0†source】.", "en").pieces
    assert [(one.spoken, one.rule) for one in pieces] == [("Good", None), ("", "spaces"), ("", "source"), (".", None)]
    assert read("It costs <b>.5</b> euros", "en").spoken == "It costs zero point five euros"


def test_emojis_are_silent_or_named() -> None:
    assert read("Good 👍🏽 day 😀!", "en").spoken == "Good day!"
    assert read("Press 1️⃣, then 4️⃣2️⃣.", "en").spoken == "Press one, then forty two."
    named = read("Good 👍🏽 day 😀!", "en", Settings(named_emojis=True)).spoken
    assert named == "Good thumbs up sign day grinning face!"


def test_words_of_a_lexicon_are_said_once_as_it_says() -> None:
    settings = Settings(
        lexicon=Lexicon({"SQL": "SQL the sequel", "5G": "five gee", "予": "[j][ǐ]予"}), marks=frozenset(("[j]", "[ǐ]"))
    )
    assert read("SQL is 5G, NoSQL is 5Gb.", "en", settings).spoken == "SQL the sequel is five gee, NoSQL is five Gb."
    assert read("给予2个", "zh", settings).spoken == "给[j][ǐ]予两个"


def test_code_is_read_or_left_out() -> None:
    text = "Run:\n```sh\nls -l\n```\nDone `x` now."
    assert "ls" in read(text, "en").spoken
    assert read(text, "en", Settings(silent_code=True)).spoken == "Run: Done now."
