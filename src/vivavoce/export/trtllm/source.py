"""What is converted: a merged Qwen2 model, from a Hugging Face folder or merged on the fly from the official one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.weights import find_part
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS, TensorReader, open_merged_lm
from vivavoce.export.trtllm.safetensors_folder import SafetensorsFiles, stored_dtype, weight_files
from vivavoce.export.trtllm.sizes import QwenSizes

CONFIG = "config.json"
BIAS_FILE = "embedding_bias.npy"
"""The head's bias, [vocab] float32: Qwen2 has no tensor for it, in TensorRT-LLM and in Hugging Face's layout alike."""
FINAL_NORM = "model.norm.weight"

_DEFAULT_ROPE_THETA = 10_000.0
_FIRST_SPEECH, _FIRST_EOS = "<|s_0|>", "<|eos1|>"


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
        return {**self._reader.shapes, HEAD: self._reader.shapes[EMBEDDING]}

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
        UnsupportedModel: no Qwen2, or one with a feature that CosyVoice2's language model does not have.
    """
    config = _read_json(folder / CONFIG)
    _check_family(config)
    sizes, paths = _sizes(config), weight_files(folder)
    files = SafetensorsFiles(paths)
    reader = TiedHead(files) if sizes.tied else files
    _check_shapes(sizes, reader.shapes)
    return Source(
        sizes=sizes,
        reader=reader,
        dtype=stored_dtype(files, FINAL_NORM),
        files=(folder / CONFIG, *paths),
        bias=_bias(folder, files, sizes),
        vocabulary=_vocabulary(folder),
    )


def _check_family(config: Mapping[str, Any]) -> None:
    rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if config.get("model_type") != "qwen2":
        raise UnsupportedModel(
            f"{CONFIG}: model_type is {config.get('model_type')!r}; only qwen2 can be converted, such as "
            "`vivavoce convert hf` writes"
        )
    for name, value, wanted in (
        ("rope_type", kind, "default"),
        ("use_sliding_window", bool(config.get("use_sliding_window")), False),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
    ):
        if value != wanted:
            raise UnsupportedModel(f"{CONFIG}: {name} is {value!r}, only {wanted!r} can be converted")


def _sizes(config: Mapping[str, Any]) -> QwenSizes:
    rope = config.get("rope_parameters") or {}
    try:
        sizes = QwenSizes(
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=int(config["num_attention_heads"]),
            num_kv_heads=int(config["num_key_value_heads"]),
            vocab_size=int(config["vocab_size"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", _DEFAULT_ROPE_THETA))),
            max_positions=int(config["max_position_embeddings"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise CheckpointError(f"{CONFIG}: {error.args[0]} is missing; download the file again") from None
    except (TypeError, ValueError):
        raise CheckpointError(f"{CONFIG}: a size is no number; download the file again") from None
    heads_fit = sizes.num_heads > 0 and sizes.num_kv_heads > 0 and sizes.hidden_size % sizes.num_heads == 0
    if (
        not heads_fit
        or sizes.num_heads % sizes.num_kv_heads
        or config.get("head_dim", sizes.head_size) != sizes.head_size
    ):
        raise CheckpointError(
            f"{CONFIG}: {sizes.num_heads} heads and {sizes.num_kv_heads} key-value heads do not divide hidden_size "
            f"{sizes.hidden_size}; download the file again"
        )
    return sizes


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


def _bias(folder: Path, files: SafetensorsFiles, sizes: QwenSizes) -> Tensor | None:
    if (folder / BIAS_FILE).is_file():
        try:
            bias = torch.from_numpy(np.load(folder / BIAS_FILE, allow_pickle=False)).float()
        except (OSError, ValueError, TypeError, EOFError):
            raise CheckpointError(f"{BIAS_FILE}: cannot be read; make or download it again") from None
    elif HEAD_BIAS in files.shapes:
        bias = files.read(HEAD_BIAS).float()
    else:
        return None
    if bias.shape != (sizes.vocab_size,):
        raise CheckpointError(
            f"model: the head's bias is {list(bias.shape)} instead of [{sizes.vocab_size}]; download the folder again"
        )
    return bias


def _vocabulary(folder: Path) -> MergedVocabulary | None:
    """Where speech begins and how many speech tokens there are, as the folder's tokenizer spells its ids."""
    ids: dict[str, int] = {}
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        if (folder / name).is_file():
            ids.update(_added(_read_json(folder / name)))
    if _FIRST_SPEECH not in ids or _FIRST_EOS not in ids:
        return None
    return MergedVocabulary(ids[_FIRST_SPEECH], ids[_FIRST_EOS] - ids[_FIRST_SPEECH])


def _added(data: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    for entry in data.get("added_tokens", ()):
        yield str(entry.get("content")), int(entry.get("id", -1))
    for number, entry in data.get("added_tokens_decoder", {}).items():
        yield str(entry.get("content")), int(number)
    for name in (_FIRST_SPEECH, _FIRST_EOS):
        if isinstance(data.get(name), int):
            yield name, data[name]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(f"{path.name}: not valid JSON; download the file again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: holds no settings; download the file again")
    return data
