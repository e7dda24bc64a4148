"""Pieces of a text that is still arriving → whole sentences, each as soon as it is known to be complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from vivavoce.service.text.checks import check_length

MAX_HELD = 300
"""Characters of a sentence at most; a longer one is cut where it can be."""


@dataclass(frozen=True)
class Sentence:
    """A sentence without the white space around it: the characters start … end − 1 of all pieces joined."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The character after its last one."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class Amount:
    """So many words, or so many Chinese or Japanese characters; of a mixture, shares of both that add up to one."""

    words: int
    characters: int

    def is_in(self, words: int, characters: int) -> bool:
        """Whether so many words and characters are at least this amount."""
        return words * self.characters + characters * self.words >= self.words * self.characters


LEAST = Amount(words=3, characters=5)
"""A shorter sentence is joined with the next: two words alone are spoken badly, and cost as much as ten."""
FIRST_CLAUSE = Amount(words=8, characters=20)
"""After so much the first sentence is cut at a clause's end, so that speech starts soon."""
_ANYTHING = Amount(words=1, characters=1)

_LOOKAHEAD = 8
"""White space that is looked past for what follows a mark; after more of it, a new sentence begins."""
_LONGEST_ABBREVIATION = 24
_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_CLOSING = r"""["'*_\p{Pe}\p{Pf}]{0,8}"""

# Each alternative begins with a single character, so that a mark is found as soon as that one is there.
_MARK = regex.compile(
    r"(?P<line>[\n\r\x0b\x0c\x85\u2028\u2029])"
    rf"|(?P<stop>[\p{{Sentence_Terminal}}…]+)(?P<closing>{_CLOSING})"
    rf"|(?P<clause>[,;:，；：、､—–-]+){_CLOSING}"
)
_LINE = regex.compile(r"\s*?[\n\r\x0b\x0c\x85\u2028\u2029]")
_ELLIPSIS = regex.compile(r"\.{2,}|[.…]*…[.…]*")
_BEGINS_UNSPACED = regex.compile(rf"[{_CJK}“‘「『（【《〈]")
_WORD = regex.compile(
    rf"(?P<cjk>[{_CJK}])|[[\p{{L}}\p{{N}}]--[{_CJK}]][[\p{{L}}\p{{N}}\p{{M}}'’]--[{_CJK}]]*", regex.VERSION1
)

_LAST_WORD = regex.compile(r"[\p{L}\p{N}][\p{L}\p{M}\p{N}.'’-]*\Z")
_INITIAL = regex.compile(r"[\p{Lu}\p{Ll}]")
_PRONOUN = regex.compile(r"\p{Ll},?\s+I\Z")
_DOTTED = regex.compile(r"\p{L}{1,2}(\.\p{L}{1,2})+")
# Abbreviations that a capital letter may follow, and that hardly ever end a sentence.
_BEFORE_NAMES = regex.compile(
    r"adm|brig|capt|cf|cmdr|col|cpl|cpt|dr|ft|gen|gov|hon|lt|maj|messrs|mlle|mme|mrs?|ms|mt|mx|pres|prof|rep|rev|sen|sgt"
    r"|st|supt|vs",
    regex.IGNORECASE,
)
# Abbreviations that end a sentence too, but not before a small letter or a number: those listed, and what has no vowel.
_BEFORE_LOWER_CASE = regex.compile(
    r"al|approx|apr|art|assn|assoc|aug|ave|bros|ca|co|corp|dec|dept|eds?|eq|esp|est|etc|excl|ext|feb|figs?|fri|govt|ibid"
    r"|incl?|inst|jan|ju[ln]|mar|max|min|misc|mon|nos?|nov|oct|op|oz|resp|sat|sec|sept?|seq|sun|tel|temp|thu(rs?)?"
    r"|tues?|univ|viz|vols?|wed|[b-df-hj-np-tv-xz]{2,}",
    regex.IGNORECASE,
)


def whole_sentences(pieces: Iterable[str]) -> Iterator[str]:
    """Gather pieces of a text into sentences; each is yielded as soon as the text shows that it is complete.

    A sentence ends at . ? ! and their like in other scripts, closing quotes and brackets included, where white space
    or the beginning of a Chinese or Japanese sentence follows, and at the end of a line. Marks inside of numbers,
    addresses and abbreviations end nothing. A sentence shorter than `LEAST` is joined with the next unless
    the line or the text ends; what holds no word is joined across lines. The first sentence ends at a comma, semicolon,
    colon or dash already, if it has `FIRST_CLAUSE` before it. What would become longer than `MAX_HELD`
    characters is cut at the last such mark, else at white space, else between two characters.

    The sentences are stripped; joined, they are the text but for white space at the cuts. Where the text is cut depends
    on the text alone, not on how it came in pieces. The last sentence may hold nothing that can be spoken, and so may
    one that was cut for its length; all others hold a letter or a number.

    Raises:
        InvalidText: a piece is too long, or no text.
    """
    return (sentence.text for sentence in located_sentences(pieces))


def located_sentences(pieces: Iterable[str]) -> Iterator[Sentence]:
    """`whole_sentences`, each with its place in the whole text; nothing but white space lies between them.

    Raises:
        InvalidText: a piece is too long, or no text.
    """
    gathering = _Gathering()
    for piece in pieces:
        check_length(piece)
        # Short steps keep what is held short, so that a long piece costs no more than the same text in small ones.
        for start in range(0, len(piece), MAX_HELD):
            yield from gathering.add(piece[start : start + MAX_HELD])
    rest = gathering.rest()
    if rest.text:
        yield rest


class _Gathering:
    """The sentence that is being gathered, from its first character that is no white space."""

    def __init__(self) -> None:
        self._held = ""
        self._start = 0
        # No cut lies before; what was searched once is not searched again.
        self._searched = 0
        # What stands before `_counted`, the place of the last mark that could have ended the sentence.
        self._num_words = self._num_cjk = self._counted = 0
        # The end of the last clause in the second half of what may be held.
        self._last_clause = 0
        self._is_first = True

    def add(self, text: str) -> Iterator[Sentence]:
        """The sentences that `text` completes."""
        if self._held:
            self._held += text
        else:
            self._hold(text)
        while cut := self._next_cut():
            yield self._take(cut)

    def rest(self) -> Sentence:
        """What remains when the text has ended."""
        return Sentence(self._held.rstrip(), self._start)

    def _hold(self, text: str) -> None:
        """Begin a sentence with the first character of a text that is no white space."""
        self._held = text.lstrip()
        self._start += len(text) - len(self._held)

    def _take(self, cut: int) -> Sentence:
        sentence, rest = Sentence(self._held[:cut].rstrip(), self._start), self._held[cut:]
        self._start += cut
        self._hold(rest)
        self._searched = self._last_clause = 0
        self._num_words = self._num_cjk = self._counted = 0
        self._is_first = False
        return sentence

    def _next_cut(self) -> int | None:
        """Where the sentence ends; None as long as the text does not show it."""
        for mark in _MARK.finditer(self._held, self._searched):
            if mark.end() > MAX_HELD:
                break
            is_end = self._is_end(mark)
            if is_end is None:
                self._searched = mark.start()
                return None
            if is_end:
                return mark.end()
        self._searched = len(self._held)
        return self._forced_cut() if len(self._held) > MAX_HELD else None

    def _is_end(self, mark: regex.Match[str]) -> bool | None:
        """Whether the sentence ends at the mark; None: what follows has to be seen first."""
        if mark["line"]:
            return self._holds(_ANYTHING, mark.start())
        after = self._held[mark.end() : mark.end() + _LOOKAHEAD + 1]
        if not after:
            return None
        before = self._held[: mark.start()]
        if mark["stop"]:
            is_end = _ends_sentence(before, mark["stop"], mark["closing"], after)
            return self._holds(LEAST, mark.start()) if is_end else is_end
        if not _ends_clause(before, mark["clause"], after):
            return False
        if mark.end() >= MAX_HELD // 2:
            self._last_clause = mark.end()
        return self._is_first and self._holds(FIRST_CLAUSE, mark.start())

    def _holds(self, amount: Amount, end: int) -> bool:
        """Whether so much is said before `end`, which never comes before that of the last call."""
        for word in _WORD.finditer(self._held, self._counted, end):
            if word["cjk"]:
                self._num_cjk += 1
            else:
                self._num_words += 1
        self._counted = end
        return amount.is_in(self._num_words, self._num_cjk)

    def _forced_cut(self) -> int:
        if self._last_clause:
            return self._last_clause
        window = self._held[: MAX_HELD + 1]
        last_space = max((at for at, character in enumerate(window) if character.isspace()), default=0)
        if last_space:
            return last_space
        # A character is not torn from its accents, unless they are all there is.
        ends = (match.end() for match in regex.finditer(r"\X", window))
        return max((end for end in ends if end <= MAX_HELD), default=MAX_HELD)


def _ends_sentence(before: str, stop: str, closing: str, after: str) -> bool | None:
    """Whether a stop ends a sentence, by what is around it; `after` holds `_LOOKAHEAD` + 1 characters if there are."""
    if stop[-1] in "。！？｡":
        return True
    is_ellipsis = _ELLIPSIS.fullmatch(stop) is not None
    if not after[0].isspace():
        return not is_ellipsis and _BEGINS_UNSPACED.match(after) is not None
    tail = before[-_LONGEST_ABBREVIATION:] if stop == "." else ""
    if _never_ends(tail):
        return False
    is_abbreviation = _is_abbreviation(tail)
    # `"Really?" he asked (as always!) and left...` goes on with a small letter.
    if not (is_abbreviation or is_ellipsis or closing) or _LINE.match(after):
        return True
    following = after.lstrip()[:1]
    if not following:
        return True if len(after) > _LOOKAHEAD else None
    return not (following.islower() or (is_abbreviation and following.isdigit()))


def _never_ends(tail: str) -> bool:
    """Whether the text before a full stop ends with a title, an initial, or letters with dots between them."""
    word = _last_word(tail)
    if _INITIAL.fullmatch(word):
        return not _PRONOUN.search(tail)
    return any(abbreviation.fullmatch(word) for abbreviation in (_BEFORE_NAMES, _DOTTED))


def _is_abbreviation(tail: str) -> bool:
    return _BEFORE_LOWER_CASE.fullmatch(_last_word(tail)) is not None


def _last_word(tail: str) -> str:
    word = _LAST_WORD.search(tail)
    return word[0] if word else ""


def _ends_clause(before: str, clause: str, after: str) -> bool:
    """Whether commas, colons or dashes stand between clauses, not inside of a number, a word or an address."""
    if clause[-1] in "-–":
        return before[-1:].isspace() and after[0].isspace()
    if clause[-1] in "，；：、､—":
        return not (before[-1:].isdigit() and after[0].isdigit())
    return after[0].isspace() or _BEGINS_UNSPACED.match(after) is not None
