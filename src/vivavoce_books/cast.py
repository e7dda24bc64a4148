"""The cast of a book: names and their voices, and labels and tags in the text that name the speaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import regex

from vivavoce.errors import InvalidRequest

NARRATOR = "narrator"
MAX_CAST_BYTES = 1_000_000
_NAME = r"[^\[\]\n=|#:]{1,64}"
_TAG = rf"\[voice:\s*(?P<tag>{_NAME})\]|(?P<end>\[/voice\])"


@dataclass(frozen=True)
class Part:
    """The voice of a name of the cast. voice: as in `--voice`; transcript: the words of a recording."""

    voice: str | None = None
    transcript: str = ""


Cast = Mapping[str, Part]
"""Name in lower case → its voice; `NARRATOR` is always one of the names."""


@dataclass(frozen=True)
class Span:
    """Characters start … end − 1 of a text. role: name that speaks them; reason: why they are not spoken, or ""."""

    start: int
    end: int
    role: str = NARRATOR
    reason: str = ""


def read_cast(given: Sequence[str], narrator: Part) -> dict[str, Part]:
    """Read the values of `--cast`: files, or entries such as "anna=anna.wav". A later entry for a name wins.

    Raises:
        InvalidRequest: a file cannot be read, or has a line that is not an entry.
    """
    cast = {NARRATOR: Part()}
    for one in given:
        if "=" in one and not Path(one).is_file():
            cast.update([_entry(one, repr(one))])
        else:
            lines = enumerate((line.partition("#")[0].strip() for line in _lines(one)), start=1)
            cast.update(_entry(line, f"line {number} of {one!r}") for number, line in lines if line)
    return cast if narrator == Part() else {**cast, NARRATOR: narrator}


def cast_of(voices: Mapping[str, str], narrator: str | None) -> dict[str, Part]:
    """Make a cast from names and their voices. InvalidRequest: a name is too long, or has a forbidden character."""
    for name in voices:
        if not regex.fullmatch(_NAME, name.strip()):
            raise InvalidRequest(f"cast: {name[:70]!r} is not a name; use 1 to 64 characters without [ ] = | # and :")
    cast = {NARRATOR: Part(), **{name.strip().casefold(): Part(voice) for name, voice in voices.items()}}
    return cast if narrator is None else {**cast, NARRATOR: Part(narrator)}


def _lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CAST_BYTES + 1)
        if len(content) > MAX_CAST_BYTES:
            raise InvalidRequest(f"cast: {path!r} is larger than {MAX_CAST_BYTES} bytes; name a file of voices")
        return content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise InvalidRequest(
            f"cast: {path!r} cannot be read ({error.strerror}); name a file, or give NAME=VOICE"
        ) from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"cast: {path!r} is not UTF-8; save it as UTF-8 text") from None


def _entry(text: str, place: str) -> tuple[str, Part]:
    name, _, rest = (one.strip() for one in text.partition("="))
    voice, _, transcript = (one.strip() for one in rest.partition("|"))
    if not (voice and regex.fullmatch(_NAME, name)):
        raise InvalidRequest(f"cast: {place} is not an entry; write NAME = VOICE, or NAME = RECORDING | its words")
    return name.casefold(), Part(voice, transcript)


def stretches(text: str, cast: Cast, role: str) -> tuple[list[Span], list[Span], str]:
    """Split a block by role. Return spans to speak, spans of labels and tags, and the role at the end of the block.

    A line that begins with a name of the cast and a colon is spoken by that name up to the line's end. A tag applies up
    to the next tag. role: role at the start of the block. InvalidRequest: a tag has a name that is not in the cast.
    """
    names = "|".join(regex.escape(name) for name in sorted(cast, key=len, reverse=True))
    sign = regex.compile(rf"{_TAG}|^[ \t]*(?P<label>{names})[ \t]*[:：]\s*|(?P<line>\n)", regex.M | regex.I)
    spoken: list[Span] = []
    left_out: list[Span] = []
    begin, line_role = 0, ""
    for found in sign.finditer(text):
        if found["line"] and not line_role:
            continue
        spoken.append(Span(begin, found.start(), line_role or role))
        begin, line_role = found.end(), (found["label"] or "").casefold()
        if found["tag"] or found["end"]:
            role = found["tag"].strip().casefold() if found["tag"] else NARRATOR
            if role not in cast:
                raise InvalidRequest(
                    f"cast: {found[0]} is not in the cast ({', '.join(cast)}); name a voice for {role!r} there"
                )
        if not found["line"]:
            left_out.append(Span(found.start(), begin, reason="label" if found["label"] else "voice tag"))
    spoken.append(Span(begin, len(text), line_role or role))
    return [one for one in spoken if text[one.start : one.end].strip()], left_out, role
