"""Subtitles of a speech: SubRip (.srt) and WebVTT (.vtt).

A segment of the text begins and ends exactly where its audio does. The times of words inside a segment are unknown: a
text that is too long for one subtitle is divided into several, and its time in proportion to their characters, without
white space.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import regex

from vivavoce.frontend.speech import Mark

MAX_COLUMNS = 42
"""Most columns of a line; a character of full width, such as a Chinese one, takes two."""
MAX_LINES = 2
"""Most lines of a subtitle."""

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_OPENING = r"\p{Ps}\p{Pi}"
# These stay on one line: a word with the marks that touch it, or one character of a script without spaces.
_ATOM = regex.compile(rf"""[{_OPENING}]*(?:[{_CJK}]|[^\s{_CJK}{_OPENING}]+)?[\p{{Pe}}\p{{Pf}}\p{{Po}}]*\s*""")
_ENDS = (
    regex.compile(r"""[.?!。？！｡…]["'\p{Pe}\p{Pf}]*\s*\Z"""),
    regex.compile(r"""[,;:，；：、–—]["'\p{Pe}\p{Pf}]*\s*\Z"""),
)
# Tags of the natural reading that are silent.
_SILENT = regex.compile(r"\s*(?:\[pause [^\[\]]*\][\s\p{P}]*|<[^<>]*>\s*)+")


@dataclass(frozen=True)
class Cue:
    """One subtitle: its lines are seen from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    text: str


def to_srt(cues: Iterable[Cue | Mark]) -> str:
    """The content of a SubRip file; cues that are too long are split, silent and empty ones left out."""
    blocks = (
        f"{number}\n{_time(cue.start_s, ',')} --> {_time(cue.end_s, ',')}\n{cue.text}\n"
        for number, cue in enumerate(split_cues(cues), start=1)
    )
    return "\n".join(blocks)


def to_vtt(cues: Iterable[Cue | Mark]) -> str:
    """The content of a WebVTT file; see `to_srt`."""
    blocks = (
        f"{_time(cue.start_s, '.')} --> {_time(cue.end_s, '.')}\n{_escaped(cue.text)}\n" for cue in split_cues(cues)
    )
    return "\n".join(("WEBVTT\n", *blocks))


def split_cues(cues: Iterable[Cue | Mark]) -> list[Cue]:
    """Subtitles of at most `MAX_LINES` lines of `MAX_COLUMNS`; a longer cue's time is shared out by characters."""
    return [part for cue in cues if cue.end_s > cue.start_s and not _SILENT.fullmatch(cue.text) for part in _split(cue)]


def _split(cue: Cue | Mark) -> Iterator[Cue]:
    parts = list(_parts(_atoms(" ".join(cue.text.split()))))
    ends = list(accumulate((_size(part) for part in parts), initial=0))
    seconds_each = (cue.end_s - cue.start_s) / max(1, ends[-1])
    times = [cue.start_s + seconds_each * end for end in ends[:-1]] + [cue.end_s]
    for part, (start_s, end_s) in zip(parts, pairwise(times), strict=True):
        yield Cue(start_s, end_s, _wrapped(part))


def _atoms(text: str) -> list[str]:
    """The text in pieces that may stand on lines of their own, each with the space after it."""
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
    """The number of atoms up to the last end of a sentence, or of a clause, in the second half."""
    if limit == len(atoms):
        return limit
    for end in _ENDS:
        for count in range(limit, limit // 2, -1):
            if end.search(atoms[count - 1]):
                return count
    return limit


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
