"""The small text rules of CosyVoice2's front end, each a pure function from text to text or truth.

They reproduce the official rules, quirks included: what the language model was trained on is what it must be given.
"""

from __future__ import annotations

from collections.abc import Callable

import regex

_CHINESE = regex.compile("[\u4e00-\u9fff]")
_ONLY_PUNCTUATION = regex.compile(r"[\p{P}\p{S}]*")
_SPEAKABLE = regex.compile(r"[\p{L}\p{N}]")
# a space with anything but an ASCII character that is no space on either side of it
_LOOSE_BLANK = regex.compile(r"(?<![\x00-\x1f\x21-\x7f]) | (?![\x00-\x1f\x21-\x7f])")
_SUPERSCRIPTS = str.maketrans({"²": "平方", "³": "立方"})
_BRACKETS = str.maketrans(dict.fromkeys("（）【】`"))
_TRAILING_COMMAS = regex.compile(r"[，,、]+\Z")


def contains_chinese(text: str) -> bool:
    """Whether the text is treated as Chinese: it holds a character of U+4E00–9FFF (kana and hangul do not count)."""
    return _CHINESE.search(text) is not None


def is_only_punctuation(text: str) -> bool:
    """Whether every character is punctuation or a symbol (Unicode P or S); true for the empty text."""
    return _ONLY_PUNCTUATION.fullmatch(text) is not None


def is_speakable(text: str) -> bool:
    """Whether the text holds at least one letter or number.

    Stricter than `is_only_punctuation`: an emoji with a variation selector is neither punctuation nor speakable.
    """
    return _SPEAKABLE.search(text) is not None


def has_markup(text: str) -> bool:
    """Whether the text holds both `<|` and `|>`: such text is given to the model as it is."""
    return "<|" in text and "|>" in text


def replace_blank(text: str) -> str:
    """Drop every space that does not stand between two ASCII characters other than space.

    Of two spaces in a row both go, also between English words.
    """
    # The official code looks one character back from the first one too, and so at the last.
    leading = len(text) > 1 and text[0] == " " and _is_tight(text[1]) and _is_tight(text[-1])
    return (" " if leading else "") + _LOOSE_BLANK.sub("", text)


def _is_tight(character: str) -> bool:
    return character.isascii() and character != " "


def replace_corner_mark(text: str) -> str:
    """Write ² as 平方 and ³ as 立方."""
    return text.translate(_SUPERSCRIPTS)


def remove_bracket(text: str) -> str:
    """Drop （）【】 and backticks, and write the dash —— as a space."""
    return text.translate(_BRACKETS).replace("——", " ")


def close_trailing_comma(text: str) -> str:
    """Write a run of ，,、 at the end as one 。."""
    return _TRAILING_COMMAS.sub("。", text)


def spell_out_number(text: str, words: Callable[[str], str]) -> str:
    """Replace each run of digits by `words(run)`.

    A digit is what `str.isdigit` says, so ² counts as one (and inflect reads it as "zero", as the official code does).
    """
    spoken: list[str] = []
    start = 0
    while start < len(text):
        end = start + 1
        is_digit = text[start].isdigit()
        while end < len(text) and text[end].isdigit() == is_digit:
            end += 1
        run = text[start:end]
        spoken.append(words(run) if is_digit else run)
        start = end
    return "".join(spoken)
