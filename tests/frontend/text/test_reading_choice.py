"""Whose rules read a text is its caller's choice: the official ones, our own, or none."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import InvalidRequest, InvalidText, RequestCancelled
from vivavoce.frontend.model_choice import model_folder
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.text_input import Normalization
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_textnorm import MAX_BLOCK_CHARS
from vivavoce_textnorm.lexicon import Lexicon
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.types import NormalizedText, Settings
from vivavoce_textnorm.verbalizer import VERBALIZERS, load_verbalizer

TEXT = "# Prices\n\n- It costs **$3.50** in the 1990s. Call 911!"


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    return TextFrontEnd(TextTokenizer.from_folder(model_folder("mini") / BACKBONE))


@pytest.fixture(scope="module")
def mini() -> TextFrontEnd:
    return TextFrontEnd(TextTokenizer.from_folder(model_folder("mini") / BACKBONE), scripts=frozenset({"Latin"}))


def said(front_end: TextFrontEnd, text: str, **how: object) -> str:
    return "".join(one.spoken for one in front_end.located(text, **how))  # type: ignore[arg-type]


def test_each_reads_in_its_own_way(front_end: TextFrontEnd) -> None:
    natural = "Prices. It costs three dollars and fifty cents in the nineteen nineties. Call nine one one!"
    assert said(front_end, TEXT, reading="natural") == natural
    assert said(front_end, TEXT, reading="off") == TEXT
    assert said(front_end, TEXT) == said(front_end, TEXT, reading="official") == "".join(front_end.segments(TEXT))
    assert "asterisk asterisk" in said(front_end, TEXT)
    assert SpeakOptions().reading == "natural"


def test_a_tag_passes_and_the_rest_is_read(front_end: TextFrontEnd) -> None:
    text = "<|en|>It costs $3.50. <|de|>It weighs 5 kg."
    assert [one.spoken for one in front_end.located(text)] == [text]
    natural = "<|en|>It costs three dollars and fifty cents. <|de|>It weighs five kilograms."
    assert said(front_end, text, reading="natural") == natural


def test_changes_are_told_with_their_places(front_end: TextFrontEnd) -> None:
    text = "A **5** km run."
    found = front_end.explain(text, how=Settings(lexicon=Lexicon({"run": "jog"})))
    assert (found.text, found.spoken) == (text, "A five kilometer jog.")
    changes = [(text[one.start : one.end], one.spoken) for one in found.changes]
    assert changes == [("**", ""), ("5** km", "five kilometer"), ("run", "jog")]
    assert found.changes[-1].rule == "lexicon"
    official = front_end.explain(text, reading="official")
    assert [(one.start, one.end, one.rule) for one in official.changes] == [(0, len(text), "official")]
    assert official.spoken == front_end.normalize(text)
    how: list[tuple[str, Normalization]] = [
        ("Hello.", "official"),
        ("Hello.", "natural"),
        (text, "off"),
        ("", "natural"),
    ]
    for plain, reading in how:
        assert not front_end.explain(plain, reading=reading).changes
    with pytest.raises(InvalidRequest, match="'tlh' is not one of"):
        front_end.explain(text, "tlh")
    assert front_end.explain("$50蚊", "yue").spoken == "五十蚊"


def test_a_system_prompt_is_not_read(mini: TextFrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini, "part", lambda text: (text[:7], text[7:]))
    found = mini.explain("Say 3: 4 km")
    assert found.spoken == "Say 3: four kilometers"
    assert [(one.start, one.end) for one in found.changes] == [(7, 11)]


def test_a_model_of_one_script_gets_words_in_it(mini: TextFrontEnd) -> None:
    """Signs and marks that are Chinese alone, and sentences of other languages, are read in its own."""
    verbalizers = [voice for voice in map(load_verbalizer, VERBALIZERS) if voice is not None]
    keys = {key for voice in verbalizers for table in (voice.locale.signs, voice.locale.currencies) for key in table}
    texts = [f"{sign}5 5{sign} 5{sign}6" for sign in sorted(keys) if not foreign(mini, sign)]
    assert len(texts) > 50
    for text in ["5，3。", "（5）", "¥5、￥3", "3～5", "①②", "㎏ 5㎡", "Das kostet 5 Euro und 3 Cent.", *texts]:
        words = said(mini, text, reading="natural")
        assert not foreign(mini, words), (text, words)
    assert said(mini, "5，3。", reading="natural").startswith("five，three")
    assert "five" in said(mini, "Das kostet 5 Euro, und das ist nicht viel.", reading="natural")
    assert "fünf" in said(mini, "Das kostet 5 Euro, und das ist nicht viel.", language="de", reading="natural")


def foreign(front_end: TextFrontEnd, text: str) -> bool:
    try:
        front_end.check(text)
    except InvalidText:
        return True
    return False


@pytest.mark.parametrize("language", ["en", "zh", "de"])
def test_long_texts_are_read_block_by_block_and_wholly(front_end: TextFrontEnd, language: str) -> None:
    sentence = {
        "en": "It costs $3.50, x² and 5 km. ",
        "zh": "价格是$20，今天是2024年3月5日。",
        "de": "Das kostet 3,50 €. ",
    }[language]
    text = sentence * (3 * MAX_BLOCK_CHARS // len(sentence))
    found = list(front_end.located(text, language, reading="natural"))
    assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == len(text)
    spoken = "".join(one.spoken for one in found)
    assert not any(map(str.isdecimal, spoken)), spoken
    alone = said(front_end, sentence.strip(), language=language, reading="natural")
    assert spoken.count(alone) == text.count(sentence.strip())


def test_a_text_that_nobody_waits_for_is_given_up(front_end: TextFrontEnd) -> None:
    with pytest.raises(RequestCancelled):
        list(front_end.located(TEXT, cancelled=lambda: True, reading="natural"))


def test_another_name_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"reading: 'loud' is not one of official, natural, off"):
        SpeakOptions(reading="loud")  # type: ignore[arg-type]


@pytest.mark.parametrize("scripts", [{"Latin"}, {"Han"}, {"Cyrillic"}, {"Hangul"}, {"Latin", "Hiragana"}, None])
def test_a_model_of_any_scripts_can_be_warmed_up(scripts: set[str] | None) -> None:
    tokenizer = TextTokenizer.from_folder(model_folder("mini") / BACKBONE)
    TextFrontEnd(tokenizer, scripts=None if scripts is None else frozenset(scripts)).warm_up()


def test_one_text_is_read_at_a_time_where_it_is_explained(
    front_end: TextFrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = 0, 0

    def slowly(text: str, language: str, settings: Settings) -> NormalizedText:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.01)
        at_once -= 1
        return read(text, language, settings)

    monkeypatch.setattr("vivavoce_textnorm.natural.read", slowly)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(front_end.explain, ["It is 11:42."] * 8))
    assert {one.spoken for one in found} == {"It is eleven forty two."}
    assert most == 1
