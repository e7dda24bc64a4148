"""CosyVoice's language model as one Qwen2 model of text and speech, whose tensors are read one by one on demand.

CosyVoice2's language model looks up text, speech and control ids in three tables, and has a head for speech alone. In
CosyVoice3 the control ids are among the speech ids. Other runtimes know only one table of ids and one head, so they get
merged tables (`MergedVocabulary`):

- embeddings: the text rows that the tokenizer uses, the speech embedding, CosyVoice2's two control embeddings, then
zeros;
- head: the speech head's rows at the speech ids, zeros everywhere else;
- head's bias: the speech head's bias (zeros for CosyVoice3, which has none), and −∞ at every other id, so that text
ids are never sampled.

The head of a plain Qwen2 has no bias. Each export documents where it stores the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Protocol

import torch
from torch import Tensor

from vivavoce.checkpoint.config import FileKey, LMConfig, Qwen2Config, qwen2_of
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import LM_NAMES, check_variant, find_part, load_into, read_tensors
from vivavoce.errors import CheckpointError
from vivavoce.models.lm.qwen2 import Layer, SpeechLM
from vivavoce_export.files import row_blocks
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"
ALL_ROWS = slice(None)

_OFFICIAL = "llm.model."
"""Prefix of the backbone's tensors in official files; the rest of the name is Hugging Face's."""
_READ_BEFORE_REOPENING = 64 << 20


@dataclass(frozen=True)
class QwenSizes(Qwen2Config):
    """Sizes of a Hugging Face Qwen2 model. tied: the head and the embedding are the same tensor."""

    vocab_size: Annotated[int, FileKey("vocab_size")]
    tied: bool = False

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        return self.hidden_size, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    @cached_property
    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):
            state = Layer(self).state_dict()
        prefix = f"{_OFFICIAL}model.layers.0."
        names = {name: LM_NAMES.to_official(f"layers.0.{name}").removeprefix(prefix) for name in state}
        return {names[name]: tuple(tensor.shape) for name, tensor in state.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors of the model, except the head's bias, which Qwen2 lacks."""
        table = (self.vocab_size, self.hidden_size)
        layers = {
            f"model.layers.{index}.{name}": shape
            for index in range(self.num_layers)
            for name, shape in self.layer_shapes.items()
        }
        return {EMBEDDING: table, **layers, FINAL_NORM: table[1:], HEAD: table}

    @property
    def table_blocks(self) -> list[slice]:
        return row_blocks(self.vocab_size, self.hidden_size)


class TensorReader(Protocol):
    """Reads tensors by name, one at a time; safe to use from several threads."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Read a tensor, or some rows of it, to the CPU in its stored dtype. The caller may change the result."""


class MappedWeights:
    """The tensors of weight files, which are mapped into memory and copied on demand.

    Pages that were read count as memory of this process. The mapping is therefore reopened from time to time, so that
    files of any size are read in bounded memory. same: maps a name to another name that has the same tensor.
    """

    def __init__(self, *paths: Path, same: Mapping[str, str] | None = None) -> None:
        self._paths, self._same = paths, same or {}
        self._mapped, self._num_read = self._map(), 0
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._mapped.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in self._mapped.items()}

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Return a copy of a tensor, or of some rows of it. CheckpointError: the files lack the tensor."""
        mapped = self._mapped  # keeps this mapping open here while another thread replaces it
        if name not in mapped:
            files = ", ".join(path.name for path in self._paths)
            raise CheckpointError(f"model: {name} is in none of {files}; make or download it again")
        tensor = (mapped[name] if rows == ALL_ROWS else mapped[name][rows]).clone()
        self._num_read += tensor.nbytes
        if self._num_read > _READ_BEFORE_REOPENING:
            self._mapped, self._num_read = self._map(), 0
        return tensor

    def _map(self) -> dict[str, Tensor]:
        tensors = {name: tensor for path in self._paths for name, tensor in read_tensors(path).items()}
        return tensors | {name: tensors[other] for name, other in self._same.items() if other in tensors}


def merged_rows(vocabulary: MergedVocabulary) -> tuple[tuple[str, int, int, str], ...]:
    """Return the official tables in each merged table: (merged name, first merged row, end row, official name)."""
    speech = vocabulary.head.start, vocabulary.head.stop
    shared = (
        (EMBEDDING, 0, vocabulary.text_size, _OFFICIAL + EMBEDDING),
        (EMBEDDING, *speech, "speech_embedding.weight"),
        (HEAD, *speech, "llm_decoder.weight"),
    )
    if not vocabulary.own.has_own_controls:
        return shared
    own = (EMBEDDING, vocabulary.sos, vocabulary.size, "llm_embedding.weight"), (HEAD_BIAS, *speech, "llm_decoder.bias")
    return *shared, *own


def official_tensors(reader: TensorReader, vocabulary: MergedVocabulary) -> Iterator[tuple[str, int, Tensor]]:
    """Yield a merged model's tensors under official names, as (name, first row, rows). Tables are yielded in blocks.

    Rows of the text embedding after the tokenizer's ids are skipped, and the head's bias if either model lacks it.
    """
    width = reader.shapes[EMBEDDING][1]
    for name, first, end, official in merged_rows(vocabulary):
        for block in row_blocks(end - first, width) if name in reader.shapes else ():
            yield official, block.start, reader.read(name, slice(first + block.start, first + block.stop))
    for name in reader.shapes:
        if name not in (EMBEDDING, HEAD, HEAD_BIAS):
            yield _OFFICIAL + name, 0, reader.read(name)


def no_bias(vocabulary: MergedVocabulary, rows: int) -> Tensor:
    """Make the merged bias of a head without a bias: [rows] float32, 0 at the head's ids and −∞ at all other ids."""
    bias = torch.full((rows,), -torch.inf)
    bias[vocabulary.head.start : vocabulary.head.stop] = 0
    return bias


@dataclass(frozen=True)
class MergedLM:
    """Reads a CosyVoice2 or 3 language model as the tensors of its merged model.

    official: llm.pt's tensors, under official names. Merged tensors have the file's dtype; the head's bias is float32.
    """

    config: LMConfig
    vocabulary: MergedVocabulary
    official: TensorReader

    @cached_property
    def sizes(self) -> QwenSizes:
        backbone = {field.name: getattr(self.config, field.name) for field in fields(Qwen2Config)}
        return QwenSizes(**backbone, vocab_size=self.vocabulary.padded_size)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.sizes.shapes | {HEAD_BIAS: (self.vocabulary.padded_size,)}

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Read a merged tensor, or some rows of it (a slice without a step), to the CPU."""
        if name not in (EMBEDDING, HEAD, HEAD_BIAS):
            return self.official.read(_OFFICIAL + name, rows)
        parts = [part[1:] for part in merged_rows(self.vocabulary) if part[0] == name]
        start, stop, _ = rows.indices(self.vocabulary.padded_size)
        shape = (max(stop - start, 0), *self.shapes[name][1:])
        if name == HEAD_BIAS:
            merged = no_bias(self.vocabulary, self.vocabulary.padded_size)[rows]
        else:
            merged = torch.zeros(shape, dtype=self.official.read(parts[0][2], slice(0, 1)).dtype)
        for first, end, source in parts:
            low, high = max(start, first), min(stop, end)
            if low < high:
                merged[low - start : high - start] = self.official.read(source, slice(low - first, high - first))
        return merged


def open_merged_lm(folder: Path, text_size: int, variant: str | None = None) -> MergedLM:
    """Open the language model of an official CosyVoice2 or 3 folder; text_size: entries of its text tokenizer.

    CheckpointError: files are missing, corrupt or do not fit the configuration or the tokenizer. UnsupportedModel:
    the model is of another generation.
    """
    whole = read_config(folder, ())
    vocabulary = MergedVocabulary(text_size, whole.lm.vocabulary.num_speech_tokens, whole.generation)
    config = qwen2_of(whole.lm)
    check_variant(folder, variant)
    path = find_part(folder, "llm", variant)
    official = MappedWeights(path)
    outlines = {name: torch.empty(shape, device="meta") for name, shape in official.shapes.items()}
    with torch.device("meta"):
        load_into(SpeechLM(config), outlines, LM_NAMES, path.name, torch.float32)  # compares names and shapes only
    if text_size > config.text_vocab_size:
        raise CheckpointError(
            f"model: the text tokenizer has {text_size} entries, but {path.name} has embeddings of "
            f"{config.text_vocab_size} only; copy the model's folder again, whole"
        )
    return MergedLM(config, vocabulary, official)
