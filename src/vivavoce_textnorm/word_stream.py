"""Reads a text that arrives in pieces by the natural rules, and gives a word as soon as no later text can change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from threading import Lock

from vivavoce_textnorm.checks import check_length
from vivavoce_textnorm.grammar import CJK, compiled, heads
from vivavoce_textnorm.language_id import FREQUENT_WORDS
from vivavoce_textnorm.markup import SOURCES, STYLED, open_fence
from vivavoce_textnorm.reader import read, read_run, segments
from vivavoce_textnorm.ssml import is_ssml
from vivavoce_textnorm.types import Piece, Settings
from vivavoce_textnorm.verbalizer import VERBALIZERS, load_verbalizer

READING = Lock()
"""Lock held while a block, a whole text or a piece is read. Many reading threads at once would keep the engine's thread
from the interpreter, and each would load the same tables."""
MOST_HELD = 300
"""Maximum number of characters that are held back until more text arrives, for example of a very long address."""
_ENOUGH_HELD = 100
"""If more characters than this are held, as in a long list of numbers, all but the last `_LOOKAHEAD` are given."""
_LOOKAHEAD = 48
_WORD, _CHARACTER = 3, 1
_FOLLOWING = 2 * _WORD
"""Weight of ordinary text after which the text before it is final: two words, or six Chinese characters."""
_CONTEXT = 64
"""Minimum number of given characters that are read again before held characters; no rule looks back further."""
_STEP = 200

# Letters of scripts that are written without spaces, and their punctuation marks.
_TIGHT = rf"{CJK}\p{{Thai}}\p{{Lao}}\p{{Khmer}}\p{{Myanmar}}。，！？；：、（）《》〈〉「」『』【】“”‘’"
_LETTERS = rf"[[\p{{L}}\p{{M}}]--[{_TIGHT}！-～{STYLED}]]++"
# The tokens of a text. The end of a token depends on one further character, so any pieces give the same tokens.
_TOKEN = compiled(
    rf"(?P<space>\s{{2,}}(?=\S)|[\s--[ ]](?=\S))| ?(?P<tight>[{_TIGHT}])"
    rf"| ?[(\"'¿¡«„]{{0,3}}(?P<word>{_LETTERS}(?:['-]{_LETTERS})*+)(?=[\s,;!?)\"…{_TIGHT}]|[.:'][\s{_TIGHT}])"
    rf"| ?(?P<mark>[,;:!?….)\"'«»]++)(?=[\s{_TIGHT}])| ?(?P<odd>[^\s{_TIGHT}]++)(?=[\s{_TIGHT}])"
)
_ROMAN = compiled(
    r"[IVXLC]+|[ivx]{2,}|[IVX]+(?:er?|re|i?ème|ᵉ)|제?[IVX]+\p{Hangul}+"
)  # also with French or Korean endings
_BEFORE = compiled(r"(\p{L}+) \Z")
_OPEN = compiled(r"<[\p{L}/!|][^>]*\Z|\[[^\]\n]*\Z|`[^`\n]*\Z|【[^】\n]{0,80}\Z")
# An unclosed link, and the mark at the start of a list item or heading: both change the reading of later text.
_OPENED = compiled(r"\[(?=[^\]\n]*\Z)")
_MARKED = compiled(r"(?:(?<=\n)|\A)[ \t]*(?:[-*+•▪◦‣·–>|]|#{1,6}|\d{1,3}[.)])[ \t]+(?=[^\n]*\Z)")
_LETTER, _FIRST = compiled(r"\p{L}"), compiled(rf"{_LETTERS}|.")
_STYLED = compiled(f"[{STYLED}【]")
_STOPS = frozenset("。！？")
_BEGINS = "<speak"


def natural_words(pieces: Iterable[str], language: str | None, settings: Settings) -> Iterator[tuple[str, int]]:
    """Read a text that arrives in pieces; yields words, with the number of characters of the text up to their end.

    language: the language of text that shows no language; if None, it is detected from the text so far. SSML is read
    when all of it has arrived. Raises InvalidText as `find_runs` does.
    """
    ssml, pieces = gather_ssml(pieces)
    if ssml:
        with READING:
            said = _in_words(read(ssml, language, settings).pieces)
        yield said, len(ssml)
    with READING:
        text = WordStream(language, settings)
    for piece in pieces:
        check_length(piece)
        for start in range(0, len(piece), _STEP):
            yield from _joined(text.add(piece[start : start + _STEP]))
    yield from _joined(text.end())


def _joined(given: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    with READING:
        words = list(given)
    if words:
        yield "".join(word for word, _ in words), words[-1][1]


def _in_words(pieces: Iterable[Piece], before: str = "") -> str:
    said = ""
    for one in pieces:
        if one.rule == "pause":
            said = said.rstrip()
            said += ", " if (before + said)[-1:].isalpha() else " "
        else:
            said += one.spoken.removeprefix(" " * said.endswith(" "))
    return said


@cache
def _heads() -> tuple[frozenset[str], tuple[str, ...], frozenset[str]]:
    """Return, for all languages together: lower-case words that may begin an item of the rules, endings of such words,
    and words that are an item by themselves.
    """
    locales = [voice.locale for voice in map(load_verbalizer, VERBALIZERS) if voice]
    endings = (ending for locale in locales for ending in locale.words.get("head_endings", "").split("|") if ending)
    days = [day for locale in locales for day, name in locale.weekdays.items() if day.lower() != name.lower()]
    shorts = (word for locale in locales for word in (*locale.abbreviations, *locale.signs))
    alone = filter(str.isalpha, [*shorts, *days])
    return frozenset(SOURCES.split("|")).union(*(heads(locale) for locale in locales)), tuple(endings), frozenset(alone)


class WordStream:
    """Gathers pieces of a text, and gives words with the number of characters of the text up to their end.

    An ordinary word is given as soon as the next character is known. A digit, a sign or an abbreviation may begin an
    item of the rules, and is held until enough ordinary text follows; then it is read together with the text before it.
    The words depend on the text alone, not on the places where it is cut into pieces.
    """

    def __init__(self, language: str | None, settings: Settings) -> None:
        self._language, self._settings = language, settings
        self._text = ""  # The last given characters, then the held characters.
        self._offset = 0  # Number of characters before `_text`.
        self._given = self._seen = 0  # Ends, in `_text`, of the given part and the searched part.
        self._ends: list[int] = []  # Ends of the held words.
        self._wanted = 0  # Weight of the ordinary text that has to follow.
        self._odd = False  # Whether the rules may change the held part.
        self._tried, self._last = 0, ""
        self._heads, self._endings, alone = _heads()
        self._alone = alone.union(_FIRST.match(word)[0] for word in settings.lexicon)

    def add(self, piece: str) -> Iterator[tuple[str, int]]:
        self._text += piece
        while True:
            limit = self._given + MOST_HELD
            if token := _TOKEN.match(self._text, self._seen, limit + 1):
                self._seen = token.end()
                yield from self._take(token.lastgroup, token[token.lastgroup])
            elif len(self._text) > limit:
                self._odd, self._seen = True, limit
                yield from self._give(limit)
            else:
                return

    def end(self) -> Iterator[tuple[str, int]]:
        self._odd = True
        yield from self._give(len(self._text))

    def _take(self, kind: str, written: str) -> Iterator[tuple[str, int]]:
        weight = self._weight(kind, written)
        if weight < 0:
            self._wanted = max(self._wanted, -weight)
            self._odd = self._odd or weight == -_FOLLOWING
        elif kind == "tight" and written in _STOPS:
            self._wanted = 0
        elif not (kind == "word" and self._text[self._seen] == "."):
            self._wanted -= weight
        opens = self._odd and (
            _OPEN.search(self._text, self._given, self._seen) or open_fence(self._text[: self._seen])
        )
        if self._wanted <= 0 and not opens:
            yield from self._give(self._seen)
            return
        self._ends.append(self._seen)
        if self._seen - self._given > _ENOUGH_HELD and self._seen >= self._tried:
            self._tried = self._seen + 16
            yield from self._give(self._seen, _LOOKAHEAD)

    def _weight(self, kind: str, written: str) -> int:
        """Return the token's weight as ordinary text for the items before it.

        If the token may itself begin an item, return the weight of the text that must follow it, as a negative number.
        """
        if kind != "word":
            if written in self._alone or _STYLED.match(written):
                return -_FOLLOWING
            if written == "（":  # it may begin a citation
                return -5 * _CHARACTER
            return _CHARACTER if kind == "tight" else 0 if kind == "mark" else -_FOLLOWING
        if _ROMAN.fullmatch(written):
            before = _BEFORE.search(self._text, 0, self._seen - len(written))
            return -_WORD if written == "I" and not (before and before[1] not in FREQUENT_WORDS["en"]) else -_FOLLOWING
        parts = written.replace("'", "-").split("-")
        odd = any(part.lower() in self._heads or part.endswith(self._endings) for part in parts)
        initials = len(parts) > 1 and any(len(part) == 1 and part.isupper() for part in parts)  # initials such as L-V
        short = self._text[self._seen] == "." or (written.isupper() and len(written) > 1)  # an acronym such as NW
        if initials or not self._alone.isdisjoint(parts) or (odd and (short or len(parts) > 1)):
            return -_FOLLOWING
        return -_WORD if odd else _WORD

    def _give(self, end: int, lookahead: int = 0) -> Iterator[tuple[str, int]]:
        pieces = self._read(end) if self._odd else [Piece(self._given, end, self._text[self._given : end])]
        if lookahead:
            inner = [one for one in reversed(self._ends) if one <= end - lookahead]
            # Do not cut inside an item, nor after a space, which belongs to the next word.
            taken = [range(p.start + 1, p.end + p.spoken.endswith(" ")) for p in pieces if p.rule]
            end = next((one for one in inner if not any(one in places for places in taken)), 0)
            if not end:
                return
        cut = (p if p.rule else replace(p, spoken=p.spoken[: end - p.start]) for p in pieces if p.start < end)
        words = _in_words(cut, self._last)
        if not self._offset + self._given:
            words = words.lstrip(" ")
        if words:
            self._last = words[-1]
            yield words, self._offset + end
        self._given, self._ends = end, [one for one in self._ends if one > end]
        if not self._ends:
            self._wanted, self._odd = 0, False
        self._forget()

    def _read(self, end: int) -> list[Piece]:
        written = self._text[:end]
        if fence := open_fence(written):
            written += f"\n{fence}"
        pieces: list[Piece] = []
        for one in read(written, self._language, self._settings).pieces:
            if one.end <= self._given or one.start >= end:
                continue
            if one.rule is None:
                low, high = max(one.start, self._given), min(one.end, end)
                one = Piece(low, high, self._text[low:high])
            elif one.start < self._given:  # the item begins in text that was given before
                held = self._text[self._given : end]
                said = read_run(held.lstrip(), self._language, self._settings, {}).spoken
                return [Piece(self._given, end, " " * held[0].isascii() + said, "rest")]
            pieces.append(one)
        return pieces

    def _forget(self) -> None:
        cut = self._given - _CONTEXT
        if cut < _CONTEXT // 2:
            return
        letter = _LETTER.search(self._text, cut, self._given)
        cut = letter.start() if letter else cut
        *_, (_, _, told) = segments(self._text[:cut], self._language)
        if not {"ja", "yue"} & {told, self._language}:  # each sentence shows these languages by itself
            self._language = told
        kept = "".join(found[0] for sign in (_MARKED, _OPENED) for found in sign.finditer(self._text, 0, cut))
        if fence := open_fence(self._text[:cut]):
            kept = f"{fence}\n"
        self._text, cut = kept + self._text[cut:], cut - len(kept)
        self._offset += cut
        self._given, self._seen, self._tried = self._given - cut, self._seen - cut, self._tried - cut
        self._ends = [one - cut for one in self._ends]


def gather_ssml(pieces: Iterable[str]) -> tuple[str, Iterator[str]]:
    """Return the whole text and no pieces if the text is SSML; for other text return "" and its pieces."""
    begun, pieces = "", iter(pieces)
    for piece in pieces:
        check_length(piece)
        begun += piece
        if is_ssml(begun):
            for more in pieces:
                check_length(more)
                check_length(begun := begun + more)
            return begun, iter(())
        if not _BEGINS.startswith(begun.lstrip()[: len(_BEGINS)]):
            break
    return "", chain((begun,) if begun else (), pieces)
