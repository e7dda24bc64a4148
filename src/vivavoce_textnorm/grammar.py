"""Builds the patterns that find numbers, amounts, dates and other items of one language, from its locale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import regex

from vivavoce_textnorm.types import Number

if TYPE_CHECKING:
    from vivavoce_textnorm.tables import Locale
    from vivavoce_textnorm.verbalizer import Verbalizer

DASH = r"[-–—−‒~～〜]"
CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー々〇"
START = rf"(?<![[\p{{L}}\p{{N}}_]--[{CJK}]]|\d[.,:/])"
"""Lookbehind at the start of an item: no letter, digit or "1." before it, except Chinese and Japanese letters."""
NO_WORD = r"(?![\p{Latin}\p{Cyrillic}\p{Greek}\p{Hangul}\p{M}])"
"""Lookahead at the end of an item: no letter of a script with spaces follows; a Chinese or Japanese letter may."""
LARGEST = 36
"""Maximum number of digits of a number that is said as a whole; a longer number is said digit by digit."""

Match = Any  # a pattern or match of the package regex, which has no type hints


def any_of(words: Iterable[str]) -> str:
    """Return a pattern that matches any of the words, the longest first; without words, it never matches."""
    ordered = sorted(set(words), key=len, reverse=True)
    return "(?:" + "|".join(map(regex.escape, ordered)) + ")" if ordered else r"(?!)"


def compiled(pattern: str, flags: int = 0) -> Match:
    return regex.compile(pattern, regex.V1 | flags)


@dataclass(frozen=True, eq=False)
class Grammar:
    """Compiled patterns of one language.

    amount: `_amount_pattern` lists its groups. dates: a month's name and a day, in both orders. span: two numbers
    before a unit of time. own: kind of an item's first character → the language's own rules. heads: lower-case words
    that may begin an item. endings: endings of further such words (German "str" of a street).
    """

    voice: Verbalizer
    amount: Match
    unit: Match
    dates: tuple[Match, ...]
    span: Match
    own: Mapping[str, tuple[tuple[str, Match, Callable[[Any, Any], str | None]], ...]]
    heads: frozenset[str]
    endings: tuple[str, ...]
    idioms: Match
    abbreviations: Match
    version_cue: Match


_HEAD = compiled(r"\p{L}*")
_ONES = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
_ROMANS = tuple(tens + ones for tens in ("", "x", "xx") for ones in _ONES)
"""Roman numerals. In the row `heads` of a language's table, the character # stands for any of these numerals."""


def heads(locale: Locale) -> frozenset[str]:
    """Return the lower-case words that may begin an item of the rules; they are taken from the language's tables."""
    named = (locale.months, locale.weekdays, locale.abbreviations, locale.currencies, locale.idioms, locale.signs)
    own = locale.words.get("heads", "").split("|")
    plain = [word.replace("#", one) for word in own for one in (_ROMANS if "#" in word else ("",))]
    return frozenset(_HEAD.match(word.lower())[0] for words in (*named, plain) for word in words)


@cache
def load_grammar(voice: Verbalizer) -> Grammar:
    locale = voice.locale
    month = rf"(?P<month>{any_of(locale.months)})"
    day = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th|er|º|°|\.(?= ))?"
    of = any_of(locale.words.get("of", "").split("|"))
    year = r"(?P<year>[12]\d{3})(?!\d|[.,:]\d)"
    late = rf"(?:(?:,? (?:{of} )?|,){year})?(?!\d|[.,:/]\d| 000)"
    near = r"(?:\.? |\.(?=\d)|(?=\d\d?(?:, ?| )[12]\d{3}(?!\d)))"
    return Grammar(
        voice,
        compiled(_amount_pattern(locale)),
        compiled(_unit_pattern(locale)),
        (
            compiled(
                rf"{START}{month}{near}(?:the )?{day}(?![\p{{L}}\d]|[:/]\d|\.\d)(?!\s?(?:[ap]\.?m\b|%)){late}", regex.I
            ),
            compiled(rf"(?<![\d.,:/-]){day} (?:{of} )?{month}(?!\p{{L}})(?:\.(?= ?[\d,]))?{late}", regex.I),
            compiled(rf"(?<![\d.,:/-]){day}(?P<s>[-/.]){month}(?P=s){year}", regex.I),
        ),
        compiled(_span_pattern(locale)),
        {
            kind: tuple((rule.name, compiled(rule.pattern), rule.say) for rule in voice.rules if kind in rule.first)
            for kind in ("digit", "letter", "sign")
        },
        heads(locale),
        tuple(filter(None, locale.words.get("head_endings", "").split("|"))),
        compiled(rf"{START}{any_of(locale.idioms)}(?!\d|[./:-]\d)(?:(?<=[+#])|{NO_WORD})", regex.I),
        compiled(rf"{START}{any_of(locale.abbreviations)}(?![\p{{L}}\p{{N}}])"),
        compiled(locale.words.get("version_cue") or "(?!)"),
    )


def number_pattern(locale: Locale) -> str:
    """Return a pattern for digits with the language's separators between thousands and before decimals."""
    group = "".join("\u00a0\u202f" if sign == " " else regex.escape(sign) for sign in locale.group)
    blank = r"|(?<!\d\d\d\d) (?=\d{3}(?!\d))" if " " in locale.group else ""
    grouped = rf"\d{{1,3}}(?:(?:[{group}]{blank})\d{{3}})++(?!\d)|\d{{1,2}}(?:,\d{{2}}(?!\d))++,\d{{3}}(?!\d)"
    decimal = regex.escape(locale.decimal)
    return rf"(?:(?:{grouped}|\d++)(?:{decimal}\d++(?!{decimal}\d))?|{decimal}\d++)"


def _amount_pattern(locale: Locale) -> str:
    """Pattern of an amount. Groups: minus, front and back (currencies), num, mag (magnitude), percent, unit."""
    signs = any_of(key for key in locale.currencies if not key.isalpha())
    codes = any_of(key for key in locale.currencies if key.isalpha())
    capital = any_of(key for key in locale.currencies if key.isupper())
    letters = any_of(word for word in locale.magnitudes if len(word) == 1 and word.isascii())
    words = any_of(word for word in locale.magnitudes if len(word) > 1 or not word.isascii())
    blank = r"[ \u00a0\u202f]?"
    of = "(?(mag)(?:d[ei] )?|)" if "of_many" in locale.words else ""  # matches "2 millones de km"
    return (
        rf"(?P<minus>[-−](?=[\d.]|{signs}\d))?(?:(?P<front>{signs}|{START}{capital}(?={blank}\d)){blank})?(?P<inner>(?(front)-|(?!)))?"
        rf"(?P<num>{number_pattern(locale)})"
        rf"(?:(?(front)[,.][-–—]{{1,2}}|,[-–])(?![\p{{L}}\d]))?"  # matches "€5,-"
        rf"(?:(?:{blank}|-)(?P<mag>{words}(?:(?<=[{CJK}]|\p{{Hangul}}(?=[A-Za-z%원명개주장]))|{NO_WORD})|(?(front){letters}(?![\p{{Latin}}\d])|(?!))))?"
        rf"(?:{blank}{of}(?:(?P<back>{signs}(?!\d)|{codes}{NO_WORD})|(?P<percent>[%％‰])"
        rf"|{_unit_pattern(locale)}))?"
    )


def _unit_pattern(locale: Locale) -> str:
    return (
        rf"[ \u00a0\u202f]?(?P<unit>{any_of(locale.units)}(?![\p{{Latin}}\p{{Cyrillic}}\d²³/'’]))(?:\.(?=\s\p{{Ll}}))?"
    )


def _span_pattern(locale: Locale) -> str:
    """Pattern of two numbers with a unit of time. Groups: a and b (numbers), then h (hours) or min (minutes)."""
    hours, minutes = (
        any_of([*units, *locale.units[name], locale.words.get("hours", "h") if name == "h" else name])
        for name in ("h", "min")
        for units in [[unit for unit, forms in locale.units.items() if forms == locale.units[name]]]
    )
    return (
        rf"{START}(?P<a>\d{{1,3}})[:：](?P<b>[0-5]\d)[ \u00a0]?(?:(?P<h>{hours})|(?P<min>{minutes}))"
        r"(?![\p{Latin}\p{Cyrillic}/])(?:\.(?=\s\p{Ll}))?"
    )


def parse_number(written: str, locale: Locale, negative: bool = False, power: int = 0) -> Number:
    """Parse text that `number_pattern` matched; a second decimal sign is ignored."""
    whole, _, decimals = written.partition(locale.decimal)
    plain = "".join(filter(str.isdecimal, whole)) or "0"
    return Number(int(plain), "".join(filter(str.isdecimal, decimals)), negative, power)


def roman_value(letters: str) -> int:
    if letters.isdecimal():
        return int(letters)
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}.get(letter, 0) for letter in letters]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))
