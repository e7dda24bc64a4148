"""Draws the texts of the corpus from all sources, and the sentences for tests."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import cycle

from vivavoce_training.data.texts import grammar, talk
from vivavoce_training.data.texts.grammar import article, plural
from vivavoce_training.data.texts.lexicon import FIXED
from vivavoce_training.data.texts.sentence import MAX_WORDS, is_reserved, words
from vivavoce_training.data.texts.wordnet import WordNet

SHARES = {"examples": 0.34, "glosses": 0.1, "templates": 0.24, "coverage": 0.08, "fixed": 0.04, "talk": 0.2}
"""Source → its share of the sentences."""
JOINED = 0.45  # Share of the texts that have several sentences.
JOINED_WORDS = (10, 42)  # Range from which the length of such a text, in words, is drawn.
MOST_WORDS = 44
TEST_WORDS = (5, 12)


def training_texts(wordnet: WordNet, seed: int) -> Iterator[str]:
    """Yield endless texts without sentences for tests. A WordNet sentence repeats only after all were drawn."""
    r = random.Random(seed)
    sources: dict[str, Callable[[], str]] = {
        "examples": _in_turn(wordnet.examples, r),
        "glosses": _in_turn(wordnet.glosses, r),
        "templates": lambda: grammar.sentence(r),
        "coverage": Coverage(wordnet.lemmas, r).sentence,
        "fixed": lambda: r.choice(FIXED),
        "talk": lambda: talk.line(r),
    }
    kinds, shares = list(sources), [SHARES[kind] for kind in sources]

    def draw() -> str:
        while True:
            text = sources[r.choices(kinds, shares)[0]]()
            if not is_reserved(text) and len(words(text)) <= MAX_WORDS:
                return text

    while True:
        text = draw()
        if r.random() < JOINED:
            wanted = r.randint(*JOINED_WORDS)
            while len(words(text)) < wanted:
                longer = f"{text} {draw()}"
                if len(words(longer)) > MOST_WORDS or is_reserved(longer):
                    break
                text = longer
        yield text


def held_out(wordnet: WordNet, count: int, seed: int, known: Collection[str] | None = None) -> list[str]:
    """Draw `count` different test sentences of 5 to 12 words; WordNet examples and filled templates alternate.

    known: use only these words (lower case), for a recogniser with a fixed dictionary; None: use all words.
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


_SLOT = re.compile(r"\{(a )?(\w+)\}")

FRAMES = tuple(
    line.strip()
    for line in """
    {noun}, {noun} and {noun}.
    the {noun} and the {noun}.
    {a noun} is not {a noun}.
    no {noun} without {a noun}.
    the {noun} of the {noun}.
    they asked about the {nouns} and the {nouns}.
    we read about {nouns} and {nouns}.
    it has to do with {noun} or {noun}.
    is that {a noun} or {a noun}?
    what do {nouns} have to do with {nouns}?
    {adj} {nouns}.
    {a adj} {noun} with {a adj} {noun}.
    the {adj} {noun} was {adj}.
    it was {adj} and {adj}.
    is it {adj}, or is it {adj}?
    some are {adj}, others are {adj} or {adj}.
    they {verb}, {verb} and {verb}.
    you can {verb} or {verb} it {adv}.
    do not {verb} the {adj} {noun}.
    we had to {verb} {adv}.
    why did they {verb} the {nouns}?
    to {verb} is not to {verb}.
    {adv} or {adv}.
    she answered {adv} and {adv}.
    the {noun} was {adv} {adj}.
    he {adv} had to {verb} the {noun}.
    {name} and {name}.
    they spoke about {name} and {name}.
    is it {name} or {name}?
    {name} is known for {nouns}.
    {noun}, {adj}, {verb}, {adv}.
    {adj}, {noun}, {noun}, {verb}.
    {verb}, {adj}, {name}, {noun}.
    {noun} {noun} {noun}.
    {verb} {adj} {noun}.
    {noun}.
    {adj} {noun}.
    {verb}!
    {name}.
    """.strip().splitlines()
)


class Coverage:
    """Draws sentences. Every word of a kind, such as a verb, is used once before any is used again."""

    def __init__(self, lemmas: Mapping[str, Sequence[str]], r: random.Random) -> None:
        self._decks = {kind: _Deck(kinds, r) for kind, kinds in lemmas.items()}
        self._r = r

    def sentence(self) -> str:
        filled = _SLOT.sub(lambda slot: self._word(slot[2], bool(slot[1])), self._r.choice(FRAMES))
        return filled[0].upper() + filled[1:]

    def _word(self, kind: str, with_article: bool) -> str:
        word = plural(self._decks["noun"].draw()) if kind == "nouns" else self._decks[kind].draw()
        return article(word) if with_article else word


class _Deck:
    def __init__(self, cards: Sequence[str], r: random.Random) -> None:
        self._cards, self._r = list(cards), r
        self._left: list[str] = []

    def draw(self) -> str:
        if not self._left:
            self._left = self._cards.copy()
            self._r.shuffle(self._left)
        return self._left.pop()
