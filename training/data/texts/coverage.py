"""Short sentences that speak as many different words as possible: WordNet's words in turn, in frames by kind."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from training.data.texts.grammar import article, plural

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
    """Draws sentences; every word of a kind is spoken once before any is spoken again."""

    def __init__(self, lemmas: Mapping[str, Sequence[str]], r: random.Random) -> None:
        self._decks = {kind: _Deck(kinds, r) for kind, kinds in lemmas.items()}
        self._r = r

    def sentence(self) -> str:
        """The next sentence, with a capital first."""
        filled = _SLOT.sub(lambda slot: self._word(slot[2], bool(slot[1])), self._r.choice(FRAMES))
        return filled[0].upper() + filled[1:]

    def _word(self, kind: str, with_article: bool) -> str:
        word = plural(self._decks["noun"].draw()) if kind == "nouns" else self._decks[kind].draw()
        return article(word) if with_article else word


class _Deck:
    """Words in an order of chance, shuffled anew each time all are drawn."""

    def __init__(self, cards: Sequence[str], r: random.Random) -> None:
        self._cards, self._r = list(cards), r
        self._left: list[str] = []

    def draw(self) -> str:
        if not self._left:
            self._left = self._cards.copy()
            self._r.shuffle(self._left)
        return self._left.pop()
