"""Voice names: rules, summaries for lists, aliases, and errors.

A voice's name is also its file's name, so the rules allow no name that leads out of the folder.
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
"""The owner of public voices, which all callers can use."""

MAX_NAME_CHARS = 64
MAX_NAME_BYTES = 240
"""Maximum length of a name in UTF-8; file systems limit file names to 255 bytes."""

MAX_LISTED = 8
"""Maximum number of known names that an error message lists."""
MAX_COMPARED = 32
"""Maximum number of known names that are compared with an unknown name, to suggest a similar one."""

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
    *("onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names of OpenAI's voices; some client programs accept only these names."""

_RULE = f"use 1 to {MAX_NAME_CHARS} letters, digits, '-', '_', '.' and spaces, no '.' first, no space at an end"
_SIGNS = frozenset("-_. ")
_MAX_DECOMPOSITION = 4
"""Maximum number of code points that NFC joins into one character. If a name is too long even after such joining, it is
refused before normalisation, because normalisation may take quadratic time."""

ALIASES_IN_A_ROW = 2
"""Maximum length of a chain of aliases: a configured alias may name an OpenAI voice, which is an alias of a voice."""


@dataclass(frozen=True)
class VoiceSummary:
    """A voice in a list.

    kind: "built_in" (part of the model), "stored", or "alias" (another name of the voice `stands_for`). public: whether
    all callers can use it, or only its owner. transcript: text of its reference, or "". has_prompt: whether it has
    reference speech, not only a speaker embedding. language, sex: known for some built-in voices, otherwise "".
    consent, consent_by, consent_at: the fields of `Consent`, or "". adapter: the voice's LoRA adapter, or "". warnings:
    advice for a better recording; only in the answer to the request that adds the voice."""

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
    """Rules for requests that name no voice, or a name that is not a voice's.

    aliases: further names, with the names of their voices. default: the voice for requests that name no voice; None
    means the model's first voice. unknown: whether to refuse an unknown name, or to use the default voice for it."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    unknown: Literal["refuse", "default"] = "refuse"

    def table(self, built_in: Iterable[str]) -> dict[str, str]:
        """Return all aliases with the names of their voices. OpenAI's names are assigned to the built-in voices in
        turn, or all to `default` if the model has no built-in voices. Configured aliases take precedence."""
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
    """Return a name in NFC, the form in which voices are stored and found. Raises InvalidRequest if it is not allowed.

    A name has 1 to 64 characters: Unicode letters with combining marks, decimal digits, `-`, `_`, `.` and spaces. It
    does not begin with `.` or a mark, does not begin or end with a space, and has at most 240 bytes in UTF-8. Upper and
    lower case stay.
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
    """Return a key for comparing names without case (canonical caseless matching, Unicode 3.13).

    Two names with equal keys must not both exist: a file system that ignores case would store them in one file.
    """
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def unknown_voice(name: str, known: Iterable[str]) -> VoiceNotFound:
    """Return the error for an unknown name; at most `MAX_COMPARED` names are read from `known`."""
    first = list(islice(known, MAX_COMPARED))
    if not first:
        way_out = "add one from a recording, or send a recording in its place"
        return VoiceNotFound(f"voice: {excerpt(name)} is not registered (no voice is known yet); {way_out}")
    listed = ", ".join(first[:MAX_LISTED]) + (" and more" if len(first) > MAX_LISTED else "")
    near = difflib.get_close_matches(name, first, n=1, cutoff=0.6) if len(name) <= MAX_NAME_CHARS else []
    way_out = f"did you mean {near[0]}?" if near else "choose a known name, or add a voice from a recording"
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
