"""The natural reading as a `Normalizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from vivavoce_textnorm.normalizer import CancelCheck, Stretch, blocks, check_wanted, never_cancelled
from vivavoce_textnorm.reader import read, read_run
from vivavoce_textnorm.ssml import find_runs
from vivavoce_textnorm.types import NormalizedText, Piece, Settings
from vivavoce_textnorm.verbalizer import VERBALIZERS
from vivavoce_textnorm.word_stream import natural_words


@dataclass(frozen=True)
class NaturalNormalizer:
    """Says a text as a person would read it out.

    one_language: the model speaks the language of the text and English only. chinese: writes what is said in Chinese as
    the model knows it; its second argument says whether the text ends there.
    """

    settings: Settings
    one_language: bool = False
    chinese: Callable[[str, bool], str] = lambda words, at_end: words

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
                words = read_run(block, code, settings, run.said, (last != " ", end < length)).spoken
                last = words[-1:] or last
                yield Piece(start, end, self.chinese(words, end == length) if code == "zh" else words)
                start = end

    def words(self, pieces: Iterable[str], language: str | None) -> Iterator[tuple[str, int]]:
        wanted = language or ("en" if self.one_language else None)
        return natural_words(pieces, wanted, self._settings(wanted or "en"))

    def read(self, text: str, language: str) -> NormalizedText:
        """The words of a whole text with the rule behind each change; pauses and rates are left out."""
        return read(text, language, self._settings(language))

    def _settings(self, language: str) -> Settings:
        if not self.one_language:
            return self.settings
        return replace(self.settings, unread=frozenset(VERBALIZERS) - {language, "en"})
