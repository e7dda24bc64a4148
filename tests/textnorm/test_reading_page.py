"""The rules read the examples of docs/reading.md as it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.textnorm.acceptable import load_cases
from vivavoce_textnorm.reader import read

_DOCS = Path(__file__).parents[2] / "docs"
_PAGE = (_DOCS / "reading.md").read_text("utf-8")
_NOTES = (_DOCS.parent / "src" / "vivavoce_textnorm" / "README.md").read_text("utf-8")
_EXAMPLES = re.findall(r"^\| [^|]+ \| (\w\w\w?) \| `([^`]+)` \| ([^|]+) \|$", _PAGE, re.MULTILINE)


def test_the_page_has_examples() -> None:
    assert len(_EXAMPLES) > 50


@pytest.mark.parametrize(("language", "written", "spoken"), _EXAMPLES)
def test_examples_of_the_page_are_read_so(language: str, written: str, spoken: str) -> None:
    assert read(written, language).spoken == spoken


def test_the_notes_count_the_texts() -> None:
    counted = re.findall(r"^\| (?:English|Chinese) \| (\d+) ", _NOTES, re.MULTILINE)
    assert list(map(int, counted)) == [len(load_cases("en")), len(load_cases("zh"))]
