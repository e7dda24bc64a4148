"""Long text into pieces that the language model speaks well: sentences joined up to a length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Language = Literal["zh", "en"]

_MARKS: dict[Language, str] = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_COMMAS = "，,"
_CLOSING_QUOTES = '"”'
_FINAL_MARK: dict[Language, str] = {"zh": "。", "en": "."}


def split_paragraph(
    text: str,
    length: Callable[[str], int],
    lang: Language,
    *,
    token_max_n: int = 80,
    token_min_n: int = 60,
    merge_len: int = 20,
    comma_split: bool = False,
) -> list[str]:
    """Split text at its marks and join the sentences up to a length, as the official front end does.

    `length` measures text (CosyVoice2: characters for zh, tokens for en). A piece is closed when the next sentence
    would take it past `token_max_n` and it has more than `token_min_n` already, so one long sentence stays whole.
    A last piece shorter than `merge_len` joins the one before. Text without a final mark gets one. Text of marks
    alone, and empty text, give no piece.
    """
    marks = _MARKS[lang] + (_COMMAS if comma_split else "")
    if not text:
        return []
    if text[-1] not in marks:
        text += _FINAL_MARK[lang]
    pieces = _join(_sentences(text, marks), length, token_max_n, token_min_n)
    if len(pieces) > 1 and length(pieces[-1]) < merge_len:
        pieces[-2:] = [pieces[-2] + pieces[-1]]
    return pieces


def _sentences(text: str, marks: str) -> list[str]:
    """Cut after every mark; a mark with nothing before it goes, a closing quote right after a mark stays with it.

    A closing quote after a mark at the very start has no sentence to join (the official code fails there); it opens
    the first one.
    """
    sentences: list[str] = []
    start = 0
    for at, character in enumerate(text):
        if character not in marks:
            continue
        if at > start:
            sentences.append(text[start : at + 1])
        start = at + 1
        if sentences and start < len(text) and text[start] in _CLOSING_QUOTES:
            sentences[-1] += text[start]
            start += 1
    return sentences


def _join(sentences: list[str], length: Callable[[str], int], longest: int, enough: int) -> list[str]:
    """Join sentences greedily; each length is measured once, for measuring English means tokenising."""
    pieces: list[str] = []
    current, current_length = "", 0
    for sentence in sentences:
        joined = current + sentence
        joined_length = length(joined)
        if joined_length > longest and current_length > enough:
            pieces.append(current)
            joined, joined_length = sentence, length(sentence)
        current, current_length = joined, joined_length
    if current:
        pieces.append(current)
    return pieces
