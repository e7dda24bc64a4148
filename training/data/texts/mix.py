"""The texts of the corpus in the order in which they are spoken, and those kept for tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from itertools import cycle

from training.data.texts import grammar
from training.data.texts.coverage import Coverage
from training.data.texts.sentence import MAX_WORDS, is_reserved, words
from training.data.texts.wordnet import WordNet

SHARES = {"examples": 0.28, "glosses": 0.22, "templates": 0.32, "coverage": 0.14, "fixed": 0.04}
"""Of the utterances."""
JOINED = 0.3
"""Of the utterances that are short: how many get a second short one after them."""
SHORT_WORDS = 9
TEST_WORDS = (5, 12)


def training_texts(wordnet: WordNet, seed: int) -> Iterator[str]:
    """Texts without end, none reserved for tests; sentences of WordNet come again only after all have come."""
    r = random.Random(seed)
    sources: dict[str, Callable[[], str]] = {
        "examples": _in_turn(wordnet.examples, r),
        "glosses": _in_turn(wordnet.glosses, r),
        "templates": lambda: grammar.sentence(r),
        "coverage": Coverage(wordnet.lemmas, r).sentence,
        "fixed": lambda: grammar.fixed(r),
    }
    kinds, shares = list(sources), [SHARES[kind] for kind in sources]

    def draw() -> str:
        while True:
            text = sources[r.choices(kinds, shares)[0]]()
            if not is_reserved(text) and len(words(text)) <= MAX_WORDS:
                return text

    while True:
        text = draw()
        if r.random() < JOINED and len(words(text)) <= SHORT_WORDS:
            second = draw()
            if len(words(second)) <= SHORT_WORDS and not is_reserved(f"{text} {second}"):
                text = f"{text} {second}"
        yield text


def held_out(wordnet: WordNet, count: int, seed: int, known: Collection[str] | None = None) -> list[str]:
    """`count` test sentences of 5 to 12 words, by turns a WordNet example and a filled template, all different.

    `known`: if given, the only words (lower case) that they may hold, for a recogniser with a fixed dictionary.
    """
    r = random.Random(seed)

    def fits(text: str) -> bool:
        low, high = TEST_WORDS
        spoken = words(text)
        return is_reserved(text) and low <= len(spoken) <= high and (known is None or all(w in known for w in spoken))

    examples = [text for text in wordnet.examples if fits(text)]
    r.shuffle(examples)
    if len(examples) < (count + 1) // 2:
        raise ValueError(f"count: {count} test sentences need {(count + 1) // 2} examples, there are {len(examples)}")
    templates: dict[str, None] = {}
    while len(templates) < count // 2:
        text = grammar.sentence(r)
        if fits(text):
            templates[text] = None
    turns = (iter(examples), iter(templates))
    return [next(turns[index % 2]) for index in range(count)]


def _in_turn(texts: tuple[str, ...], r: random.Random) -> Callable[[], str]:
    shuffled = list(texts)
    r.shuffle(shuffled)
    endless = cycle(shuffled)
    return lambda: next(endless)
