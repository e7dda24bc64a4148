"""wetext's rules for numbers, dates and units, made safe for any text.

wetext reads a text as one path through a large automaton. Two things follow, both measured with wetext 0.1.8:

- It fails, as a whole, on ordinary English such as "costs 3€", "#1 fan", "[3]" or two spaces in a row. Such text is
  read in smaller and smaller parts, so that only the part at fault is left as it was written.
- It holds the interpreter lock, 0.1 s for 1,000 characters and 6 s for 20,000, with up to 1.2 GB of memory. Text of
  more than `WHOLE_CHARS` characters is read in blocks of sentences, so that other threads get their turns.

A text of up to `WHOLE_CHARS` characters that wetext can read is read exactly as wetext reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import regex

from vivavoce.errors import MissingDependency
from vivavoce.service.text.split import Language

WHOLE_CHARS = 500

_BLANKS = regex.compile(r"[ \t\r\n\u00a0]+")
_CLAUSE_END = regex.compile(r"(?<=[.,;:!?])(\s+)|(?<=[。，；：！？、])()")
_WORD_END = regex.compile(r"(\s+)")
_DIGIT_EDGE = regex.compile(r"(?<=\d)(?=[^\d\s.,:])|(?<=[^\d\s.,:])(?=\d)")

# Ends of blocks, best first. English ones stand before a plain space, for what wetext makes of a line break depends on
# what is around it. A full stop counts after a small word and before a capital only: "No. 5" is to be read as one.
_BLOCK_ENDS: dict[Language, tuple[regex.Pattern[str], ...]] = {
    "en": (
        regex.compile(r"""[!?]["”'’)]*(?= )|\p{Ll}{3}\.["”'’)]*(?= \p{Lu})"""),
        regex.compile(r"[,;](?= )"),
        regex.compile(r"\p{L}(?= \p{Ll})"),
    ),
    "zh": (
        regex.compile(r"[。！？]|[!?](?=\s)|\S(?=\n)"),
        regex.compile(r"[，；、]|[,;](?=\s)"),
        regex.compile(r"\p{Han}(?=\p{Han})|\p{L}(?= \p{L})"),
    ),
}


class WetextNormalizer(Protocol):
    """The part of `wetext.Normalizer` that is used."""

    def normalize(self, text: str) -> str:
        """The text with numbers, dates and units in words; AssertionError where no path leads through it."""


@dataclass(frozen=True)
class Reader:
    """Calls wetext for one language, in blocks where the text is long, in parts where wetext fails."""

    language: Language
    normalizer: WetextNormalizer

    def __call__(self, text: str) -> str:
        """The text read by wetext, without white space at its ends."""
        return "".join(self._read_between_blanks(block) for block in _blocks(text.strip(), _BLOCK_ENDS[self.language]))

    def _read_between_blanks(self, block: str) -> str:
        """Read a block and put back the white space at its ends, which wetext drops (English: as one space)."""
        words = block.strip()
        if not words:
            return self._blank(block)
        before, _, after = block.partition(words)
        return self._blank(before) + self._read(words) + self._blank(after)

    def _blank(self, blank: str) -> str:
        return " " if blank and self.language == "en" else blank

    def _read(self, text: str) -> str:
        """Try the text whole, then with single spaces, then its clauses, its words, and numbers set apart."""
        for attempt in dict.fromkeys((text, _BLANKS.sub(" ", text))):
            spoken = self._attempt(attempt)
            if spoken is not None:
                return spoken
        for seam in (_CLAUSE_END, _WORD_END):
            parts = [part for part in seam.split(text) if part]
            if len(parts) > 1:
                return "".join(part if part.isspace() else self._read(part) for part in parts)
        return self._attempt(_DIGIT_EDGE.sub(" ", text)) or text

    def _attempt(self, text: str) -> str | None:
        """What wetext makes of the text; None where it finds no way through, or swallows the text."""
        try:
            spoken = self.normalizer.normalize(text)
        except AssertionError:  # wetext's token parser, handed the empty result of its automaton
            return None
        return spoken if spoken or not text.strip() else None


def load_reader(language: Language) -> Reader:
    """A reader with wetext's rules for the language (Chinese keeps the 儿 of 花儿); wetext is imported here."""
    try:
        import wetext
    except ImportError as error:
        raise MissingDependency(
            f"text normalisation needs wetext, which cannot be imported ({error}); run `pip install wetext`"
        ) from error
    return Reader(language, wetext.Normalizer(lang=language, remove_erhua=False))


def _blocks(text: str, ends: tuple[regex.Pattern[str], ...]) -> Iterator[str]:
    """Cut text into blocks of at most `WHOLE_CHARS` characters, at the best places there are."""
    start = 0
    while len(text) - start > WHOLE_CHARS:
        end = _block_end(text, ends, start)
        yield text[start:end]
        start = end
    yield text[start:]


def _block_end(text: str, ends: tuple[regex.Pattern[str], ...], start: int) -> int:
    """The last good place to end a block in the second half of its room; in the worst case the end of its room."""
    limit = start + WHOLE_CHARS
    for pattern in ends:
        places = [match.end() for match in pattern.finditer(text, start + WHOLE_CHARS // 2, limit)]
        if places:
            return places[-1]
    return limit
