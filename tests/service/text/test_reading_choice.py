"""Whose rules read a text is its caller's choice: the official ones, our own, or none."""

from __future__ import annotations

import pytest

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import InvalidRequest, RequestCancelled
from vivavoce.service.model_choice import model_folder
from vivavoce.service.speech import SpeakOptions
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.text.reading import WHOLE_CHARS
from vivavoce.service.text.tokenizer import TextTokenizer

TEXT = "# Prices\n\n- It costs **$3.50** in the 1990s. Call 911!"


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    return TextFrontEnd(TextTokenizer.from_folder(model_folder("mini") / BACKBONE))


def said(front_end: TextFrontEnd, text: str, **how: object) -> str:
    return "".join(one.spoken for one in front_end.located(text, **how))  # type: ignore[arg-type]


def test_each_reads_in_its_own_way(front_end: TextFrontEnd) -> None:
    natural = "Prices. It costs three dollars and fifty cents in the nineteen nineties. Call nine one one!"
    assert said(front_end, TEXT, reading="natural") == natural
    assert said(front_end, TEXT, reading="off") == TEXT
    assert said(front_end, TEXT) == said(front_end, TEXT, reading="official")
    assert "asterisk asterisk" in said(front_end, TEXT)


@pytest.mark.parametrize("language", ["en", "zh", "de"])
def test_long_texts_are_read_block_by_block_and_wholly(front_end: TextFrontEnd, language: str) -> None:
    sentence = {
        "en": "It costs $3.50, x² and 5 km. ",
        "zh": "价格是$20，今天是2024年3月5日。",
        "de": "Das kostet 3,50 €. ",
    }[language]
    text = sentence * (3 * WHOLE_CHARS // len(sentence))
    found = list(front_end.located(text, language, reading="natural"))
    assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == len(text)
    spoken = "".join(one.spoken for one in found)
    assert not any(map(str.isdecimal, spoken)), spoken
    alone = said(front_end, sentence.strip(), language=language, reading="natural")
    assert spoken.count(alone) == text.count(sentence.strip())


def test_a_text_that_nobody_waits_for_is_given_up(front_end: TextFrontEnd) -> None:
    with pytest.raises(RequestCancelled):
        list(front_end.located(TEXT, left=lambda: True, reading="natural"))


def test_another_name_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"reading: 'loud' is none of official, natural, off"):
        SpeakOptions(reading="loud")  # type: ignore[arg-type]
