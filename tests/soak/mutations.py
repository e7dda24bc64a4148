"""Random damage: bytes that were something once, and values that a program may not expect."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 100_000


def mutated(chance: random.Random, content: bytes, words: Sequence[bytes] = ()) -> bytes:
    """The content after some random changes; words: what is put into it beside single bytes."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place, size = chance.randrange(len(data) + 1), chance.choice((1, 1, 2, 8, 64, 1024))
        kind = chance.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place : place + size] = chance.randbytes(size)
        elif kind == 2:
            del data[place : place + size]
        elif kind == 3:
            data[place:place] = data[place : place + size] * chance.choice((1, 2, 50))
        elif kind == 4 and words:
            data[place:place] = chance.choice(words)
        elif words:
            word = chance.choice(words)
            data[place : place + len(word)] = word
    return bytes(data[:MOST_BYTES])


STRINGS = (*["hi", "anna", "mp3", "wav", "../../etc", "é́", "🎙🎙🎙", "�", "Hello."], "", " ", "a b.", "\x00", "1" * 400)
NUMBERS = (0, -1, 1, 0.5, -0.0, 1e308, 2**31, 2**53 + 1, 2**64, 10**400, float("nan"), float("inf"))


def value(chance: random.Random, names: Sequence[str] = (), depth: int = 0) -> Any:
    """Something that JSON has a form for, or nearly; names: of fields."""
    kind = chance.randrange(8 if depth < 4 else 6)
    if kind < 2:
        return chance.choice((None, True, False, *NUMBERS))
    if kind < 6:
        long = chance.choice("a. \n") * chance.choice((500, 30_000))
        return chance.choice(STRINGS) if chance.random() < 0.9 else long
    if kind == 6:
        return [value(chance, names, depth + 1) for _ in range(chance.choice((0, 1, 2, 30)))]
    return {name: value(chance, names, depth + 1) for name in some(chance, names)}


def some(chance: random.Random, names: Sequence[str]) -> list[str]:
    """A few of them."""
    return [chance.choice([*names, *STRINGS]) for _ in range(chance.randrange(5))]


def altered(chance: random.Random, good: Any, names: Sequence[str] = ()) -> Any:
    """The same value with one part, however deep it lies, that is another."""
    if isinstance(good, dict) and good and chance.random() < 0.9:
        key = chance.choice([*good])
        return {**good, key: altered(chance, good[key], names)}
    if isinstance(good, list) and good and chance.random() < 0.7:
        place = chance.randrange(len(good))
        return [*good[:place], altered(chance, good[place], names), *good[place + 1 :]]
    return value(chance, names)
