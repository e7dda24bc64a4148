"""Every function of the front end against the official one's results for 54 texts.

Where the official code raised an IndexError, and where it gave no piece, ours is held to what it promises instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vivavoce.errors import InvalidText
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.text.languages.en import English, NumberWords
from vivavoce.service.text.languages.reader import load_reader
from vivavoce.service.text.languages.zh import Chinese
from vivavoce.service.text.normalize import Languages
from vivavoce.service.text.rules import (
    contains_chinese,
    has_markup,
    is_only_punctuation,
    remove_bracket,
    replace_blank,
    replace_corner_mark,
    spell_out_number,
)
from vivavoce.service.text.split import split_paragraph
from vivavoce.service.text.tokenizer import TextTokenizer

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data/parity/goldens/frontend/text.json").read_text(encoding="utf-8")
)["cases"]
Field = Callable[[str], Any]


def unread(text: str) -> str:
    return text


def wanted(field: str) -> dict[str, Any]:
    """The official results by text, without those where the official code raised."""
    return {case["text"]: case[field] for case in CASES if not raised(case[field])}


def raised(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


@pytest.fixture(scope="module")
def fields(tokenizer: TextTokenizer) -> dict[str, Field]:
    chinese, english = load_reader("zh"), load_reader("en")
    without_wetext = Languages(Chinese(unread), English(unread, unread, NumberWords()))

    def num_tokens(text: str) -> int:
        return len(tokenizer.encode(text))

    def read(text: str) -> str:
        return (chinese if contains_chinese(text) or text.isdigit() else english)(text)

    def no_tn_nosplit(text: str) -> str:
        return text if has_markup(text) or not text else without_wetext.spoken_form(text).text

    def no_tn_split(text: str) -> list[str]:
        if has_markup(text) or not text:
            return [text]
        spoken = without_wetext.spoken_form(text)
        pieces = split_paragraph(spoken.text, len if spoken.language == "zh" else num_tokens, spoken.language)
        return [piece for piece in pieces if not is_only_punctuation(piece)]

    def split_zh_comma(text: str) -> list[str]:
        return split_paragraph(text, len, "zh", token_max_n=30, token_min_n=10, merge_len=5, comma_split=True)

    return {
        "contains_chinese": contains_chinese,
        "is_only_punctuation": is_only_punctuation,
        "replace_blank": replace_blank,
        "replace_corner_mark": replace_corner_mark,
        "remove_bracket": remove_bracket,
        "spell_out_number": lambda text: spell_out_number(text, NumberWords()),
        "token_ids": lambda text: list(tokenizer.encode(text)),
        "split_zh": lambda text: split_paragraph(text, len, "zh"),
        "split_en": lambda text: split_paragraph(text, num_tokens, "en"),
        "split_zh_comma": split_zh_comma,
        "wetext_zh": read,
        "wetext_en": read,
        "no_tn_split": no_tn_split,
        "no_tn_nosplit": no_tn_nosplit,
    }


@pytest.mark.parametrize(
    "field",
    sorted({field for case in CASES for field in case} - {"text", "normalize_split", "normalize_nosplit"}),
)
def test_each_function_equals_the_official_one(field: str, fields: dict[str, Field]) -> None:
    official = wanted(field)

    assert {text: fields[field](text) for text in official} == official
    assert len(official) >= 51


def test_segments_equal_the_official_ones(front_end: TextFrontEnd) -> None:
    official = {text: pieces for text, pieces in wanted("normalize_split").items() if any(pieces)}

    assert {text: front_end.segments(text) for text in official} == official
    assert len(official) == 47


@pytest.mark.parametrize(
    "text",
    [case["text"] for case in CASES if raised(case["normalize_split"]) or not any(case["normalize_split"])],
)
def test_where_official_has_no_segment_the_text_is_refused(text: str, front_end: TextFrontEnd) -> None:
    with pytest.raises(InvalidText, match="can be spoken; write at least one word"):
        front_end.segments(text)


def test_transcripts_equal_the_official_ones(front_end: TextFrontEnd) -> None:
    official = wanted("normalize_nosplit")

    assert {text: front_end.normalize(text) for text in official} == official
    assert len(official) == 53


@pytest.mark.parametrize(
    "case", [case for case in CASES if raised(case["replace_blank"])], ids=lambda c: repr(c["text"][:9])
)
def test_spaces_at_the_end_are_dropped_where_official_fails(case: dict[str, Any]) -> None:
    text = case["text"]

    assert replace_blank(text) == replace_blank(text.strip(" "))
