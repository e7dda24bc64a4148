"""Voice names: rules, summaries for lists, aliases, and errors.

A name is also a file's name, so the rules keep it inside its folder.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Literal

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce_textnorm import excerpt

PUBLIC = ""
"""Owner of the voices that all callers see."""

MAX_NAME_CHARS = 64
MAX_NAME_BYTES = 240
"""In UTF-8: file systems limit names to 255 bytes."""

MAX_LISTED = 8
"""Known names that a message lists."""
MAX_COMPARED = 32
"""Known names that are searched for a similar one."""

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
    *("onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names of OpenAI's voices; some programs for its service accept only these."""

_RULE = f"use 1 to {MAX_NAME_CHARS} letters, digits, '-', '_', '.' and spaces, no '.' first, no space at an end"
_SIGNS = frozenset("-_. ")
_MAX_DECOMPOSITION = 4
"""Code points that NFC may join into one. Longer names are refused unnormalised: normalising may be quadratic."""


ALIASES_IN_A_ROW = 2
"""A configured alias may stand for an OpenAI name, and that for a voice."""


@dataclass(frozen=True)
class VoiceSummary:
    """A voice in a list.

    kind: "built_in" (the model's), "stored", or "alias" (another name of the voice `stands_for`); public: all callers
    see it, else only its owner; transcript: the words of its reference, "" if unknown; has_prompt: it has reference
    speech beside the speaker embedding; language, sex: of a built-in voice, "" if unknown; consent, consent_by,
    consent_at: see `Consent`, "" without one; adapter: the LoRA adapter that speaks with it, "" without one; warnings:
    what to record better, in the answer that adds it.
    """

    name: str
    kind: Literal["built_in", "stored", "alias"]
    public: bool
    description: str = ""
    transcript: str = ""
    has_prompt: bool = True
    stands_for: str = ""
    language: str = ""
    sex: str = ""
    consent: str = ""
    consent_by: str = ""
    consent_at: str = ""
    adapter: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class NameRules:
    """How names are resolved that are not voices themselves.

    aliases: further names of voices; default: the voice for requests without one, None for the model's first; unknown:
    refuse a name without a meaning, or let the default voice speak.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    unknown: Literal["refuse", "default"] = "refuse"

    def table(self, built_in: Iterable[str]) -> dict[str, str]:
        """All aliases with the names of their voices. OpenAI's names are spread over built-in voices in order; without
        built-in voices all mean the default voice. Configured aliases win.
        """
        own = list(built_in) or ([] if self.default is None else [self.default])
        return {**dict(zip(OPENAI_VOICES, cycle(own), strict=False)), **self.aliases}

    def alias_summaries(self, voices: Mapping[str, VoiceSummary], built_in: Iterable[str]) -> list[VoiceSummary]:
        table = self.table(built_in)
        found = {name: voices.get(meant_by(name, voices, table)) for name in table if name not in voices}
        return [
            replace(voice, name=name, kind="alias", stands_for=voice.name)
            for name, voice in found.items()
            if voice is not None
        ]


def meant_by(name: str, voices: Container[str], table: Mapping[str, str]) -> str:
    for _ in range(ALIASES_IN_A_ROW):
        name = name if name in voices else table.get(name, name)
    return name


def check_voice_name(name: str) -> str:
    """The name in normal form C, in which a voice is stored and looked up.

    Allowed are 1 to 64 Unicode letters with their marks, decimal digits, `-`, `_`, `.` and spaces; no `.` and no
    mark first, no space first or last, and no more than 240 bytes in UTF-8. Case is kept. Else InvalidRequest.
    """
    too_long = len(name) > MAX_NAME_CHARS * _MAX_DECOMPOSITION
    normal = name if too_long else unicodedata.normalize("NFC", name)
    problem = _problem(normal)
    if problem is not None:
        raise InvalidRequest(f"voice name: {excerpt(name)} {problem}; {_RULE}")
    return normal


def is_voice_name(name: str) -> bool:
    try:
        check_voice_name(name)
    except InvalidRequest:
        return False
    return True


def folded(name: str) -> str:
    """The key for canonical caseless matching (Unicode 3.13): names that differ only in case share it.

    A file system that folds case treats such names as one.
    """
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def unknown_voice(name: str, known: Iterable[str]) -> VoiceNotFound:
    """The error for an unknown name; reads at most `MAX_COMPARED` of the known names."""
    first = list(islice(known, MAX_COMPARED))
    if not first:
        way_out = "add one from a recording, or send a recording in its place"
        return VoiceNotFound(f"voice: {excerpt(name)} is not registered (no voice is known yet); {way_out}")
    listed = ", ".join(first[:MAX_LISTED]) + (" and more" if len(first) > MAX_LISTED else "")
    near = difflib.get_close_matches(name, first, n=1, cutoff=0.6) if len(name) <= MAX_NAME_CHARS else []
    way_out = f"did you mean {near[0]}?" if near else "name one that is, or add it from a recording"
    return VoiceNotFound(f"voice: {excerpt(name)} is not registered (known: {listed}); {way_out}")


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
