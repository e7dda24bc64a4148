"""Count edits between texts and transcripts, and compute error rates with 95 % intervals."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import regex
from numpy.typing import NDArray

Spell = Callable[[str], str]
"""Normalises a text, for example "11:42" → "eleven forty two"."""

_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]")
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:'[\p{L}\p{M}\p{N}]+)*")
_APOSTROPHES = str.maketrans("’‘ʼ", "'''")


def as_written(text: str) -> str:
    return text


def is_unspaced(text: str) -> bool:
    return _UNSPACED.search(text) is not None


def words(text: str) -> list[str]:
    """Split a text into lower-case words. Hyphens separate words; only apostrophes inside words are kept."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).translate(_APOSTROPHES).lower())


def characters(text: str) -> list[str]:
    """Split a text into words, but Chinese and Japanese text into characters."""
    return words(_UNSPACED.sub(r" \g<0> ", unicodedata.normalize("NFKC", text)))


def split_like(text: str) -> Callable[[str], list[str]]:
    """Return the function that splits a text and its transcript into units: `characters` or `words`."""
    return characters if is_unspaced(text) else words


def num_characters(text: str) -> int:
    """Count letters, digits and Chinese characters, but no white space and punctuation."""
    return sum(len(word) for word in words(text))


class Edits(NamedTuple):
    """Numbers of edits in one utterance, and the number `total` of expected units. The field names are report keys."""

    substitutions: int
    deletions: int
    insertions: int
    total: int
    errors: int


def align(said: Sequence[str], heard: Sequence[str]) -> Edits:
    """Count the edits (Levenshtein, 1966) of the alignment with the fewest edits and then the most substitutions."""
    # Each cell is (errors, −substitutions) of the best alignment up to this cell.
    above = [(count, 0) for count in range(len(heard) + 1)]
    for row, unit in enumerate(said, start=1):
        cells = [(row, 0)]
        for column, other in enumerate(heard, start=1):
            swapped = int(unit != other)
            ways = (
                (above[column - 1][0] + swapped, above[column - 1][1] - swapped),
                (above[column][0] + 1, above[column][1]),
                (cells[-1][0] + 1, cells[-1][1]),
            )
            cells.append(min(ways))
        above = cells
    errors, substitutions = above[-1][0], -above[-1][1]
    deletions = (errors - substitutions + len(said) - len(heard)) // 2
    return Edits(substitutions, deletions, errors - substitutions - deletions, len(said), errors)


def phone_errors(pronunciations: Sequence[Sequence[Sequence[str]]], heard: Sequence[str]) -> tuple[int, int]:
    """Return (fewest edits from any pronunciation of the words to the recognised phones, number of expected phones).

    pronunciations: of each word in order, one or more. The shortest pronunciations give the number.
    """
    row = np.arange(len(heard) + 1)
    for ways in pronunciations:
        row = np.min([_after(way, heard, row) for way in ways], axis=0)
    return int(row[-1]), sum(min(map(len, ways)) for ways in pronunciations)


def _after(phones: Sequence[str], heard: Sequence[str], row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Advance a row of the edit table by some phones. A running minimum of (edits − column) adds the insertions."""
    steps = np.arange(len(row))
    for phone in phones:
        below = row + 1
        below[1:] = np.minimum(below[1:], row[:-1] + np.array([phone != other for other in heard], dtype=np.int64))
        row = np.minimum.accumulate(below - steps) + steps
    return row


@dataclass(frozen=True)
class ErrorRate:
    """Errors over all units of all utterances. `low` and `high` are the bounds of the rate's 95 % interval."""

    errors: int
    total: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """Errors per expected unit. 0 is perfect; many insertions can give more than 1."""
        return self.errors / self.total


def word_errors(pairs: Iterable[tuple[str, str]]) -> ErrorRate:
    """Return the word error rate of (text, transcript) pairs, by `words`; `ValueError`: the texts have no words."""
    return _errors(pairs, words)


def character_errors(pairs: Iterable[tuple[str, str]]) -> ErrorRate:
    """Return the character error rate of (text, transcript) pairs, for Chinese; `ValueError`: there is no character."""
    return _errors(pairs, characters)


def _errors(pairs: Iterable[tuple[str, str]], split: Callable[[str], list[str]]) -> ErrorRate:
    edits = [align(split(said), split(heard)) for said, heard in pairs]
    return pooled([(edit.errors, edit.total) for edit in edits])


_RESAMPLES = 2000
_LARGEST_DRAW = 1 << 20
"""Largest number of utterances per bootstrap draw. This limits memory, and avoids thousands of small, slow draws."""
_TAIL = 0.025


def pooled(counts: Sequence[tuple[int, int]]) -> ErrorRate:
    """Sum the (errors, units) of all utterances; return the rate with its interval, by bootstrap over utterances.

    Whole utterances are resampled because errors within an utterance are correlated. Without errors, the bootstrap
    interval is empty, so the upper bound is the exact bound for `total` independent units: 1 − 0.025^(1/total).
    """
    errors, totals = np.array(counts, dtype=float).reshape(-1, 2).T
    if not totals.sum():
        raise ValueError("the texts have no units to count")
    low, high = _bootstrap(errors, totals)
    total = int(totals.sum())
    return ErrorRate(int(errors.sum()), total, low, high if errors.any() else 1 - _TAIL ** (1 / total))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of one value per utterance, and the bounds of its 95 % bootstrap interval."""
    figures = np.array(values, dtype=float)
    return float(figures.mean()), *_bootstrap(figures, np.ones_like(figures))


def _bootstrap(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5th and 97.5th percentile of Σ numerators / Σ denominators over utterances, by bootstrap (Efron)."""
    generator, num = np.random.default_rng(0), len(numerators)
    ratios = np.empty(_RESAMPLES)
    step = max(1, _LARGEST_DRAW // num)
    for first in range(0, _RESAMPLES, step):
        drawn = generator.integers(0, num, (min(step, _RESAMPLES - first), num))
        totals = np.maximum(denominators[drawn].sum(axis=1), 1.0)
        ratios[first : first + step] = numerators[drawn].sum(axis=1) / totals
    low, high = np.quantile(ratios, [_TAIL, 1 - _TAIL])
    return float(low), float(high)
