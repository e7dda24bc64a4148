"""Text normalisation by wetext's rules and CosyVoice2's own: numbers, dates and units become words.

The rules reproduce the official front end with its quirks, because the language model was trained on its output.

wetext reads a text as one path through a large automaton. This has two consequences, measured with wetext 0.1.8:

- It rejects a whole text because of ordinary English such as "costs 3€", "#1 fan", "[3]" or two spaces in a row. Such a
  text is read in smaller and smaller parts, so that only the rejected part stays as it is written.
- It holds the interpreter lock: 0.1 s for 1,000 characters and 6 s for 20,000, with up to 1.2 GB of memory. A text
  of more than `MAX_BLOCK_CHARS` characters is therefore read in blocks of sentences. Each block takes a short time,
  and the first block can be spoken before the rest is read.

A text of up to that length is read exactly as wetext reads it, if wetext accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.util import find_spec
from itertools import groupby
from threading import Lock
from typing import Any, Literal, Protocol

import regex

from vivavoce.errors import MissingDependency
from vivavoce_textnorm.language_id import is_speakable
from vivavoce_textnorm.normalizer import (
    MAX_BLOCK_CHARS,
    AsWritten,
    CancelCheck,
    Stretch,
    blocks,
    check_wanted,
    never_cancelled,
)
from vivavoce_textnorm.types import Piece

Ruled = Literal["zh", "en"]  # text in other languages has no official rules
Rules = Literal["zh", "en", "digits"]

_MOST_HELD = 2_000
"""Maximum number of normalised characters that are held back until a place to cut is found."""

_reading = Lock()
"""Lock held while a block is read. Many reading threads at once would keep the engine's thread from the interpreter,
and inflect's engine keeps state during a call, which a second thread would change."""

# A space, unless it stands between two ASCII characters that are not spaces.
_LOOSE_BLANK = regex.compile(r"(?<![\x00-\x1f\x21-\x7f]) | (?![\x00-\x1f\x21-\x7f])")
_SUPERSCRIPTS = str.maketrans({"²": "平方", "³": "立方"})
_BRACKETS = str.maketrans(dict.fromkeys("（）【】`"))
_TRAILING_COMMAS = regex.compile(r"[，,、]+\Z")

_INVISIBLE = regex.compile(r"[\u00AD\u200B\u200E\u200F\u202A-\u202E\u2060-\u2069\uFEFF]")  # soft hyphens and the like
_BLANKS = regex.compile(r"[ \t\r\n\u00a0]+")
_CLAUSE_END = regex.compile(r"(?<=[.,;:!?])(\s+)|(?<=[。，；：！？、])()")
_WORD_END = regex.compile(r"(\s+)")
_DIGIT_EDGE = regex.compile(r"(?<=\d)(?=[^\d\s.,:])|(?<=[^\d\s.,:])(?=\d)")
# Finds the last place for a cut, between a letter and a letter or mark: no rule of `as_trained_on` looks across it.
_SEAM = regex.compile(r"(?r)(?<=\p{L})(?=[\p{L}\p{P}])|(?<=\p{P})(?=\p{L})")


def replace_blank(text: str) -> str:
    """Drop every space, also between words, unless it stands between two ASCII characters that are not spaces."""
    # As the character before the first one, the official code takes index −1, which is the text's last character.
    tight = len(text) > 1 and text[0] == " " and all(text[at].isascii() and text[at] != " " for at in (1, -1))
    return (" " if tight else "") + _LOOSE_BLANK.sub("", text)


def replace_corner_mark(text: str) -> str:
    return text.translate(_SUPERSCRIPTS)


def remove_bracket(text: str) -> str:
    """Drop （）【】 and backticks, and write the dash —— as a space."""
    return text.translate(_BRACKETS).replace("——", " ")


def close_trailing_comma(text: str) -> str:
    return _TRAILING_COMMAS.sub("。", text)


def spell_out_number(text: str, words: Callable[[str], str]) -> str:
    """Replace each run of digits by `words(run)`.

    Digits are the characters for which `str.isdigit` is true; with ², inflect says "zero", as in the official code.
    """
    runs = ((is_digit, "".join(run)) for is_digit, run in groupby(text, str.isdigit))
    return "".join(words(run) if is_digit else run for is_digit, run in runs)


def number_words(digits: str) -> str:
    """Return a run of digits in English words, such as "two thousand and twenty-four"; not thread-safe."""
    # inflect is imported here, because the import takes more than a second, and few texts need it.
    import inflect

    try:
        return str(_inflect().number_to_words(digits))
    except inflect.NumOutOfRangeError:
        return " ".join(str(_inflect().number_to_words(digit)) for digit in digits)


@cache
def _inflect() -> Any:
    import inflect

    return inflect.engine()


@dataclass(frozen=True)
class WetextNormalizer:
    """Normalises text of one language with wetext. If wetext fails on a block, the block is tried in smaller parts.

    normalize: wetext's function, which writes numbers, dates and units as words. It raises AssertionError for text
    that wetext's grammar does not accept.
    """

    language: Ruled
    normalize: Callable[[str], str]

    def __call__(self, block: str) -> str:
        # wetext drops the white space at a block's ends. This function puts it back, in English as one space.
        words = block.strip()
        before, _, after = block.partition(words) if words else (block, "", "")
        blanks = ((" " if blank and self.language == "en" else blank) for blank in (before, after))
        return (self._read(words) if words else "").join(blanks)

    def _read(self, text: str) -> str:
        """Read the text as it is, or else with single spaces, by clauses, by words, or with spaces around numbers."""
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
        try:
            spoken = self.normalize(text)
        except AssertionError:  # raised by wetext's token parser for an empty result
            return None
        return spoken if spoken or not text.strip() else None


def spoken_form(text: str, language: Ruled, read: Callable[[str, Rules], str]) -> Iterator[tuple[str, int]]:
    """Normalise a text with `read`, block by block; yields words and the position in the text where they end.

    Text of up to `MAX_BLOCK_CHARS` characters gives one piece. The words of longer text are cut only at a `_SEAM`, so
    that the joined pieces equal the rules' result for the joined blocks. If `_MOST_HELD` characters have no seam, a
    piece ends with its block. In longer text, a block without letters and numbers stays as it is written.
    """
    rules: Rules = "digits" if language == "en" and text.strip().isdigit() else language
    end, last = len(text) - len(text.lstrip()), len(text.rstrip())
    held = ""
    for block in blocks(text.strip(), language):
        end += len(block)
        held += read(block, rules) if len(text) <= MAX_BLOCK_CHARS or is_speakable(block) else block
        seam = len(held)
        if end < last and (found := _SEAM.search(held)):
            seam = found.start()
        elif end < last and len(held) < _MOST_HELD:
            seam = 0
        words, held = held[:seam], held[seam:]
        if words:
            read_to = end - len(held) if text.endswith(held, 0, end) else end  # `held` is usually a mark
            yield words if language == "en" else as_trained_on(words, at_end=end >= last), read_to


def as_trained_on(words: str, at_end: bool) -> str:
    """Give Chinese words the punctuation of the model's training texts, by the official rules in their order."""
    text = replace_corner_mark(replace_blank(words.replace("\n", "")))
    text = remove_bracket(text.replace(".", "。").replace(" - ", "，"))
    return close_trailing_comma(text) if at_end else text


@dataclass(frozen=True)
class Languages:
    """The official rules, as functions from a block of text to its words.

    chinese, english: write numbers, dates and units in words; digits: for English text that consists of digits only.
    """

    chinese: Callable[[str], str]
    english: Callable[[str], str]
    digits: Callable[[str], str]

    def read(self, block: str, rules: Rules, length: int = 0, cancelled: CancelCheck = never_cancelled) -> str:
        with _reading:
            check_wanted(cancelled)
            if rules == "zh":
                return self.chinese(block)
            return spell_out_number((self.digits if rules == "digits" else self.english)(block), number_words)


@cache
def has_official_rules() -> bool:
    """True if the packages of the extra `official` are installed."""
    return all(find_spec(package) for package in ("wetext", "inflect"))


def check_official_rules() -> None:
    """Raise MissingDependency if the packages of the extra `official` are not installed."""
    if not has_official_rules():
        raise MissingDependency(
            "reading: CosyVoice's own rules need the packages wetext and inflect; type `pip install "
            "'vivavoce[official]'`, or choose reading=natural"
        )


def load_reader(language: Ruled) -> WetextNormalizer:
    """Import wetext and return a reader with its rules for the language; in Chinese, the 儿 of 花儿 is kept."""
    check_official_rules()
    import wetext

    return WetextNormalizer(language, wetext.Normalizer(lang=language, remove_erhua=False).normalize)


def load_languages(*, digits_in_chinese: bool) -> Languages:
    """Load wetext's rules for both languages, which takes a third of a second.

    With `digits_in_chinese`, a text of digits only is read in Chinese, as the official front end does. For a model that
    has not learnt Chinese, such a text must be read in English.
    """
    chinese, english = load_reader("zh"), load_reader("en")
    return Languages(chinese, english, chinese if digits_in_chinese else english)


@dataclass(frozen=True)
class LoadedOnUse:
    """`Languages` that are loaded when a text first needs them; digits_in_chinese: as in `load_languages`."""

    digits_in_chinese: bool

    @cached_property
    def _languages(self) -> Languages:
        return load_languages(digits_in_chinese=self.digits_in_chinese)

    def read(self, block: str, rules: Rules, length: int = 0, cancelled: CancelCheck = never_cancelled) -> str:
        return self._languages.read(block, rules, length, cancelled)


class Reads(Protocol):
    def read(self, block: str, rules: Rules, length: int, cancelled: CancelCheck) -> str: ...


@dataclass(frozen=True)
class OfficialNormalizer(AsWritten):
    """Reads English and Chinese by the official rules; other text loses only invisible characters and blanks.

    parts: splits a block into text, at even places, and special tokens, at odd places, which stay as they are written.
    If `parts` is None, the text has no special tokens.
    """

    languages: Reads
    parts: Callable[[str], list[str]] | None = None

    def pieces(self, stretch: Stretch, language: str, cancelled: CancelCheck = never_cancelled) -> Iterator[Piece]:
        text, start = stretch.plain, 0
        if language not in ("zh", "en"):
            yield Piece(0, len(text), " ".join(_INVISIBLE.sub("", text).split()))
            return
        rules: Callable[[str, Rules], str] = partial(self.languages.read, length=len(text), cancelled=cancelled)
        read = partial(self._around_tags, rules) if self.parts else rules
        for words, end in spoken_form(text, "zh" if language == "zh" else "en", read):
            yield Piece(start, end, words)
            start = end

    def _around_tags(self, read: Callable[[str, Rules], str], block: str, rules: Rules) -> str:
        assert self.parts is not None
        parts = enumerate(self.parts(block))
        return "".join(part if place % 2 or not part.strip() else read(part, rules) for place, part in parts)
