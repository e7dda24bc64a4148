"""Reads texts by the natural rules: `NaturalNormalizer` implements `Normalizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from vivavoce_textnorm.normalizer import CancelCheck, Stretch, blocks, check_wanted, never_cancelled
from vivavoce_textnorm.reader import read, read_run
from vivavoce_textnorm.ssml import find_runs
from vivavoce_textnorm.types import NormalizedText, Piece, Say, Settings
from vivavoce_textnorm.verbalizer import VERBALIZERS
from vivavoce_textnorm.word_stream import READING, natural_words


def read_block(
    block: str,
    language: str,
    settings: Settings,
    said: Mapping[str, Say],
    inside: tuple[bool, bool],
    length: int = 0,
    cancelled: CancelCheck = never_cancelled,
) -> str:
    """Read a block in this process, one block at a time. inside: see `read_run`. `length` and `cancelled` are not used:
    `ReadingProcesses.read_block` has the same arguments and needs them.
    """
    with READING:
        return read_run(block, language, settings, said, inside).spoken


@dataclass(frozen=True)
class NaturalNormalizer:
    """Normalises a text to the words that a person would say.

    one_language: the model speaks only English and the text's language. chinese: converts Chinese words to the form
    that the model knows; its second argument is whether the text ends after these words. read_block: reads a block in
    this process or in another one; it has the arguments of the function `read_block`.
    """

    settings: Settings
    one_language: bool = False
    chinese: Callable[[str, bool], str] = lambda words, at_end: words
    read_block: Callable[..., str] = read_block

    def stretches(self, text: str) -> list[Stretch]:
        groups = groupby(find_runs(text, self.settings.marks), lambda run: (run.rate, run.pause_s))
        together = [(rate, pause_s, list(runs)) for (rate, pause_s), runs in groups]
        return [Stretch(runs, rate, pause_s * len(runs)) for rate, pause_s, runs in together]

    def pieces(self, stretch: Stretch, language: str, cancelled: CancelCheck = never_cancelled) -> Iterator[Piece]:
        settings, length = self._settings(language), len(stretch.plain)
        start, last = 0, " "
        for run in stretch.runs:
            code = run.language or language
            for block in blocks(run.plain, "zh" if code == "zh" else "en"):
                check_wanted(cancelled)
                end = start + len(block)
                inside = (last != " ", end < length)
                words = self.read_block(block, code, settings, run.said, inside, length, cancelled)
                last = words[-1:] or last
                yield Piece(start, end, self.chinese(words, end == length) if code == "zh" else words)
                start = end

    def words(self, pieces: Iterable[str], language: str | None) -> Iterator[tuple[str, int]]:
        wanted = language or ("en" if self.one_language else None)
        return natural_words(pieces, wanted, self._settings(wanted or "en"))

    def read(self, text: str, language: str) -> NormalizedText:
        """Return the words of a whole text, with the rule that made each change; pauses and rates are ignored."""
        with READING:
            return read(text, language, self._settings(language))

    def _settings(self, language: str) -> Settings:
        if not self.one_language:
            return self.settings
        return replace(self.settings, unread=frozenset(VERBALIZERS) - {language, "en"})
