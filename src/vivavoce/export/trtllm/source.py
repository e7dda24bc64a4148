"""What is converted: a merged Qwen2 model, from a Hugging Face folder or merged on the fly from the official one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.settings_reader import MAX_BLOCKS, Section
from vivavoce.checkpoint.weights import find_part
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.hf.config import REMEDY, check_features, is_tied, read_json, rope_theta
from vivavoce.export.hf.folder_settings import find_vocabulary
from vivavoce.export.hf.head_bias import read_bias
from vivavoce.export.hf.write import CONFIG, EMBEDDING_BIAS
from vivavoce.export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS, TensorReader, open_merged_lm
from vivavoce.export.trtllm.safetensors_folder import SafetensorsFiles, stored_dtype, weight_files
from vivavoce.export.trtllm.sizes import QwenSizes

FINAL_NORM = "model.norm.weight"

_FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
"""As safetensors files spell dtypes."""


@dataclass(frozen=True, eq=False)
class Source:
    """A merged model. `reader` has Hugging Face's names; the head is there under its own name even if it is tied."""

    sizes: QwenSizes
    reader: TensorReader
    dtype: torch.dtype
    """What the model is stored in."""
    files: tuple[Path, ...]
    """All that it was read from."""
    bias: Tensor | None = None
    """[vocab] float32, what is added to the head's outputs."""
    vocabulary: MergedVocabulary | None = None
    """None for a model whose ids are not known to be CosyVoice2's."""

    def layer(self, index: int) -> dict[str, Tensor]:
        """The tensors of one layer by their names within it."""
        return read_layer(self.reader, self.sizes, index)

    def fingerprint(self) -> str:
        """Differs when a file of the model was replaced."""
        marks = [(path.name, status.st_size, status.st_mtime_ns) for path in self.files for status in (path.stat(),)]
        return hashlib.sha256(json.dumps(marks).encode()).hexdigest()


class TiedHead:
    """A reader in which the head is the embedding."""

    def __init__(self, reader: TensorReader) -> None:
        self._reader = reader

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        shapes = self._reader.shapes
        return {**shapes, HEAD: shapes[EMBEDDING]} if EMBEDDING in shapes else shapes

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """A tensor, or some rows of it."""
        return self._reader.read(EMBEDDING if name == HEAD else name, rows)


def layer_shapes(sizes: QwenSizes) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer by their names within it."""
    hidden, inner, (_, kv, _) = sizes.hidden_size, sizes.intermediate_size, sizes.qkv_rows
    return {
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }


def read_layer(reader: TensorReader, sizes: QwenSizes, index: int) -> dict[str, Tensor]:
    """The tensors of one layer by their names within it."""
    return {name: reader.read(f"model.layers.{index}.{name}") for name in layer_shapes(sizes)}


def open_official(folder: Path, text_size: int, variant: str | None = None) -> Source:
    """An official CosyVoice2 folder; arguments and errors as in `open_merged_lm`."""
    lm = open_merged_lm(folder, text_size, variant)
    return Source(
        sizes=QwenSizes.of_merged(lm.config, lm.vocabulary.padded_size),
        reader=lm,
        dtype=lm.read(FINAL_NORM).dtype,
        files=(find_part(folder, "llm", variant),),
        bias=lm.read(HEAD_BIAS),
        vocabulary=lm.vocabulary,
    )


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder holds a model in Hugging Face's layout: the official one keeps its config.json further down."""
    return (folder / CONFIG).is_file()


def open_hugging_face(folder: Path) -> Source:
    """A Qwen2 folder in Hugging Face's layout, such as `vivavoce convert hf` writes.

    Raises:
        CheckpointError: files missing, corrupt or not fitting config.json.
        UnsupportedModel: no Qwen2, a quantised one, or one with a feature that CosyVoice2's language model lacks.
    """
    config = read_json(folder / CONFIG)
    check_features(config)
    sizes, paths = _sizes(config), weight_files(folder)
    files = SafetensorsFiles(paths)
    reader = TiedHead(files) if sizes.tied else files
    _check_dtypes(files)
    _check_shapes(sizes, reader.shapes)
    beside = [path for path in (folder / EMBEDDING_BIAS,) if path.is_file()]
    return Source(
        sizes=sizes,
        reader=reader,
        dtype=stored_dtype(files, FINAL_NORM),
        files=(folder / CONFIG, *paths, *beside),
        bias=_bias(folder, files, sizes),
        vocabulary=_vocabulary(folder, sizes),
    )


def _sizes(config: Mapping[str, Any]) -> QwenSizes:
    settings = Section(CONFIG, config)
    return QwenSizes(
        hidden_size=settings.integer("hidden_size"),
        intermediate_size=settings.integer("intermediate_size"),
        num_layers=settings.integer("num_hidden_layers", maximum=MAX_BLOCKS),
        num_heads=settings.integer("num_attention_heads"),
        num_kv_heads=settings.integer("num_key_value_heads"),
        vocab_size=settings.integer("vocab_size"),
        rms_norm_eps=settings.number("rms_norm_eps"),
        rope_theta=rope_theta(config),
        max_positions=settings.integer("max_position_embeddings"),
        tied=is_tied(config),
    )


def _check_shapes(sizes: QwenSizes, found: Mapping[str, tuple[int, ...]]) -> None:
    table = (sizes.vocab_size, sizes.hidden_size)
    wanted = {EMBEDDING: table, FINAL_NORM: table[1:], HEAD: table} | {
        f"model.layers.{index}.{name}": shape
        for index in range(sizes.num_layers)
        for name, shape in layer_shapes(sizes).items()
    }
    for name, shape in wanted.items():
        if found.get(name) != shape:
            what = f"is {list(found[name])} instead of {list(shape)}" if name in found else "is missing"
            raise CheckpointError(f"model: {name} {what}; the weights do not fit {CONFIG}, download the folder again")


def _check_dtypes(files: SafetensorsFiles) -> None:
    for name, dtype in files.dtypes.items():
        if dtype not in _FLOATS and name.endswith((".weight", ".bias")):
            raise UnsupportedModel(
                f"model: {name} is stored as {dtype}, so it is quantised; give the folder that it was quantised from"
            )


def _bias(folder: Path, files: SafetensorsFiles, sizes: QwenSizes) -> Tensor | None:
    bias = read_bias(folder, files.read(HEAD_BIAS) if HEAD_BIAS in files.shapes else None)
    if bias is not None and bias.shape != (sizes.vocab_size,):
        raise CheckpointError(
            f"model: the head's bias is {list(bias.shape)} instead of [{sizes.vocab_size}]; download the folder again"
        )
    return None if bias is None else bias.float()


def _vocabulary(folder: Path, sizes: QwenSizes) -> MergedVocabulary | None:
    """Where speech begins, if the folder's tokenizer says so."""
    vocabulary = find_vocabulary(folder)
    if vocabulary is not None and vocabulary.size > sizes.vocab_size:
        raise CheckpointError(
            f"{CONFIG}: vocab_size is {sizes.vocab_size}, and the tokenizer has ids up to {vocabulary.size - 1}; "
            f"{REMEDY}"
        )
    return vocabulary
