"""Normalised text → segments that the language model speaks well, each with the characters of the text that it speaks.

wetext normalises a text as a whole, so the characters are found by alignment: words, numbers, marks and Chinese or
Japanese characters of the text are matched with those of the segments, in order. Most stay as they are; numbers, dates,
units and abbreviations are written in words by the rules, and match nothing. The end of a segment is then known to lie
between two matched tokens of the text, which mostly are neighbours; if they are not, the marks between them decide,
then the spaces, then proportion.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import regex

from vivavoce.frontend.text.official import Ruled
from vivavoce.frontend.text.sentence_stream import GERMAN_CLOSING, LOOKAHEAD, MARK, MAX_HELD, ends_sentence
from vivavoce_textnorm import Language

_SENTENCE_MARKS: dict[Ruled, str] = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_COMMAS = "，,"
_CLOSING_QUOTES = '"”'
_FINAL_MARK: dict[Language, str] = {"zh": "。", "ja": "。"}
_ENDED = regex.compile(r"""[\p{Sentence_Terminal}…:：;；]["'*_\p{Pe}\p{Pf}“«\s]*\Z""")
_LONGEST_SENTENCE = 2_000
"""Characters without a mark after which a sentence of a text that is still being read is cut."""

_AFTER_COMMA = regex.compile(r"[，、]|,(?=\s)")
_SPACE = regex.compile(r"\s+")
# what is not to be torn: a tag, or a character with its combining marks
_ATOM = regex.compile(r"<\|[^|<>]{1,40}\|>|\[[\w-]{1,40}\]|</?\w{1,40}>|\X")

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_MARKS = ".?!;:,。？！；：，、．｡…"
# Marks inside a number belong to the number; several marks in a row count as one.
_TOKEN = regex.compile(
    rf"[{_CJK}]|[[\p{{L}}\p{{M}}]--[{_CJK}]]+|\p{{N}}+(?:[.,:/-]\p{{N}}+)*+|[{_MARKS}]+", regex.VERSION1
)
_SAME_MARK = str.maketrans("。？！；：，、．｡…", ".?!;:,,...")
_SAME_MARKS = frozenset(".?!;:,")

_REACH = 300
"""Characters around the likely end of a segment, where the text was rewritten, in which a better one is sought."""
# Marks that open and close alike close here if nothing follows them; “ before a space does, too.
_CLOSERS = rf"{_MARKS}\p{{Pe}}\p{{Pf}}"
_CLOSING = regex.compile(rf"""(?:[{_CLOSERS}]|["'*_]+(?=[{_CLOSERS}\s]|\Z)|{GERMAN_CLOSING})*+\s*""")
_OPENING = regex.compile(r"""["'*_\p{Ps}\p{Pi}]+\Z""")
_RUN = 4
"""Equal tokens in a row that show that two texts, which went apart, are together again."""
_FIRST_REACH = 32
_LONGEST_REWRITING = 2_000
"""Spoken characters without such a run after which the ends of the blocks that were read show where both are."""
# The part of the text to come that is certain to be said: not marks at its end, nor a part of marks alone.
_CERTAIN = regex.compile(r"(?:(?![\p{P}\p{S}]{8}).)*[\p{L}\p{N}]", regex.DOTALL)


def split_paragraph(
    text: Iterable[str],
    length: Callable[[str], int],
    lang: Language,
    *,
    token_max_n: int = 80,
    token_min_n: int = 60,
    merge_len: int = 20,
    comma_split: bool = False,
) -> Iterator[tuple[str, str]]:
    """Split text at its marks and join the sentences up to a length, as the official front end does.

    text: comes in pieces, which mean nothing. Each result is given as soon as no later text can change it, with what
    is known by then to follow it.

    `length` measures text (characters for zh, tokens for others). A piece is closed when the next sentence would take
    it past `token_max_n` and it has more than `token_min_n` already, so one long sentence stays whole. A last piece
    shorter than `merge_len` joins the one before. Text without a final mark gets one. Text of marks alone, and empty
    text, give no piece. Other languages than zh and en keep all marks; their sentences end where those do that arrive.
    """
    if lang == "zh" or lang == "en":
        marks = _SENTENCE_MARKS[lang] + (_COMMAS if comma_split else "")
        sentences = _sentences(text, marks, _FINAL_MARK.get(lang, "."))
    else:
        sentences = _written_sentences("".join(text), lang, _FINAL_MARK.get(lang, "."))
    closed, current, current_length = "", "", 0
    for sentence in sentences:
        joined = current + sentence
        joined_length = length(joined)  # each is measured once, for measuring English means tokenising
        if joined_length > token_max_n and current_length > token_min_n:
            if closed:
                yield closed, current
            closed, joined, joined_length = current, sentence, length(sentence)
        current, current_length = joined, joined_length
        if closed and current_length >= merge_len:
            yield closed, current
            closed = ""
    if current:
        yield closed + current, ""


def _sentences(text: Iterable[str], marks: str, final_mark: str) -> Iterator[str]:
    """Cut after every mark; a mark with nothing before it goes, a closing quote right after a mark stays with it.

    A closing quote after a mark at the very start has no sentence to join (the official code fails there); it opens
    the first one. A sentence without a mark is cut when it is longer than `_LONGEST_SENTENCE` and its end is not there.
    """
    mark, quote = f"[{regex.escape(marks)}]", f"[{_CLOSING_QUOTES}]"
    complete = regex.compile(rf"[^{regex.escape(marks)}]+{mark}(?P<after>{quote}?(?:{mark}{quote}?)*+)")
    held = ""
    for piece in chain(text, (None,)):
        held = (held + (piece or "")).lstrip(marks)  # a mark begins the whole text only
        if piece is None and held and held[-1] not in marks:
            held += final_mark
        while (found := complete.match(held)) and (found.end() < len(held) or piece is None):
            yield held[: found.start("after")] + "".join(one for one in found["after"] if one not in marks)
            held = held[found.end() :]
        if found is None and len(held) > _LONGEST_SENTENCE:
            cut = _cut_near_middle(held)
            yield held[:cut]
            held = held[cut:]


def _written_sentences(text: str, lang: Language, final_mark: str) -> Iterator[str]:
    """Split a text at sentence ends. White space between two sentences belongs to the second one."""
    start = 0
    for mark in MARK.finditer(text):
        before = text[max(0, mark.start() - MAX_HELD) : mark.start()]
        after = text[mark.end() : mark.end() + LOOKAHEAD + 1]
        if after and mark["stop"] and ends_sentence(before, mark["stop"], mark["closing"], after, lang):
            yield text[start : mark.end()]
            start = mark.end()
    if rest := text[start:]:
        yield rest if _ENDED.search(rest) else rest + final_mark


def cut_long(text: str, length: Callable[[str], int], limit: int) -> list[str]:
    """Halve text, and its halves, until every piece has `length` of at most `limit`; shorter text is returned whole.

    Each cut is made near the middle, after a comma if there is one there, else after white space, else between two
    characters; tags such as `[laughter]` are not torn. The pieces joined are the text. A single character is never
    cut, whatever its length.
    """
    if len(text) < 2 or length(text) <= limit:
        return [text]
    middle = _cut_near_middle(text)
    return [*cut_long(text[:middle], length, limit), *cut_long(text[middle:], length, limit)]


def _cut_near_middle(text: str) -> int:
    """The best place to cut: a breath in the middle half of the text, else the gap nearest the middle."""
    size = len(text)
    for pattern, margin in ((_AFTER_COMMA, size // 4), (_SPACE, size // 4), (_ATOM, 0)):
        ends = (match.end() for match in pattern.finditer(text))
        inner = [end for end in ends if max(margin, 1) <= end <= size - max(margin, 1)]
        if inner:
            return min(inner, key=lambda end: abs(2 * end - size))
    return size // 2


class TextSegment(NamedTuple):
    """A segment as the model is given it (spoken); it speaks the characters start … end − 1 of the text.

    rate: times the speed of the request; pause_s: seconds of silence, of a segment that speaks nothing.
    """

    spoken: str
    start: int
    end: int
    rate: float = 1.0
    pause_s: float = 0.0


def find_spans(
    text: str, pieces: Iterable[tuple[Sequence[str], str]], seams: Sequence[tuple[int, int]] = ()
) -> Iterator[TextSegment]:
    """Each segment with the characters of `text` that it speaks: contiguous ranges, in order, from 0 to its end.

    text: as it was given; pieces: segments that were made of it, with what is known to follow them. A segment is given
    as soon as its characters are known. Closing quotes and white space after a segment count to it. A range is empty
    where several segments speak one character. seams: grows while pieces come; pairs of characters of the text and of
    what is spoken at which both are together, for stretches in which nothing else shows it.
    """
    pieces = iter(pieces)
    begun = list(islice(pieces, 1))
    if begun and len(begun[0][0]) == 1 and not begun[0][1]:
        begun += islice(pieces, 1)
        if len(begun) == 1:  # most texts are short: one segment speaks all of it, and nothing need be aligned
            yield TextSegment(begun[0][0][0], 0, len(text))
            return
    aligned, start, said = _Aligned(text, seams), 0, 0
    waiting: deque[str] = deque()  # segments whose characters are not known
    for segments, following in chain(begun, pieces, (((), None),)):
        waiting.extend(segments)
        aligned.hear("".join(segments), following)
        while waiting and (end := aligned.cut(said + len(waiting[0]))) is not None:
            spoken = waiting.popleft()
            said += len(spoken)
            before, start = start, max(start, end) if waiting or following is not None else len(text)
            yield TextSegment(spoken, before, start)


class _Aligned:
    """A text and what is spoken of it, token by token, as it becomes known."""

    def __init__(self, text: str, seams: Sequence[tuple[int, int]]) -> None:
        self._text, self._seams, self._heard = text, seams, ""
        self._tokens, self._keys = _tokens(text)
        self._said: list[tuple[int, int]] = []
        self._said_keys: list[str] = []
        self._at = self._beside = 0  # tokens before are matched, or match nothing
        # Characters start … end − 1 of both where they match, from the last cut on.
        self._pairs = [(0, 0, 0, 0)]

    def hear(self, segments: str, following: str | None) -> None:
        self._heard += segments
        if following is None:
            self._walk(self._heard, whole=True)
            self._pairs.append((len(self._text), len(self._text), len(self._heard), len(self._heard)))
        elif certain := _CERTAIN.match(following):
            self._walk(self._heard + certain[0])
            if len(self._heard) - self._pairs[-1][3] > _LONGEST_REWRITING:
                self._pass_seam()

    def _walk(self, said: str, whole: bool = False) -> None:
        """Match as far as what is said shows it for certain."""
        # Later text cannot change a token that ends before the last two characters.
        spans, keys = _tokens(said, self._said[-1][1] if self._said else 0, len(said) if whole else len(said) - 2)
        self._said += spans
        self._said_keys += keys
        found, self._at, self._beside = matches(self._keys, self._said_keys, self._at, self._beside, whole)
        self._match(found)

    def _match(self, found: list[tuple[int, int]]) -> None:
        _, after, _, after_said = self._pairs[-1]
        pairs = (self._tokens[at] + self._said[beside] for at, beside in found)
        self._pairs += [pair for pair in pairs if pair[0] >= after and pair[2] >= after_said]  # not across a seam

    def _pass_seam(self) -> None:
        """Go on where the last block ends that is said as far as is known."""
        _, after, _, after_said = self._pairs[-1]
        end, said = next((one for one in reversed(self._seams) if one[1] <= len(self._heard)), (0, 0))
        if end <= after or said <= after_said:
            return
        at, beside = bisect_left(self._tokens, (end,)), bisect_left(self._said, (said,))
        between = _longest_common(self._keys[self._at : at], self._said_keys[self._beside : beside])
        self._match([(self._at + one, self._beside + other) for one, other in between])
        self._pairs.append((end, end, said, said))
        self._at, self._beside = max(at, self._at), max(beside, self._beside)
        self._walk(self._heard)

    def cut(self, said: int) -> int | None:
        if len(self._pairs) == 1 or self._pairs[-1][2] < said:
            return None
        following = bisect_left(self._pairs, said, lo=1, key=lambda pair: pair[2])
        del self._pairs[: following - 1]
        (before, start, said_before, said_start), (end, _, said_end, _) = self._pairs[:2]
        if said_start > said:  # a long word was torn
            return min(before + said - said_before, start)
        wanted = start + round((said - said_start) / max(1, said_end - said_start) * (end - start))
        if end < len(self._text) and (self._said[-1][1] if self._said else 0) < said:  # a word that is still going on
            return wanted
        last = bisect_left(self._said, (said,)) - 1
        if last < 0 or self._said[last][1] <= said_start:
            return self._past_closing(start, end)
        # The last token of the segment matches nothing.
        if last + 1 >= len(self._said) or self._said[last + 1][0] >= said_end:  # the next one does
            wanted = end
        start, end = max(start, wanted - _REACH), min(end, wanted + _REACH)
        inside = range(bisect_left(self._tokens, (start,)), bisect_left(self._tokens, (end,)))
        marks = [self._past_closing(self._tokens[at][1], end) for at in inside if self._keys[at] in _SAME_MARKS]
        spaces = [match.end() for match in _SPACE.finditer(self._text, start, end)]
        places = (marks or spaces) if self._said_keys[last] in _SAME_MARKS else (spaces or marks)
        if places:
            return min(places, key=lambda place: abs(place - wanted))
        opening = _OPENING.search(self._text, start, end)
        return min(wanted, opening.start()) if opening else wanted

    def _past_closing(self, start: int, end: int) -> int:
        text = self._text
        past = _CLOSING.match(text, start).end()
        if text.startswith('"', past) and text.count('"', text.rfind("\n", 0, past) + 1, past) % 2:
            past = _CLOSING.match(text, past + 1).end()  # as in Chinese, where no space follows
        return min(past, end)


def _tokens(text: str, start: int = 0, end: int | None = None) -> tuple[list[tuple[int, int]], list[str]]:
    spans = [token.span() for token in _TOKEN.finditer(text, start)]
    words = [text[first:last] for first, last in spans if end is None or last <= end]
    keys = {word: _key(word) for word in set(words)}
    return spans[: len(words)], [keys[word] for word in words]


def _key(token: str) -> str:
    if token[0] in _MARKS:
        return token[0].translate(_SAME_MARK)
    return unicodedata.normalize("NFKC", token).casefold()


def matches(
    one: Sequence[str], other: Sequence[str], at: int = 0, beside: int = 0, whole: bool = True
) -> tuple[list[tuple[int, int]], int, int]:
    """Places of equal tokens in both, each in ascending order, from two places on; and the places that come next.

    The texts are walked side by side. Where they differ, they go on where the nearest run of equal tokens begins: a
    run further away cannot be meant, as long as a rewriting keeps the order and brings no such run of its own. What
    lies between is matched by its longest common subsequence. Work and memory grow with the length of the texts, and
    with the square of what was rewritten between two runs.

    whole: False where more of `other` will come: the walk stops where that could change it.
    """
    found: list[tuple[int, int]] = []
    while at < len(one) and beside < len(other):
        if one[at] == other[beside]:
            found.append((at, beside))
            at, beside = at + 1, beside + 1
            continue
        left, left_beside = len(one) - at, len(other) - beside
        skip, skip_beside = _to_next_run(one, other, at, beside, left if whole else min(left, left_beside))
        if not whole and skip + skip_beside > left_beside - _RUN:  # a run that is still to come may be as near
            break
        between = _longest_common(one[at : at + skip], other[beside : beside + skip_beside])
        found += [(at + place, beside + place_beside) for place, place_beside in between]
        at, beside = at + skip, beside + skip_beside
    return found, at, beside


def _to_next_run(one: Sequence[str], other: Sequence[str], at: int, beside: int, left: int) -> tuple[int, int]:
    """Tokens of each before the nearest run of equal ones, nearest by their sum; all tokens without such a run.

    left: tokens of `one` that are looked at.
    """
    left_beside, reach = len(other) - beside, _FIRST_REACH
    while True:
        run = _nearest_run(one[at : at + reach + _RUN], other[beside : beside + reach + _RUN])
        # Tokens out of reach may begin a run only if they are further away than it.
        if run is not None and sum(run) <= reach:
            return run
        if reach >= max(left, left_beside):
            return run or (left, left_beside)
        reach *= 2


def _nearest_run(one: Sequence[str], other: Sequence[str]) -> tuple[int, int] | None:
    runs, runs_beside = (list(zip(*(tokens[start:] for start in range(_RUN)), strict=False)) for tokens in (one, other))
    first = {run: place for place, run in reversed(list(enumerate(runs)))}
    both = ((first[run], beside) for beside, run in enumerate(runs_beside) if run in first)
    return min(both, key=sum, default=None)


def _longest_common(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Places of a longest common subsequence, by Hyyrö's bit-parallel rows ("Bit-parallel LCS-length computation
    revisited", 2004): bit i of row j is 0 where the first i + 1 tokens share one more with the first j + 1 than the
    first i do.
    """
    places: dict[str, int] = {}
    for place, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << place
    every = row = (1 << len(one)) - 1
    rows = []
    for token in other:
        hits = row & places.get(token, 0)
        row = ((row + hits) | (row - hits)) & every
        rows.append(row)
    found: list[tuple[int, int]] = []
    place, beside = len(one) - 1, len(rows) - 1
    while place >= 0 and beside >= 0:
        if rows[beside] >> place & 1:
            place -= 1
        elif beside and not rows[beside - 1] >> place & 1:
            beside -= 1
        else:
            found.append((place, beside))
            place, beside = place - 1, beside - 1
    return found[::-1]
