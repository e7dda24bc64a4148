"""Voices without their tensors: what a stored one may be called, what a list tells of it, errors about names.

A name is also a file's name, so the rules keep it inside of its folder.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.service.text.checks import excerpt

PUBLIC = ""
"""The owner of the voices that everybody sees."""

MAX_NAME_CHARS = 64
MAX_NAME_BYTES = 240
"""In UTF-8. File systems end names at 255 bytes; only letters beyond the basic plane come near to this."""

MAX_LISTED = 8
"""Known names that a message lists."""

_RULE = f"use 1 to {MAX_NAME_CHARS} letters, digits, '-', '_', '.' and spaces, no '.' first, no space at an end"
_SIGNS = frozenset("-_. ")
_MAX_DECOMPOSITION = 4
"""Code points that NFC may join into one. Longer names are refused as they are: normalising is quadratic at worst."""


@dataclass(frozen=True)
class VoiceSummary:
    """A voice that may be asked for by its name.

    kind: "built_in" (of the model) or "stored"; public: all callers see it, else its owner alone; transcript: what its
    reference says, "" if unknown; has_prompt: it has reference speech, beside the speaker embedding.
    """

    name: str
    kind: Literal["built_in", "stored"]
    public: bool
    description: str = ""
    transcript: str = ""
    has_prompt: bool = True


def check_voice_name(name: str) -> str:
    """The name in normal form C, in which a voice is stored and looked up.

    Allowed are 1 to 64 Unicode letters with their marks, decimal digits, `-`, `_`, `.` and spaces; no `.` and no
    mark first, no space first or last, and no more than 240 bytes in UTF-8. Case is kept.

    Raises:
        InvalidRequest: says which part of the rule the name breaks.
    """
    too_long = len(name) > MAX_NAME_CHARS * _MAX_DECOMPOSITION
    normal = name if too_long else unicodedata.normalize("NFC", name)
    problem = _problem(normal)
    if problem is not None:
        raise InvalidRequest(f"voice name: {excerpt(name)} {problem}; {_RULE}")
    return normal


def is_voice_name(name: str) -> bool:
    """Whether `check_voice_name` accepts the name."""
    try:
        check_voice_name(name)
    except InvalidRequest:
        return False
    return True


def folded(name: str) -> str:
    """What all names that differ in case only have in common (canonical caseless matching, Unicode 3.13).

    A file system that folds case takes them for one.
    """
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def unknown_voice(name: str, known: Iterable[str]) -> VoiceNotFound:
    """The error for a name that no voice has; takes at most nine of the known names."""
    first = list(islice(known, MAX_LISTED + 1))
    listed = ", ".join(first[:MAX_LISTED]) + (" and more" if len(first) > MAX_LISTED else "")
    known_text = f"known: {listed}" if first else "no voice is known yet"
    return VoiceNotFound(f"voice: {excerpt(name)} is not registered ({known_text}); add it with `vivavoce voice add`")


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"has {len(name)} characters, more than {MAX_NAME_CHARS}"
    if name.startswith("."):
        return "begins with '.'"
    if name != name.strip(" "):
        return "begins or ends with a space"
    for character in name:
        if not (character in _SIGNS or character.isalpha() or character.isdecimal() or _is_mark(character)):
            return f"holds {character!a}"
    if _is_mark(name[0]):
        return f"begins with the mark {name[0]!a}"
    if (num_bytes := len(name.encode())) > MAX_NAME_BYTES:
        return f"takes {num_bytes} bytes in UTF-8, more than {MAX_NAME_BYTES}"
    return None


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
