"""Subtitles of speech: SubRip (.srt) and WebVTT (.vtt).

The subtitles of a segment begin and end exactly where its audio does. A segment that is too long for one subtitle is
split into several, which share the segment's time in proportion to their number of characters without white space.
If the times of words are known, `sentence_cues` makes subtitles of sentences with these times.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import regex

from vivavoce.engine.request import Word
from vivavoce.frontend.speech import Mark
from vivavoce.frontend.text.sentence_stream import LOOKAHEAD, MARK, MAX_HELD, ends_sentence
from vivavoce_textnorm import detect_language

MAX_COLUMNS = 42
"""Maximum width of a subtitle's line in columns; a full-width character, such as a Chinese one, takes two."""
MAX_LINES = 2
"""Maximum number of lines in a subtitle."""

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_OPENING = r"\p{Ps}\p{Pi}"
# The smallest unit that is never split between lines: a word with its punctuation, or a character of a script without
# spaces.
_ATOM = regex.compile(rf"""[{_OPENING}]*(?:[{_CJK}]|[^\s{_CJK}{_OPENING}]+)?[\p{{Pe}}\p{{Pf}}\p{{Po}}]*\s*""")
_CLAUSE = regex.compile(r"""[,;:，；：、–—]["'\p{Pe}\p{Pf}]*\s*\Z""")
# Tags of the natural text normalisation that are not spoken.
_SILENT = regex.compile(r"\s*(?:\[pause [^\[\]]*\][\s\p{P}]*|<[^<>]*>\s*)+")


@dataclass(frozen=True)
class Cue:
    """One subtitle, shown from `start_s` to `end_s` (seconds); text: its lines, separated by line feeds."""

    start_s: float
    end_s: float
    text: str


def to_srt(cues: Iterable[Cue | Mark | Word]) -> str:
    """Return the text of a SubRip file. Long cues are split; cues without spoken text or without time are left out."""
    blocks = (
        f"{number}\n{_time(cue.start_s, ',')} --> {_time(cue.end_s, ',')}\n{cue.text}\n"
        for number, cue in enumerate(split_cues(cues), start=1)
    )
    return "\n".join(blocks)


def to_vtt(cues: Iterable[Cue | Mark | Word]) -> str:
    """Return the text of a WebVTT file; cues are split and left out as in `to_srt`."""
    blocks = (
        f"{_time(cue.start_s, '.')} --> {_time(cue.end_s, '.')}\n{_escaped(cue.text)}\n" for cue in split_cues(cues)
    )
    return "\n".join(("WEBVTT\n", *blocks))


def split_cues(cues: Iterable[Cue | Mark | Word]) -> list[Cue]:
    """Split cues to `MAX_LINES` lines of `MAX_COLUMNS`; each part gets time in proportion to its characters."""
    return [part for cue in cues if cue.end_s > cue.start_s and not _SILENT.fullmatch(cue.text) for part in _split(cue)]


def sentence_cues(text: str, words: Sequence[Word]) -> list[Cue]:
    """One subtitle for each sentence of a text, or several for a long sentence, timed by the sentence's words."""
    begins = [0, *(word.start_character for word in words[1:]), len(text)]
    atoms = [" ".join(text[low:high].split()) + " " for low, high in pairwise(begins)]
    ends, cues, first = sentence_ends(text), list[Cue](), 0
    for last, word in enumerate(words, start=1):
        if last < len(words) and not any(word.start_character < end <= begins[last] for end in ends):
            continue
        for part in _parts(atoms[first:last]):
            own = words[first : first + len(part)]
            cues.append(Cue(own[0].start_s, own[-1].end_s, _wrapped(part)))
            first += len(part)
    return cues


def sentence_ends(text: str) -> list[int]:
    """Return the positions just after each sentence's final punctuation; the stops of "Mr." and "e.g." do not count."""
    language = detect_language(text) if text.strip() else "en"
    found = []
    for mark in MARK.finditer(text):
        before = text[max(0, mark.start() - MAX_HELD) : mark.start()]
        after = text[mark.end() : mark.end() + LOOKAHEAD + 1]
        if not after or (
            mark["stop"] and ends_sentence(before, mark["stop"], mark["closing"], after, language) is not False
        ):
            found.append(mark.end())
    return found


def _split(cue: Cue | Mark | Word) -> Iterator[Cue]:
    parts = list(_parts(_atoms(" ".join(cue.text.split()))))
    ends = list(accumulate((_size(part) for part in parts), initial=0))
    seconds_each = (cue.end_s - cue.start_s) / max(1, ends[-1])
    times = [cue.start_s + seconds_each * end for end in ends[:-1]] + [cue.end_s]
    for part, (start_s, end_s) in zip(parts, pairwise(times), strict=True):
        yield Cue(start_s, end_s, _wrapped(part))


def _atoms(text: str) -> list[str]:
    """Split a text at each place where a line may break; each piece keeps the space after it."""
    return [piece for match in _ATOM.finditer(text) if match[0] for piece in _narrow(match[0])]


def _narrow(atom: str) -> Iterator[str]:
    piece, columns = "", 0
    for character in regex.findall(r"\X", atom):
        width = _columns(character)
        if columns + width > MAX_COLUMNS and not character.isspace():
            yield piece
            piece, columns = "", 0
        piece, columns = piece + character, columns + width
    yield piece


def _parts(atoms: Sequence[str]) -> Iterator[Sequence[str]]:
    while atoms:
        count = _good_end(atoms, _fitting(atoms))
        yield atoms[:count]
        atoms = atoms[count:]


def _fitting(atoms: Sequence[str]) -> int:
    line, used = 1, 0
    for count, atom in enumerate(atoms):
        if used + _columns(atom.rstrip()) > MAX_COLUMNS:
            line, used = line + 1, 0
        if line > MAX_LINES:
            return count
        used += _columns(atom)
    return len(atoms)


def _good_end(atoms: Sequence[str], limit: int) -> int:
    """Return the number of atoms in the next subtitle, at most `limit` and more than its half: up to the last end of a
    sentence in this range, else of a clause, else `limit`."""
    if limit == len(atoms):
        return limit
    lengths = list(accumulate(map(len, atoms), initial=0))
    sentences, counts = sentence_ends("".join(atoms)), range(limit, limit // 2, -1)
    ended = (count for count in counts if any(lengths[count - 1] < end <= lengths[count] for end in sentences))
    return next(ended, next((count for count in counts if _CLAUSE.search(atoms[count - 1])), limit))


def _wrapped(atoms: Sequence[str]) -> str:
    whole = "".join(atoms).rstrip()
    if _columns(whole) <= MAX_COLUMNS:
        return whole
    lines = (("".join(atoms[:count]).rstrip(), "".join(atoms[count:]).rstrip()) for count in range(1, len(atoms)))
    return "\n".join(min(lines, key=lambda pair: max(_columns(line) for line in pair)))


def _size(atoms: Sequence[str]) -> int:
    return sum(not character.isspace() for atom in atoms for character in atom)


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _time(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
