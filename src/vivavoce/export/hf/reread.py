"""A merged Hugging Face folder → our own language model.

Reads what `export_hf` writes, and the layout that CosyVoice2's language model is published in for Triton (Hugging
Face `yuekai/cosyvoice2_llm`): there the head's bias is `lm_head.bias` among the weights, or was lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.names import LM, NameTable
from vivavoce.checkpoint.weights import load_into, read_tensors
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.hf.config import REMEDY
from vivavoce.export.hf.folder_settings import read_lm_config, read_vocabulary
from vivavoce.export.hf.head_bias import read_bias
from vivavoce.export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS
from vivavoce.models.lm.qwen2 import SpeechLM

_BACKBONE = NameTable(tuple((theirs.removeprefix("llm.model."), ours) for theirs, ours in LM))
_OURS = NameTable(())
_FILE = "model.safetensors"
_FLOATS = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


def read_merged(folder: Path) -> tuple[LMConfig, dict[str, Tensor]]:
    """Configuration and weights of `SpeechLM` from a merged folder.

    The text embedding has the rows that the tokenizer uses, not the padding that the official file has after them.
    A folder without any bias of the head gives zeros, which is what plain Qwen2 runtimes compute with.

    Returns:
        The configuration, with the release's sampling where the folder does not say; and all tensors of
        `SpeechLM(config).state_dict()` by our names, on the CPU in the file's dtype. They are views of the file, mapped
        into memory: copy them if it may be replaced.

    Raises:
        CheckpointError: files missing, corrupt or not fitting one another.
        UnsupportedModel: no Qwen2, or one with a feature that `SpeechLM` lacks.
    """
    vocabulary = read_vocabulary(folder)
    config = read_lm_config(folder, vocabulary)
    weights = _weights(folder)
    tables = {name: _table(weights, name, vocabulary, config) for name in (EMBEDDING, HEAD)}
    speech = slice(vocabulary.speech(0), vocabulary.sos)
    state = {
        _BACKBONE.to_ours(name): tensor for name, tensor in weights.items() if name not in (EMBEDDING, HEAD, HEAD_BIAS)
    }
    state |= {
        "text_embedding.weight": tables[EMBEDDING][: vocabulary.text_size],
        "speech_embedding.weight": tables[EMBEDDING][speech],
        "control_embedding.weight": tables[EMBEDDING][vocabulary.sos : vocabulary.size],
        "speech_head.weight": tables[HEAD][speech],
        "speech_head.bias": _bias(folder, weights, vocabulary)[speech],
    }
    _check(config, state)
    return config, state


def speech_lm(config: LMConfig, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> SpeechLM:
    """The network with these weights, copied as `dtype`, on the CPU and ready to run.

    Raises:
        CheckpointError: names or shapes do not fit the configuration.
    """
    with torch.device("meta"):
        lm = SpeechLM(config)
    load_into(lm, state, _OURS, _FILE, dtype)
    return lm.eval().requires_grad_(False)


def _weights(folder: Path) -> dict[str, Tensor]:
    """Of all safetensors files that hold the model: one, or the shards of a large one."""
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder.name}: {_FILE} is missing; {REMEDY}")
    weights: dict[str, Tensor] = {}
    for path in paths:
        weights |= read_tensors(path)
    for name, tensor in weights.items():
        if tensor.dtype not in _FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise UnsupportedModel(f"model: {name} is {dtype}, which is quantised or no weight; {REMEDY}")
    return weights


def _table(weights: Mapping[str, Tensor], name: str, vocabulary: MergedVocabulary, config: LMConfig) -> Tensor:
    table = weights.get(name)
    if table is None:
        raise CheckpointError(f"{_FILE}: {name} is missing; {REMEDY}")
    if table.dim() != 2 or len(table) < vocabulary.size or table.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"{_FILE}: {name} is {list(table.shape)} and not of at least {vocabulary.size} rows of "
            f"{config.hidden_size}; {REMEDY}"
        )
    return table


def _bias(folder: Path, weights: Mapping[str, Tensor], vocabulary: MergedVocabulary) -> Tensor:
    """The head's bias, [ids]; zeros where it was lost."""
    bias = read_bias(folder, weights.get(HEAD_BIAS))
    if bias is None:
        return torch.zeros(vocabulary.size)
    if len(bias) < vocabulary.size:
        raise CheckpointError(
            f"{folder.name}: the head's bias is {list(bias.shape)} and not of at least {vocabulary.size} numbers; "
            f"{REMEDY}"
        )
    return bias


def _check(config: LMConfig, state: Mapping[str, Tensor]) -> None:
    """Hold names and shapes against the configuration; no value is read."""
    with torch.device("meta"):
        lm = SpeechLM(config)
    load_into(lm, {name: tensor.to("meta") for name, tensor in state.items()}, _OURS, _FILE, torch.float32)
