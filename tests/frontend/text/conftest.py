from __future__ import annotations

from pathlib import Path

import pytest

from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import PRONUNCIATION_TOKENS, SPECIAL_TOKENS, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer_folder() -> Path:
    """A Qwen2 tokenizer of 556 ids in the layout of a checkpoint."""
    return Path(__file__).parents[2] / "data" / "text" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(tokenizer_folder)


@pytest.fixture(scope="module")
def front_end(tokenizer: TextTokenizer) -> TextFrontEnd:
    return TextFrontEnd(tokenizer)


@pytest.fixture(scope="module")
def third(tokenizer_folder: Path) -> TextFrontEnd:
    """The front end of CosyVoice3, whose tokenizer knows phones and pinyin."""
    return TextFrontEnd(
        TextTokenizer(TextTokenizer.from_folder(tokenizer_folder)._tokenizer, (*SPECIAL_TOKENS, *PRONUNCIATION_TOKENS))
    )


@pytest.fixture(scope="module")
def latin(tokenizer: TextTokenizer) -> TextFrontEnd:
    """The front end of a model trained on English only."""
    return TextFrontEnd(tokenizer, scripts=frozenset({"Latin"}))


@pytest.fixture(scope="module")
def plain(tokenizer: TextTokenizer) -> TextFrontEnd:
    """The front end with normalisation switched off."""
    return TextFrontEnd(tokenizer).as_written()
