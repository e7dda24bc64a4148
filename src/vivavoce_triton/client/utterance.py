"""Utterances that clients request, lists of utterances in files and data sets, and the options of a load test."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_bench.measure import read_records

MAX_TIMEOUT_S = 86_400.0
"""Largest timeout: one day. Libraries fail with larger timeouts."""
MAX_TASKS = 4096
MAX_OVERLAP_S = 1.0
NAME_FIELDS = ("name", "id", "utt")
TEXT_FIELDS = ("target_text", "text")
REFERENCE_TEXT_FIELDS = ("reference_text", "prompt_text")
REFERENCE_FIELDS = ("reference_audio", "prompt_audio", "audio_filepath")
_INT64 = 1 << 63


@dataclass(frozen=True)
class Utterance:
    """One text to speak, and a recording of the voice.

    name: prefix of its file names, unique within a load test; reference: the recording as a path or bytes, or None for
    the server's default voice; reference_text: the transcript of the recording.
    """

    name: str
    text: str
    reference: Path | bytes | None = None
    reference_text: str = ""


@dataclass(frozen=True)
class Manner:
    """Optional inputs that the original deployment lacks, named like their tensors. None: the input is not sent."""

    voice: str | None = None
    instruct_text: str | None = None
    seed: int | None = None
    speed: float | None = None
    reading: str | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and not -_INT64 <= self.seed < _INT64:
            raise InvalidRequest(f"seed: {self.seed} does not fit in 64 bits; choose a smaller one")
        if self.speed is not None and not 0 < self.speed < math.inf:
            raise InvalidRequest(f"speed: {self.speed} is not a number above 0; 1 is the model's own speed")


def check_reference_text(reference: Path | None, text: str) -> None:
    """Raise `InvalidRequest` if a transcript is given without a recording, because it would not be sent."""
    if text and reference is None:
        raise InvalidRequest("reference_text: belongs to a recording; name it with --reference-audio, or leave it out")


def check_utterances(utterances: Sequence[Utterance]) -> None:
    """Raise `InvalidRequest` if the list is empty, or names are repeated or cannot be file names."""
    if not utterances:
        raise InvalidRequest("utterances: the list is empty; give at least one text")
    seen: set[str] = set()
    for utterance in utterances:
        name = utterance.name
        if not name or name in (".", "..") or any(separator in name for separator in "/\\\0"):
            raise InvalidRequest(f"name: {name!r} cannot be a file's name; leave slashes out")
        if name in seen:
            raise InvalidRequest(f"name: {name!r} occurs more than once; give each utterance its own name")
        seen.add(name)


def check_timeout(timeout_s: float) -> None:
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"timeout: {timeout_s:g} s is not above 0 and at most {MAX_TIMEOUT_S:g} s; choose another")


def first_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), None)


def read_manifest(path: Path, field: str = "manifest_path") -> list[Utterance]:
    """Read utterances from a UTF-8 file. Empty lines are skipped, and paths are relative to the file's folder.

    A line that starts with `{` is JSON. It has a text (`target_text` or `text`) and optionally a name (`name`, `id` or
    `utt`), a recording (`reference_audio`, `prompt_audio` or `audio_filepath`) and its transcript (`reference_text` or
    `prompt_text`). Any other line is `name|reference text|reference recording|text`; a fifth field is ignored. If
    the file cannot be used, `InvalidRequest` calls it `field`.
    """
    return read_records(path, field, lambda line, number: _utterance(line, number, path.parent))


def _utterance(line: str, number: int, folder: Path) -> Utterance:
    if line.lstrip().startswith("{"):
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not JSON ({error}); write one object a line") from None
    else:
        parts = [field.strip() for field in line.split("|")]
        if len(parts) not in (4, 5):
            raise ValueError(f"has {len(parts)} fields; write name|reference text|reference recording|text, or JSON")
        fields = dict(zip(("name", "reference_text", "reference_audio", "text"), parts, strict=False))
    text, recording = first_of(fields, TEXT_FIELDS), first_of(fields, REFERENCE_FIELDS)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"has no text; name it {' or '.join(TEXT_FIELDS)}, and fill it in")
    reference = None if recording is None else folder / str(recording)
    if reference is not None and not reference.is_file():
        raise ValueError(f"names {str(recording)!r}, which is not a file in {str(folder)!r}; check the path")
    return Utterance(_name(fields, number), text, reference, _reference_text(fields))


def _name(fields: Mapping[str, Any], number: int) -> str:
    name = first_of(fields, NAME_FIELDS)
    return f"{number:05d}" if name is None else str(name)


def _reference_text(fields: Mapping[str, Any]) -> str:
    return str(first_of(fields, REFERENCE_TEXT_FIELDS) or "")


def read_dataset(name: str, split: str | None, most: int | None = None) -> list[Utterance]:
    """Read one split of a Hugging Face data set, given by name or folder. Recordings stay encoded.

    split: its name, or None for the only split; most: largest number of rows. `InvalidRequest`: the data set cannot be
    loaded, lacks the split, has several splits to choose from, or lacks a text column.
    """
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise MissingDependency(
            "huggingface_dataset: the package datasets is not installed; pip install datasets, or give --manifest-path"
        ) from None
    try:
        rows: Any = datasets.load_dataset(name, split=split)
    except Exception as error:  # errors of the package and its back ends have no common base class
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidRequest(f"huggingface_dataset: {name!r} cannot be loaded ({why}); check its name") from error
    if split is None:
        if len(rows) != 1:
            raise InvalidRequest(f"split_name: {name!r} has the splits {', '.join(rows)}; name one of them")
        rows = next(iter(rows.values()))
    columns = list(rows.column_names)
    if not set(columns) & set(TEXT_FIELDS):
        raise InvalidRequest(
            f"huggingface_dataset: {name!r} has {', '.join(columns)}, and no {' or '.join(TEXT_FIELDS)}; name another"
        )
    for column in set(columns) & set(REFERENCE_FIELDS):
        # Decoding by the package would need another library, and memory for all rows at once.
        rows = rows.cast_column(column, datasets.Audio(decode=False))
    found = []
    for number, row in enumerate(islice(rows, most), start=1):
        recording = first_of(row, REFERENCE_FIELDS) or {}
        content, path = recording.get("bytes"), recording.get("path")
        text = str(first_of(row, TEXT_FIELDS) or "")
        reference = content if content else (Path(path) if path else None)
        found.append(Utterance(_name(row, number).replace("/", "_"), text, reference, _reference_text(row)))
    return found


class LoadMode(str, Enum):
    STREAMING = "streaming"
    OFFLINE = "offline"


@dataclass(frozen=True)
class LoadOptions:
    """Options of a load test. server: host:port of the gRPC interface; utterances: requested in order, then again from
    the first; num_tasks: number of concurrent users, each with one request at a time.

    requests: number of measured requests; None: each utterance once, and at least one request per user; warmup: number
    of requests that are not measured; use_spk2info_cache: send no recordings, because the server has the voice;
    chunk_overlap_s: seconds at the start of each chunk that repeat the previous chunk; timeout_s: limit for a complete
    response; folder: where the audio is saved, or None.
    """

    server: str
    utterances: Sequence[Utterance]
    model: str = "cosyvoice2"
    mode: LoadMode = LoadMode.STREAMING
    manner: Manner = field(default_factory=Manner)
    num_tasks: int = 1
    requests: int | None = None
    warmup: int = 0
    use_spk2info_cache: bool = False
    chunk_overlap_s: float = 0.0
    timeout_s: float = 120.0
    folder: Path | None = None

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("num_tasks", self.num_tasks, 1, MAX_TASKS),
            ("requests", 1 if self.requests is None else self.requests, 1, math.inf),
            ("warmup", self.warmup, 0, math.inf),
            ("chunk_overlap_duration", self.chunk_overlap_s, 0, MAX_OVERLAP_S),
        ):
            if not least <= value <= most:
                raise InvalidRequest(f"{name}: {value} is outside of {least:g} … {most:g}; choose one inside")
        check_timeout(self.timeout_s)
        check_utterances(self.utterances)

    @property
    def total(self) -> int:
        return max(len(self.utterances), self.num_tasks) if self.requests is None else self.requests

    def utterance(self, index: int) -> Utterance:
        """Return the utterance of the request with this index (from 0), with a unique name."""
        found = self.utterances[index % len(self.utterances)]
        if self.total <= len(self.utterances):
            return found
        return replace(found, name=f"{found.name}-{index // len(self.utterances):03d}")
