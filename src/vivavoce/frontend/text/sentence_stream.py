"""Splits a text that arrives in pieces into sentences; yields each sentence as soon as it is known to be complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import regex

from vivavoce_textnorm import (
    OPEN_BRACKET,
    Language,
    check_length,
    detect_language,
    find_runs,
    gather_ssml,
    is_speakable,
    open_fence,
)

MAX_HELD = 300
"""Maximum number of characters of a sentence; a longer sentence is cut."""


class Sentence(NamedTuple):
    """A sentence without the white space around it; start: position of its first character in the joined pieces."""

    text: str
    start: int
    language: Language

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class _Amount(NamedTuple):
    """A minimum length: `words`, or `characters` in Chinese and Japanese; mixed text adds the fractions of both."""

    words: int
    characters: int


_LEAST = _Amount(words=3, characters=5)
"""A shorter sentence is joined with the next one: two words alone sound bad, and take as much work as ten words."""
_FIRST_CLAUSE = _Amount(words=8, characters=20)
"""A first sentence of at least this length is cut at the end of a clause, so that speech starts soon."""
_ANYTHING = _Amount(words=1, characters=1)

LOOKAHEAD = 8
"""Maximum number of white-space characters between a mark and the character that decides about the sentence's end;
after more white space, a new sentence starts."""
_LONGEST_ABBREVIATION = 24
_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_CLOSING = r"""["'*_\p{Pe}\p{Pf}]{0,8}"""
# In German, “ and « close a quotation; in other languages they open it.
GERMAN_CLOSING = r"[“«](?=[\s,;:.!?)])"

# Each alternative can match a single character, so that a mark is found as soon as that character arrives.
MARK = regex.compile(
    r"(?P<line>(?<!\p{Ll}[-‐\u00AD]\r?)[\n\r\x0b\x0c\x85\u2028\u2029])"
    rf"|(?P<stop>[\p{{Sentence_Terminal}}…]+)(?P<closing>{_CLOSING}(?:(?<![。！？｡]{_CLOSING}){GERMAN_CLOSING})?)"
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
# Abbreviations that hardly ever end a sentence, even if a capital letter follows, such as "Dr.".
_BEFORE_NAMES = regex.compile(
    r"adm|brig|capt|cf|cmdr|col|cpl|cpt|dr|ft|gen|gov|hon|lt|maj|messrs|mlle|mme|mrs?|ms|mt|mx|pres|prof|rep|rev|sen|sgt"
    r"|st|supt|vs",
    regex.IGNORECASE,
)
# German ordinals, and abbreviations in languages other than English, that hardly ever end a sentence.
_ELSEWHERE = regex.compile(
    r"(?<![\p{L}\p{N}.,:/])(?:\d{1,2}|bzw|evtl|ggf|inkl|nr|sog|\p{L}*str|vgl|zzgl|avda?|dra|ee|núm|págs?|sra?s?|srta|uds?|bd|env"
    r"|avv|dott|ing|pag|sigg?|акад|гр|др|им|кв|коп|мин|млн|млрд|обл|пер|пл|пр|просп|проф|рис|руб|см|ст|стр|тел|тов|тыс|ул)\Z",
    regex.IGNORECASE,
)
# Abbreviations, or words without a vowel: they end a sentence only if neither a lower-case letter nor a digit follows.
_BEFORE_LOWER_CASE = regex.compile(
    r"al|approx|apr|art|assn|assoc|aug|ave|bros|ca|co|corp|dec|dept|eds?|eq|esp|est|etc|excl|ext|feb|figs?|fri|govt|ibid"
    r"|incl?|inst|jan|ju[ln]|mar|max|min|misc|mon|nos?|nov|oct|op|oz|resp|sat|sec|sept?|seq|sun|tel|temp|thu(rs?)?"
    r"|tues?|univ|viz|vols?|wed|[b-df-hj-np-tv-xz]{2,}",
    regex.IGNORECASE,
)


def sentence_stream(pieces: Iterable[str], marks: frozenset[str] | None = None) -> Iterator[Sentence]:
    """Yield the sentences of a text that arrives in pieces, as `SentenceSplitter` finds them.

    marks: the model's special tokens, to interpret brackets and SSML; if None, brackets and SSML are plain text. An
    SSML document is a single sentence, no sentence ends inside a bracket or fenced code, and pauses before the first
    words belong to the first sentence. Raises InvalidText if a piece or the SSML is too long or not a string, or if the
    SSML or a bracket is invalid."""
    if marks is None:
        yield from _split(pieces)
        return
    ssml, pieces = gather_ssml(pieces)
    if ssml:
        yield Sentence(ssml, 0, detect_language("".join(run.plain for run in find_runs(ssml, marks))))
    held, begun, whole = None, False, KeptPieces(pieces)
    for one in _split(whole):
        one = Sentence(whole.between((held or one).start, one.end), (held or one).start, one.language)
        begun = begun or any(run.said or is_speakable(run.plain) for run in find_runs(one.text, marks))
        held = None if begun and not (OPEN_BRACKET.search(one.text) or open_fence(one.text)) else one
        if held is None:
            yield one
    if held:
        yield held


class KeptPieces:
    """Iterates over pieces of a text, and keeps the pieces joined for `between`."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces, self._text, self._start = pieces, "", 0

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self._text += piece
            yield piece

    def between(self, low: int, high: int) -> str:
        """Return the characters low … high − 1 of the text, and forget the characters before `low`."""
        self._text, self._start = self._text[low - self._start :], low
        return self._text[: high - low]


def _split(pieces: Iterable[str]) -> Iterator[Sentence]:
    splitter = SentenceSplitter()
    for piece in pieces:
        yield from splitter.add(piece)
    yield from splitter.end()


class SentenceSplitter:
    """Joins pieces of a text into sentences; yields each sentence as soon as it is known to be complete.

    A sentence ends at the end of a line, and at . ? ! and similar marks of other scripts, with closing quotes and
    brackets, if white space or a Chinese or Japanese sentence follows. Marks in numbers, addresses, abbreviations and
    German ordinals do not end a sentence. A sentence shorter than `_LEAST` is joined with the next sentence of its
    line; text without a word is joined across lines. The first sentence may end at a comma, semicolon, colon or dash
    if it is as long as `_FIRST_CLAUSE`. Text longer than `MAX_HELD` is cut at the last clause end, else at white
    space, else anywhere.

    Only white space around sentences is removed. The cuts depend only on the text, not on its pieces. Each sentence
    contains a letter or a number, except perhaps the last sentence, or a sentence that was cut for its length."""

    def __init__(self) -> None:
        self._held = ""  # the sentence so far, without leading white space
        self._start = 0
        self._searched = 0  # position in `_held` where the search for a cut continues
        self._last_clause = 0  # end of the last clause in the second half of `MAX_HELD`
        self._is_first = True
        self._language: Language | None = None  # language of the last sentence

    def add(self, piece: str) -> Iterator[Sentence]:
        check_length(piece)
        # Short steps keep `_held` short, so that a long piece takes no more time than many short pieces.
        for start in range(0, len(piece), MAX_HELD):
            self._hold(self._held + piece[start : start + MAX_HELD])
            while cut := self._next_cut():
                sentence = self._sentence(self._held[:cut])
                self._start += cut
                self._hold(self._held[cut:])
                self._searched = self._last_clause = 0
                self._is_first = False
                yield sentence

    def end(self) -> Iterator[Sentence]:
        if self._held:
            yield self._sentence(self._held)

    def _sentence(self, text: str) -> Sentence:
        self._language = detect_language(text, self._language)
        return Sentence(text.rstrip(), self._start, self._language)

    def _hold(self, text: str) -> None:
        self._held = text.lstrip()
        self._start += len(text) - len(self._held)

    def _next_cut(self) -> int | None:
        """Return the end of the first sentence in `_held`; None if the end is not known yet."""
        for mark in MARK.finditer(self._held, self._searched):
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
        if mark["line"]:
            return self._holds(_ANYTHING, mark.start())
        after = self._held[mark.end() : mark.end() + LOOKAHEAD + 1]
        if not after or (after in "“«" and (mark["stop"] or "。")[-1] not in "。！？｡"):
            return None
        before = self._held[: mark.start()]
        if mark["stop"]:
            is_end = ends_sentence(before, mark["stop"], mark["closing"], after, self._language)
            return self._holds(_LEAST, mark.start()) if is_end else is_end
        if not _ends_clause(before, mark["clause"], after):
            return False
        if mark.end() >= MAX_HELD // 2:
            self._last_clause = mark.end()
        return self._is_first and self._holds(_FIRST_CLAUSE, mark.start())

    def _holds(self, amount: _Amount, end: int) -> bool:
        left = amount.words * amount.characters
        for word in _WORD.finditer(self._held, 0, end):
            left -= amount.words if word["cjk"] else amount.characters
            if left <= 0:
                return True
        return False

    def _forced_cut(self) -> int:
        if self._last_clause:
            return self._last_clause
        window = self._held[: MAX_HELD + 1]
        last_space = max((at for at, character in enumerate(window) if character.isspace()), default=0)
        if last_space:
            return last_space
        # Do not cut between a character and its combining marks, unless the whole window is one character with marks.
        ends = (match.end() for match in regex.finditer(r"\X", window))
        return max((end for end in ends if end <= MAX_HELD), default=MAX_HELD)


def ends_sentence(before: str, stop: str, closing: str, after: str, language: Language | None) -> bool | None:
    """Return whether a mark ends a sentence, or None if that is not known yet. before: the text before the mark. stop:
    the mark, such as "." or "?!". closing: the quotes and brackets after it. after: the next 1 to `LOOKAHEAD` + 1
    characters after these. language: the language of the text before, if known."""
    if stop[-1] in "。！？｡":
        return not (closing and "ぁ" <= after[0] <= "ん")  # 「はい。」と: the sentence continues after the quote
    is_ellipsis = _ELLIPSIS.fullmatch(stop) is not None
    if not after[0].isspace():
        return not is_ellipsis and _BEGINS_UNSPACED.match(after) is not None
    following = after.lstrip()[:1]
    if before.rfind("«") > before.rfind("»") and following in ("»", ""):  # « Oui ! »
        return None if not following and len(after) <= LOOKAHEAD else not following
    tail = before[-_LONGEST_ABBREVIATION:] if stop == "." else ""
    found = _LAST_WORD.search(tail)
    word = found[0] if found else ""
    if _INITIAL.fullmatch(word):  # the only single letter that ends a sentence is the pronoun I
        if not _PRONOUN.search(tail):
            return False
    elif _BEFORE_NAMES.fullmatch(word) or _DOTTED.fullmatch(word):
        return False
    elif _ELSEWHERE.search(tail):
        told = detect_language(before, language)
        if told == "de" if word.isdigit() else told not in ("en", "zh"):
            return False
    is_abbreviation = _BEFORE_LOWER_CASE.fullmatch(word) is not None
    # After an abbreviation, an ellipsis or a closing quote or bracket, a lower-case letter continues the sentence:
    # `"Really?" he asked (as always!) and left...`
    if not (is_abbreviation or is_ellipsis or closing) or _LINE.match(after):
        return True
    if not following:
        return True if len(after) > LOOKAHEAD else None
    return not (following.islower() or (is_abbreviation and following.isdigit()))


def _ends_clause(before: str, clause: str, after: str) -> bool:
    """Return whether commas, colons or dashes separate clauses, and are not part of a number, a word or an address."""
    if clause[-1] in "-–":
        return before[-1:].isspace() and after[0].isspace()
    if clause[-1] in "，；：、､—":
        return not (before[-1:].isdigit() and after[0].isdigit())
    return after[0].isspace() or _BEGINS_UNSPACED.match(after) is not None
