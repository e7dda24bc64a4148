"""Numbers, dates and times in words, in the forms that people write and that text front ends produce."""

from __future__ import annotations

import random

ONES: list[str] = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS: list[str] = str.split("_ _ twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
_SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1000, "thousand"))


def cardinal(number: int, *, conjunction: bool = True, hyphen: bool = False) -> str:
    """A number below a trillion: 514 is "five hundred and fourteen", 24 with `hyphen` "twenty-four"."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return _join(TENS[number // 10], ONES[number % 10] if number % 10 else "", "-" if hyphen else " ")
    if number < 1000:
        rest = cardinal(number % 100, hyphen=hyphen) if number % 100 else ""
        return _join(f"{ONES[number // 100]} hundred", rest, " and " if conjunction else " ")
    unit, name = next((unit, name) for unit, name in _SCALES if number >= unit)
    rest = cardinal(number % unit, conjunction=conjunction, hyphen=hyphen) if number % unit else ""
    return _join(f"{cardinal(number // unit, conjunction=conjunction, hyphen=hyphen)} {name}", rest, " ")


def ordinal(number: int) -> str:
    """A number from 1 to 99 that counts a place: 22 is "twenty second"."""
    if number in _ORDINALS:
        return _ORDINALS[number]
    if number < 20:
        return ONES[number] + "th"
    if number % 10 == 0:
        return TENS[number // 10][:-1] + "ieth"
    return f"{TENS[number // 10]} {ordinal(number % 10)}"


def year(number: int) -> str:
    """A year from 1100 to 2099 in pairs: 1984 is "nineteen eighty four", 2005 "two thousand five"."""
    if 2000 <= number < 2010:
        return _join("two thousand", ONES[number % 10] if number % 10 else "", " ")
    century, rest = cardinal(number // 100), number % 100
    if rest == 0:
        return f"{century} hundred"
    return f"{century} oh {ONES[rest]}" if rest < 10 else f"{century} {cardinal(rest)}"


def random_number(r: random.Random) -> str:
    """A number as such: mostly small, sometimes up to millions, in one of the ways of writing it."""
    digits = r.choice((1, 2, 2, 2, 3, 3, 4, 5, 6, 7))
    number = r.randrange(10 ** (digits - 1), 10**digits)
    if digits > 4:  # short words: who says six digits exactly?
        number -= number % 10 ** (digits - 3)
    return cardinal(number, conjunction=r.random() < 0.7, hyphen=r.random() < 0.3)


def random_time(r: random.Random) -> str:
    """A time of day: "half past six", "eleven forty two", "three thirty PM", "five o'clock"."""
    hour = ONES[r.randrange(1, 13)]
    kind = r.randrange(5)
    if kind == 0:
        return f"{hour} o'clock"
    if kind == 1:
        return f"{r.choice(('half past', 'quarter past', 'quarter to', 'ten past', 'twenty to'))} {hour}"
    minute = r.randrange(60)
    spoken = cardinal(minute) if minute >= 10 else f"{r.choice(('o', 'oh'))} {ONES[minute]}" if minute else ""
    half = r.choice(("AM", "PM", "in the morning", "in the evening", "at night")) if kind == 2 or not minute else ""
    return " ".join(part for part in (hour, spoken, half) if part)


def random_digits(r: random.Random, low: int, high: int) -> str:
    """`low` to `high` digits one by one, as in a telephone number."""
    return " ".join(ONES[r.randrange(10)] for _ in range(r.randint(low, high)))


def random_amount(r: random.Random, units: tuple[str, ...]) -> str:
    """An amount of one of the units: "twelve dollars", "three point five miles"."""
    unit = r.choice(units)
    if r.random() < 0.2:
        return f"{ONES[r.randrange(20)]} point {' '.join(ONES[r.randrange(10)] for _ in range(r.randint(1, 2)))} {unit}"
    return f"{cardinal(r.randrange(2, r.choice((20, 100, 1000))))} {unit}"


def _join(first: str, second: str, between: str) -> str:
    return f"{first}{between}{second}" if second else first
