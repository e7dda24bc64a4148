"""One Qwen2 model of text and speech: its tensors by Hugging Face's names, each read when it is asked for.

CosyVoice2's language model looks up text, speech and control ids in three tables and has a head for speech alone.
Runtimes that know one table of ids and one head get them merged (`MergedVocabulary`):

- embeddings: the text rows that the tokenizer uses, the speech embedding, the two control embeddings, then zeros;
- head: the speech head's rows at the speech ids, zeros everywhere else;
- head's bias: the speech head's, and −∞ at every id that is none of its own, so that no text id is ever sampled.

Plain Qwen2 has no place for the last one: whoever writes it says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig
from vivavoce.checkpoint.folder import read_config
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.names import LM_NAMES
from vivavoce.checkpoint.weights import check_variant, find_part, read_tensors
from vivavoce.errors import CheckpointError
from vivavoce.models.lm.qwen2 import SpeechLM

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"
ALL_ROWS = slice(None)

_OFFICIAL = "llm.model."
"""Stands before Hugging Face's name of every tensor of the backbone."""
_OFFICIAL_EMBEDDING = f"{_OFFICIAL}{EMBEDDING}"
_SPEECH, _CONTROL = "speech_embedding.weight", "llm_embedding.weight"
_SPEECH_HEAD, _SPEECH_BIAS = "llm_decoder.weight", "llm_decoder.bias"
_READ_BEFORE_REOPENING = 64 << 20
_MAX_LISTED = 4


class TensorReader(Protocol):
    """Tensors by name, read one at a time; safe to use from several threads."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name, without reading it."""

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """A tensor, or some rows of it, on the CPU in the dtype it is stored in; the caller may change it."""


class MappedWeights:
    """The tensors of one weight file, mapped into memory and copied on demand.

    A mapping keeps all that was ever read of it in the process's memory; it is opened anew from time to time, so that
    a file of any size is read within a bound.
    """

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` if the file is corrupt or holds anything but named tensors."""
        self._path = path
        self._mapped, self._num_read = read_tensors(path), 0
        self._shapes = {name: tuple(tensor.shape) for name, tensor in self._mapped.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        return self._shapes

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """A copy of a tensor or of some rows of it."""
        mapped = self._mapped  # a thread that opens it anew leaves this one to those who still read
        tensor = mapped[name][rows].clone()
        self._num_read += tensor.nbytes
        if self._num_read > _READ_BEFORE_REOPENING:
            self._mapped, self._num_read = read_tensors(self._path), 0
        return tensor


@dataclass(frozen=True)
class MergedLM:
    """A CosyVoice2 language model as a reader of the merged one's tensors.

    official: what llm.pt holds, by its names. All tensors are in the file's dtype, the head's bias in float32.
    """

    config: LMConfig
    vocabulary: MergedVocabulary
    official: TensorReader

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every merged tensor's shape by name, in the order of Hugging Face's state dict."""
        table = (self.vocabulary.padded_size, self.config.hidden_size)
        backbone = {
            name.removeprefix(_OFFICIAL): shape
            for name, shape in sorted(_official_shapes(self.config).items())
            if name.startswith(_OFFICIAL) and name != _OFFICIAL_EMBEDDING
        }
        return {EMBEDDING: table, **backbone, HEAD: table, HEAD_BIAS: table[:1]}

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """One merged tensor, or some rows of it (a slice without a step), on the CPU."""
        if name not in self._sources:
            return self.official.read(_OFFICIAL + name, rows)
        start, stop, _ = rows.indices(self.vocabulary.padded_size)
        parts, shape = self._sources[name], (max(stop - start, 0), *self.shapes[name][1:])
        if name == HEAD_BIAS:
            merged = torch.full(shape, -torch.inf)
        else:
            merged = torch.zeros(shape, dtype=self.official.read(parts[0][2], slice(0, 1)).dtype)
        for first, end, source in parts:
            low, high = max(start, first), min(stop, end)
            if low < high:
                merged[low - start : high - start] = self.official.read(source, slice(low - first, high - first))
        return merged

    @cached_property
    def _sources(self) -> Mapping[str, tuple[tuple[int, int, str], ...]]:
        """Where the rows of merged tensors come from: (first row, row after the last, official name)."""
        speech = (self.vocabulary.speech(0), self.vocabulary.sos)
        control = (self.vocabulary.sos, self.vocabulary.size)
        return {
            EMBEDDING: (
                (0, self.vocabulary.text_size, _OFFICIAL_EMBEDDING),
                (*speech, _SPEECH),
                (*control, _CONTROL),
            ),
            HEAD: ((*speech, _SPEECH_HEAD),),
            HEAD_BIAS: ((*speech, _SPEECH_BIAS),),
        }


def open_merged_lm(folder: Path, text_size: int, variant: str | None = None) -> MergedLM:
    """The merged language model of an official CosyVoice2 folder.

    Args:
        folder: official layout.
        text_size: entries of the folder's text tokenizer, its special tokens included.
        variant: take `llm.variant.pt` where the folder has one.

    Raises:
        CheckpointError: files missing, corrupt or not fitting the configuration, or the tokenizer has more entries
            than the text embedding has rows.
    """
    config = read_config(folder, ()).lm
    check_variant(folder, variant)
    path = find_part(folder, "llm", variant)
    official = MappedWeights(path)
    _check_shapes(config, official.shapes, path.name)
    if text_size > config.text_vocab_size:
        raise CheckpointError(
            f"model: the text tokenizer has {text_size} entries, but {path.name} has embeddings of "
            f"{config.text_vocab_size} only; copy the model's folder again, whole"
        )
    return MergedLM(config, MergedVocabulary(text_size, config.vocabulary.num_speech_tokens), official)


def _official_shapes(config: LMConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        state = SpeechLM(config).state_dict()
    return {LM_NAMES.to_official(name): tuple(tensor.shape) for name, tensor in state.items()}


def _check_shapes(config: LMConfig, found: Mapping[str, tuple[int, ...]], file: str) -> None:
    wrong = [
        f"{name} {list(found[name])} instead of {list(shape)}" if name in found else f"{name} is missing"
        for name, shape in sorted(_official_shapes(config).items())
        if found.get(name) != shape
    ]
    if wrong:
        more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        listed = ", ".join(wrong[:_MAX_LISTED])
        raise CheckpointError(f"model: {file} does not fit its configuration: {listed}{more}; download it again")
