"""A voice as the bytes of one safetensors file, and back, bit for bit.

Tensors: embedding, speech_tokens, mel, prompt_text (int64). The header's metadata holds the strings, the format's
name and its version. Such a file holds numbers and strings only: reading it runs nothing.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from vivavoce.errors import InvalidRequest, VoiceStoreError
from vivavoce.service.text.checks import excerpt
from vivavoce.service.voices.bounds import STRINGS, as_array, find_problem
from vivavoce.service.voices.summary import StoredSummary
from vivavoce.service.voices.voice import Voice

FORMAT = "vivavoce-voice"
VERSION = "1"

MAX_VOICE_BYTES = 16 * 1024 * 1024
"""More than the largest voice within `bounds` takes; no more of a file is ever read."""

_MAX_HEADER_BYTES = 1024 * 1024
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""

_TENSORS = ("embedding", "speech_tokens", "mel", "prompt_text")
_AGAIN = "extract it again from its recording"


def encode_voice(voice: Voice) -> bytes:
    """The file's bytes.

    Raises:
        InvalidRequest: the voice is out of the bounds in `bounds.py`.
    """
    problem = find_problem(voice)
    if problem is not None:
        raise InvalidRequest(f"voice: {excerpt(voice.name)} {problem}; {_AGAIN}")
    arrays = {
        "embedding": as_array(voice.embedding),
        "speech_tokens": as_array(voice.speech_tokens),
        "mel": as_array(voice.mel),
        "prompt_text": np.array(voice.prompt_text, np.int64),
    }
    metadata = {"format": FORMAT, "version": VERSION, **{key: getattr(voice, key) for key in STRINGS}}
    return save({key: np.ascontiguousarray(array) for key, array in arrays.items()}, metadata=metadata)


def decode_voice(data: bytes, label: str) -> Voice:
    """The voice in a file's bytes; `label` begins the message of an error.

    Raises:
        VoiceStoreError: not a voice file, a newer one, damaged, or out of the bounds in `bounds.py`.
    """
    if len(data) > MAX_VOICE_BYTES:
        raise VoiceStoreError(f"{label} is larger than {MAX_VOICE_BYTES >> 20} MiB and no voice; {_AGAIN}")
    metadata = read_metadata(io.BytesIO(data))
    if metadata is None:
        raise VoiceStoreError(f"{label} is damaged, or no voice of vivavoce; {_AGAIN}")
    if metadata["version"] != VERSION:
        raise VoiceStoreError(
            f"{label} has format version {excerpt(metadata['version'])}, this program reads {VERSION}; update vivavoce"
        )
    tensors = _tensors(data, label)
    if (
        set(tensors) != set(_TENSORS)
        or tensors["prompt_text"].dtype != torch.int64
        or tensors["prompt_text"].dim() != 1
    ):
        raise VoiceStoreError(f"{label} does not hold the tensors of a voice; {_AGAIN}")
    voice = Voice(
        embedding=tensors["embedding"],
        speech_tokens=tensors["speech_tokens"],
        mel=tensors["mel"],
        prompt_text=tuple(tensors["prompt_text"].tolist()),
        **{key: metadata[key] for key in STRINGS},
    )
    problem = find_problem(voice)
    if problem is not None:
        raise VoiceStoreError(f"{label} {problem}; {_AGAIN}")
    return voice


def read_metadata(file: BinaryIO) -> dict[str, str] | None:
    """The strings of a voice file, of which no more than the header is read; None if it is something else."""
    return _metadata(_read_header(file))


def read_summary(file: BinaryIO) -> StoredSummary | None:
    """What is told of the voice in a file, of which no more than the header is read; None if it is something else."""
    header = _read_header(file)
    metadata = _metadata(header)
    if metadata is None:
        return None
    try:
        has_prompt = header["speech_tokens"]["shape"] != [0]
    except (LookupError, TypeError):
        has_prompt = False
    return StoredSummary(metadata["name"], metadata["description"], metadata["transcript"], has_prompt)


def read_file_summary(path: Path) -> StoredSummary | None:
    """`read_summary` of the file at `path`; None also if there is none, or if it may not be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        with path.open("rb") as file:
            return read_summary(file)
    except OSError:
        return None


def _read_header(file: BinaryIO) -> Any:
    """What the header's JSON holds, whatever it is; None if it is too large, or no JSON."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > _MAX_HEADER_BYTES:
        return None
    try:
        return json.loads(file.read(length))
    except (ValueError, RecursionError):
        return None


def _metadata(header: Any) -> dict[str, str] | None:
    try:
        metadata = header["__metadata__"]
        known = {key: metadata[key] for key in ("format", "version", *STRINGS)}
    except (LookupError, TypeError):
        return None
    is_voice = known["format"] == FORMAT and all(isinstance(value, str) for value in known.values())
    return known if is_voice else None


def _tensors(data: bytes, label: str) -> dict[str, Tensor]:
    try:
        return load(data)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise VoiceStoreError(f"{label} is damaged ({type(error).__name__}); {_AGAIN}") from None
