"""Reads and writes spk2info.pt, the speakers of a model folder, in the official layout. Reading runs no code.

The file is a dict by speaker name. A built-in speaker is `{"embedding": [1, 192]}`. A saved zero-shot speaker has ten
tensors, the inputs of the official model: four sequences and two embeddings, each [1, …], and four lengths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.checkpoint.torch_file import read_torch_file
from vivavoce.errors import CheckpointError
from vivavoce.files import replacing

EMBEDDING_SIZE = 192
NUM_MEL_BINS = 80
MAX_LENGTH = 4_000
"""Maximum number of text ids, speech tokens or frames in a prompt; 30 s have at most 1500 tokens and 2584 frames."""

_TOKEN_KEYS = ("prompt_text", "llm_prompt_speech_token", "flow_prompt_speech_token")
_MEL_KEY = "prompt_speech_feat"
_EMBEDDING_KEYS = ("embedding", "flow_embedding", "llm_embedding")


@dataclass(frozen=True, eq=False)
class SavedPrompt:
    """The prompt of a saved zero-shot speaker.

    text_ids: ids of the transcript; llm_speech_tokens, flow_speech_tokens: speech tokens of the reference, for language
    model and flow; each [length] int32. mel: [frames, 80] float32."""

    text_ids: Tensor
    llm_speech_tokens: Tensor
    flow_speech_tokens: Tensor
    mel: Tensor


@dataclass(frozen=True, eq=False)
class SpeakerEntry:
    """A speaker in the file. embedding: [192] float32; prompt: None for a built-in speaker."""

    embedding: Tensor
    prompt: SavedPrompt | None = None


def read_spk2info(path: Path) -> dict[str, SpeakerEntry]:
    speakers = read_torch_file(path)
    if not isinstance(speakers, Mapping):
        raise CheckpointError(f"{path.name}: holds no speakers by name; make the file again")
    return {name: _entry(f"{path.name}: speaker {name!r:.80}", fields) for name, fields in speakers.items()}


def write_spk2info(path: Path, entries: Mapping[str, SpeakerEntry], *, keep: bool = False) -> None:
    """Replace a file atomically. A new file gets mode 0600. keep: keep the file's mode and its other speakers."""
    kept = read_torch_file(path) if keep and path.exists() else {}
    speakers = {**kept, **{name: _official(entry) for name, entry in entries.items()}}
    with replacing(path, private=True) as file:  # with a path, torch.save raises RuntimeError if the disk is full
        torch.save(speakers, file)
        if kept and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), path.stat().st_mode)


def _entry(where: str, fields: Any) -> SpeakerEntry:
    if not isinstance(fields, Mapping):
        raise CheckpointError(f"{where} has no named tensors; make the file again")
    key = next((key for key in _EMBEDDING_KEYS if key in fields), _EMBEDDING_KEYS[0])
    embedding = _numbers(where, fields, key, 1, EMBEDDING_SIZE)
    if _MEL_KEY not in fields:
        return SpeakerEntry(embedding)
    text_ids, llm_tokens, flow_tokens = (_ids(where, fields, key) for key in _TOKEN_KEYS)
    mel = _numbers(where, fields, _MEL_KEY, 1, -1, NUM_MEL_BINS)
    return SpeakerEntry(embedding, SavedPrompt(text_ids, llm_tokens, flow_tokens, mel))


def _numbers(where: str, fields: Mapping[str, Any], key: str, *shape: int) -> Tensor:
    numbers = _tensor(where, fields, key, *shape)
    if not numbers.is_floating_point() or not bool(numbers.isfinite().all()):
        raise CheckpointError(f"{where}: {key} must hold finite real numbers; make the speaker again")
    return numbers.float()


def _ids(where: str, fields: Mapping[str, Any], key: str) -> Tensor:
    ids = _tensor(where, fields, key, 1, -1)
    if ids.dtype not in (torch.int32, torch.int64) or bool((ids < 0).any()):
        raise CheckpointError(f"{where}: {key} must hold ids from 0 on; make the speaker again")
    return ids.to(torch.int32)


def _tensor(where: str, fields: Mapping[str, Any], key: str, *shape: int) -> Tensor:
    """Return the tensor `key` without its batch dimension. Where `shape` has -1, any length up to `MAX_LENGTH` fits; if
    the file has a tensor `key`_len, it must contain this length."""
    value = fields.get(key)
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{where}: {key} is missing or no tensor; make the speaker again")
    fits = (have <= MAX_LENGTH if want == -1 else have == want for have, want in zip(value.shape, shape, strict=False))
    if value.dim() != len(shape) or not all(fits):
        wanted = ", ".join(f"{MAX_LENGTH} at most" if size == -1 else str(size) for size in shape)
        raise CheckpointError(
            f"{where}: {key} has shape {list(value.shape)}, expected [{wanted}]; make the speaker again"
        )
    length = fields.get(f"{key}_len")
    says = isinstance(length, Tensor) and length.numel() == 1 and length.item() == value.shape[1]
    if -1 in shape and length is not None and not says:
        raise CheckpointError(
            f"{where}: {key}_len does not say {value.shape[1]}, the length of {key}; make the speaker again"
        )
    return value[0].contiguous()


def _official(entry: SpeakerEntry) -> dict[str, Tensor]:
    embedding = entry.embedding.float().cpu().reshape(1, EMBEDDING_SIZE).clone()
    if entry.prompt is None:
        return {"embedding": embedding}
    prompt = entry.prompt
    tokens = (prompt.text_ids, prompt.llm_speech_tokens, prompt.flow_speech_tokens)
    fields: dict[str, Tensor] = {}
    for key, ids in zip(_TOKEN_KEYS, tokens, strict=True):
        fields[key] = ids.to("cpu", torch.int32).reshape(1, -1).clone()
        fields[f"{key}_len"] = torch.tensor([ids.numel()], dtype=torch.int32)
    fields[_MEL_KEY] = prompt.mel.float().cpu().reshape(1, -1, NUM_MEL_BINS).clone()
    fields[f"{_MEL_KEY}_len"] = torch.tensor([prompt.mel.shape[0]], dtype=torch.int32)
    return {**fields, "llm_embedding": embedding, "flow_embedding": embedding}
