"""Utterances from a file: a list in the form of seed-tts-eval, or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vivavoce.clients.triton.utterance import Utterance
from vivavoce.errors import InvalidRequest

NAME_FIELDS = ("name", "id", "utt")
TEXT_FIELDS = ("target_text", "text")
REFERENCE_TEXT_FIELDS = ("reference_text", "prompt_text")
REFERENCE_FIELDS = ("reference_audio", "prompt_audio", "audio_filepath")


class _BadLineError(Exception):
    """What is wrong with a line; `read_manifest` adds where."""


def read_manifest(path: Path, field: str = "manifest_path") -> list[Utterance]:
    """The utterances of a UTF-8 file; empty lines are skipped, and recordings are looked for from the file's folder.

    A line that starts with `{` is JSON with a text (`target_text` or `text`) and maybe a name (`name`, `id` or `utt`),
    a recording (`reference_audio`, `prompt_audio` or `audio_filepath`) and its text (`reference_text` or
    `prompt_text`). Any other is `name|reference text|reference recording|text`, and maybe a fifth field, not used here.
    `field` is what errors call the file.

    Raises:
        InvalidRequest: the file cannot be read or is empty, a line has another form, or a recording is not there.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{field}: {str(path)!r} is not UTF-8 (at byte {error.start}); save it as UTF-8 text"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{field}: {str(path)!r} cannot be read ({error.strerror}); check the path") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            parse = _json_line if line.lstrip().startswith("{") else _list_line
            found.append(parse(line.strip(), number, path.parent))
        except _BadLineError as error:
            raise InvalidRequest(f"{field}: line {number} of {str(path)!r} {error}") from None
    if not found:
        raise InvalidRequest(f"{field}: {str(path)!r} holds no lines; write at least one")
    return found


def first_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first field of these names that is there and not empty; else None."""
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), None)


def default_name(number: int) -> str:
    """The name of the utterance with that number (from 1) that has none of its own."""
    return f"{number:05d}"


def name_of(fields: Mapping[str, Any], number: int) -> str:
    """The name among these fields, of which 0 is one too; else the one by its number (from 1)."""
    name = first_of(fields, NAME_FIELDS)
    return default_name(number) if name is None else str(name)


def _json_line(line: str, number: int, folder: Path) -> Utterance:
    try:
        fields: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise _BadLineError(f"is no JSON ({error}); write one object a line") from None
    text = first_of(fields, TEXT_FIELDS)
    if not isinstance(text, str) or not text.strip():
        raise _BadLineError(f"has no text; name it {' or '.join(TEXT_FIELDS)}")
    recording = first_of(fields, REFERENCE_FIELDS)
    return Utterance(
        name=name_of(fields, number),
        text=text,
        reference=None if recording is None else _existing(folder, str(recording)),
        reference_text=str(first_of(fields, REFERENCE_TEXT_FIELDS) or ""),
    )


def _list_line(line: str, number: int, folder: Path) -> Utterance:
    fields = [field.strip() for field in line.split("|")]
    if len(fields) not in (4, 5):
        raise _BadLineError(f"has {len(fields)} fields; write name|reference text|reference recording|text, or JSON")
    name, reference_text, recording, text = fields[:4]
    if not text:
        raise _BadLineError("has an empty text; fill it in")
    reference = _existing(folder, recording) if recording else None
    return Utterance(name or default_name(number), text, reference, reference_text)


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise _BadLineError(f"names {name!r}, which is no file in {str(folder)!r}; check the path")
    return path
