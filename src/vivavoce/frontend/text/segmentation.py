"""Splits normalised text into segments of a suitable length, and finds which input characters each segment speaks.

The normaliser wetext does not tell which input characters became which words; an alignment finds them. The tokens of
the input (words, numbers, punctuation, Chinese or Japanese characters) are matched in order with the tokens of the
segments. Most tokens are unchanged. Numbers, dates, units and abbreviations became words and match nothing. The end of
a segment lies between two matched tokens of the input. If there are other tokens between these two, the end is placed
at punctuation between them, else at a space, else in proportion to the length of the words.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import regex

from vivavoce.frontend.text.sentence_stream import GERMAN_CLOSING, LOOKAHEAD, MARK, MAX_HELD, ends_sentence
from vivavoce_textnorm import Language, is_speakable

_SENTENCE_MARKS: dict[str, str] = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_COMMAS = "，,"
_CLOSING_QUOTES = '"”'
_FINAL_MARK: dict[Language, str] = {"zh": "。", "ja": "。"}
_ENDED = regex.compile(r"""[\p{Sentence_Terminal}…:：;；]["'*_\p{Pe}\p{Pf}“«\s]*\Z""")
_LONGEST_SENTENCE = 2_000
"""Text without a sentence end is cut when it is longer than this number of characters."""

_ONLY_PUNCTUATION = regex.compile(r"[\p{P}\p{S}]*")
_AFTER_COMMA = regex.compile(r"[，、]|,(?=\s)")
_SPACE = regex.compile(r"\s+")
# Units that are never cut: a tag, or a character with its combining marks.
_ATOM = regex.compile(r"<\|[^|<>]{1,40}\|>|\[[\w-]{1,40}\]|</?\w{1,40}>|\X")

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_MARKS = ".?!;:,。？！；：，、．｡…"
# Punctuation inside a number belongs to the number; several punctuation marks in a row are one token.
_TOKEN = regex.compile(
    rf"[{_CJK}]|[[\p{{L}}\p{{M}}]--[{_CJK}]]+|\p{{N}}+(?:[.,:/-]\p{{N}}+)*+|[{_MARKS}]+", regex.VERSION1
)
_SAME_MARK = str.maketrans("。？！；：，、．｡…", ".?!;:,,...")
_SAME_MARKS = frozenset(".?!;:,")

_REACH = 300
"""Maximum distance, in characters, from the estimated end of a segment to its chosen end, if no token matches."""
# Quotes that may open or close (" ' * _) count as closing before a space, a closing mark or the text's end; the German
# “ and « count as closing before a space or mark.
_CLOSERS = rf"{_MARKS}\p{{Pe}}\p{{Pf}}"
_CLOSING = regex.compile(rf"""(?:[{_CLOSERS}]|["'*_]+(?=[{_CLOSERS}\s]|\Z)|{GERMAN_CLOSING})*+\s*""")
_OPENING = regex.compile(r"""["'*_\p{Ps}\p{Pi}]+\Z""")


def is_only_punctuation(text: str) -> bool:
    """Return whether every character is punctuation or a symbol (Unicode P or S); true for the empty text."""
    return _ONLY_PUNCTUATION.fullmatch(text) is not None


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
    """Split text at its punctuation and join sentences up to a maximum length, as the official front end does.

    text: pieces of any length. Each segment is yielded as soon as no later text can change it, together with the text
    after it that is known so far.

    `length` measures text (in characters for zh, in tokens otherwise). A segment ends if it is longer than
    `token_min_n` and the next sentence would make it longer than `token_max_n`; so a long sentence stays whole. If the
    last segment is shorter than `merge_len`, it is joined to the previous segment. A text without final punctuation
    gets a full stop; a text of punctuation only gives no segment. For languages other than zh and en, `ends_sentence`
    finds the sentences, and all marks stay in the text. comma_split: for zh and en, also split at commas."""
    if lang == "zh" or lang == "en":
        marks = _SENTENCE_MARKS[lang] + (_COMMAS if comma_split else "")
        sentences = _sentences(text, marks, _FINAL_MARK.get(lang, "."))
    else:
        sentences = _written_sentences("".join(text), lang, _FINAL_MARK.get(lang, "."))
    closed, current, current_length = "", "", 0
    for sentence in sentences:
        joined = current + sentence
        joined_length = length(joined)  # measured only once, because for English this runs the tokenizer
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
    """Cut a text after each punctuation mark in `marks`; a closing quote after a mark belongs to the same sentence.

    A mark without text before it is dropped. If the text begins with a mark and a closing quote, the quote begins the
    first sentence (the official code fails there)."""
    mark, quote = f"[{regex.escape(marks)}]", f"[{_CLOSING_QUOTES}]"
    complete = regex.compile(rf"[^{regex.escape(marks)}]+{mark}(?P<after>{quote}?(?:{mark}{quote}?)*+)")
    held = ""
    for piece in chain(text, (None,)):
        held = (held + (piece or "")).lstrip(marks)  # `held` can begin with a mark only at the text's start
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
    """Split a text at sentence ends. White space between two sentences belongs to the second sentence."""
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
    """Cut a text in two, and each part again, until `length` of every part is at most `limit`.

    Each cut is near the middle: if possible after a comma, else after white space, else between two characters, but
    not inside a tag such as `[laughter]`, if the text has more than this tag. A single character is never cut. The
    parts, joined, are the text."""
    if len(text) < 2 or length(text) <= limit:
        return [text]
    middle = _cut_near_middle(text)
    return [*cut_long(text[:middle], length, limit), *cut_long(text[middle:], length, limit)]


def _cut_near_middle(text: str) -> int:
    size = len(text)
    for pattern, margin in ((_AFTER_COMMA, size // 4), (_SPACE, size // 4), (_ATOM, 0)):
        ends = (match.end() for match in pattern.finditer(text))
        inner = [end for end in ends if max(margin, 1) <= end <= size - max(margin, 1)]
        if inner:
            return min(inner, key=lambda end: abs(2 * end - size))
    return size // 2


class TextSegment(NamedTuple):
    """A segment. spoken: its normalised text. It speaks the characters start … end − 1 of the text.

    rate: factor that multiplies the request's speed. pause_s: seconds of silence, for a segment without words."""

    spoken: str
    start: int
    end: int
    rate: float = 1.0
    pause_s: float = 0.0


def find_spans(
    text: str, pieces: Iterable[tuple[Sequence[str], str]], said: Sequence[tuple[int, str]]
) -> Iterator[TextSegment]:
    """Yield each segment with its range of characters in `text`. The ranges are in order and cover the whole text.

    pieces: lists of segments, each list with the text after it that is known so far. said: for each block of the text,
    the block's end in the text and its normalised words; this list grows while pieces arrive. A segment is yielded as
    soon as it is known whether another segment follows. Closing quotes and white space after a segment belong to the
    segment. A range is empty if several segments speak the same character."""
    aligned, start, waiting = _Aligned(text, said), 0, deque[str]()
    for segments, following in chain(pieces, (((), None),)):
        waiting.extend(segments)
        while waiting and (len(waiting) > 1 or following is None or is_speakable(following)):
            spoken, before = waiting.popleft(), start
            start = max(start, aligned.end_of(spoken)) if waiting or following is not None else len(text)
            yield TextSegment(spoken, before, start)


class _Aligned:
    """Finds the end of each segment in the text: aligns the text's tokens with its normalised words, block by block."""

    def __init__(self, text: str, blocks: Sequence[tuple[int, str]]) -> None:
        self._text, self._blocks = text, blocks
        self._words_end = 0  # end of the last segment in the words of all blocks
        self._block, self._end, self._said_end = -1, 0, 0  # the block's number, its end in the text and in the words

    def end_of(self, segment: str) -> int:
        words = "".join(said for _, said in self._blocks)
        if words.startswith(segment, self._words_end):
            self._words_end += len(segment)
        else:  # some punctuation of the words was left out of the segment
            for character in segment:
                self._words_end = words.find(character, self._words_end) + 1 or self._words_end
        said = self._words_end
        if segment[-1:] in _MARKS:
            said += len(words[said:]) - len(words[said:].lstrip(_MARKS))
        start, block = (self._end, self._said_end), self._block
        while self._block < 0 or (said > self._said_end and self._block + 1 < len(self._blocks)):
            start, self._block = (self._end, self._said_end), self._block + 1
            self._end, self._said_end = self._blocks[self._block][0], self._said_end + len(self._blocks[self._block][1])
        if self._block > block:
            self._align(words, *start)
        return self._cut(said)

    def _align(self, words: str, start: int, start_said: int) -> None:
        self._tokens, self._keys = tokens_of(self._text, start, self._end)
        self._said, self._said_keys = tokens_of(words, start_said, self._said_end)
        # Matched tokens: start and end in the written text, start and end in the spoken words.
        self._pairs = [(start, start, start_said, start_said)]
        self._pairs += [self._tokens[at] + self._said[beside] for at, beside in matches(self._keys, self._said_keys)]
        self._pairs.append((len(self._text), len(self._text), self._said_end, self._said_end))

    def _cut(self, said: int) -> int:
        following = min(bisect_left(self._pairs, said, lo=1, key=lambda pair: pair[2]), len(self._pairs) - 1)
        (before, start, said_before, said_start), (end, _, said_end, _) = self._pairs[following - 1 : following + 1]
        if said_start > said:  # the segment ends inside a matched token: `cut_long` cut a long word
            return min(before + said - said_before, start)
        last = bisect_left(self._said, (said,)) - 1
        if last < 0 or self._said[last][1] <= said_start:
            return self._past_closing(start, end)
        # The last token of the segment has no match: estimate its end.
        whole = min(end, self._end)
        wanted = start + round((said - said_start) / max(1, said_end - said_start) * (whole - start))
        if last + 1 >= len(self._said) or self._said[last + 1][0] >= said_end:  # the next token matches
            wanted = whole
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
            past = _CLOSING.match(text, past + 1).end()  # Chinese has no space after a quote
        return min(past, end)


def tokens_of(text: str, start: int = 0, end: int | None = None) -> tuple[list[tuple[int, int]], list[str]]:
    """Find the tokens of a text (words, numbers, punctuation, CJK characters). Return their spans and their keys: two
    tokens match if their keys are equal."""
    tokens = list(_TOKEN.finditer(text, start, end))
    keys = {word: _key(word) for word in {token[0] for token in tokens}}
    return [token.span() for token in tokens], [keys[token[0]] for token in tokens]


def _key(token: str) -> str:
    if token[0] in _MARKS:
        return token[0].translate(_SAME_MARK)
    return unicodedata.normalize("NFKC", token).casefold()


def matches(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Find a longest common subsequence. Return its elements' pairs of indices (in `one`, in `other`), ascending."""
    unequal = (place for place, (token, beside) in enumerate(zip(one, other, strict=False)) if token != beside)
    same = next(unequal, min(len(one), len(other)))
    rest = _longest_common(one[same:], other[same:])
    return [*((place, place) for place in range(same)), *((same + at, same + beside) for at, beside in rest)]


def _longest_common(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Do as `matches`, by bit-parallel rows (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004).

    Bit i of row j is 0 if the longest common subsequence of one[:i + 1] and other[:j + 1] is longer than that of
    one[:i] and other[:j + 1]."""
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
