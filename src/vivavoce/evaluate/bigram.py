"""The language model of a closed vocabulary: word pairs of the listed sentences, in ARPA form."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

START, END = "<s>", "</s>"
_DISCOUNT = 0.3
"""Taken off every pair's count and given to pairs that never occur."""
_NEVER = -99.0
"""ARPA's logarithm of zero."""
_ROUNDING = 1e-9
"""A word that all words follow leaves nothing to back off to; this much may remain of sums of fractions."""


def bigram_arpa(sentences: Iterable[Sequence[str]]) -> str:
    """An ARPA bigram with absolute discounting (Ney, Essen and Kneser 1994) of sentences, each a list of words.

    Single words count once more than they occur. For every word the probabilities of all that may follow sum to 1.
    """
    framed = [[START, *sentence, END] for sentence in sentences]
    occurrences = Counter(word for sentence in framed for word in sentence)
    pairs = Counter(pair for sentence in framed for pair in pairwise(sentence))
    followed = Counter[str]()
    for (first, _), count in pairs.items():
        followed[first] += count
    single = _single(occurrences)
    backoff = _backoffs(pairs, followed, single)
    lines = ["\\data\\", f"ngram 1={len(occurrences)}", f"ngram 2={len(pairs)}", "", "\\1-grams:"]
    for word in sorted(occurrences):
        logarithm = math.log10(single[word]) if word in single else _NEVER
        lines.append(f"{logarithm:.6f} {word} {backoff.get(word, 0.0):.6f}")
    lines += ["", "\\2-grams:"]
    for (first, second), count in sorted(pairs.items()):
        lines.append(f"{math.log10((count - _DISCOUNT) / followed[first]):.6f} {first} {second}")
    return "\n".join([*lines, "", "\\end\\", ""])


def _single(occurrences: Counter[str]) -> dict[str, float]:
    """Probability of each word without context; nothing is followed by a start."""
    total = sum(count + 1 for word, count in occurrences.items() if word != START)
    return {word: (count + 1) / total for word, count in occurrences.items() if word != START}


def _backoffs(pairs: Counter[tuple[str, str]], followed: Counter[str], single: dict[str, float]) -> dict[str, float]:
    """log10 of what multiplies a word's single probability after `first`, where that pair never occurs."""
    kinds = Counter[str]()
    mass: dict[str, float] = {}
    for first, second in pairs:
        kinds[first] += 1
        mass[first] = mass.get(first, 0.0) + single[second]
    return {
        first: math.log10(_DISCOUNT * kinds[first] / followed[first] / (1 - mass[first]))
        for first in kinds
        if 1 - mass[first] > _ROUNDING
    }
