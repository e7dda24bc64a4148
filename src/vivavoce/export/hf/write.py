"""An official CosyVoice2 folder → one plain Hugging Face Qwen2 folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.errors import InvalidRequest
from vivavoce.export.fresh_folder import check_target, fresh_folder
from vivavoce.export.hf import settings
from vivavoce.export.hf.tensor_file import write_tensors
from vivavoce.export.hf.tokenizer import add_speech, padding_token, tokenizer_config
from vivavoce.export.merged_lm import HEAD_BIAS, MergedLM, open_merged_lm
from vivavoce.export.named_errors import naming

CONFIG, GENERATION, SPEECH = "config.json", "generation_config.json", "speech_lm.json"
WEIGHTS = "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
EMBEDDING_BIAS = "embedding_bias.npy"
"""What is to be added to the logits, [vocab_size] float32. Servers take every *.safetensors in a folder for weights of
the model, and refuse a name that it lacks; hence another kind of file."""

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
AUTO = "auto"


@dataclass(frozen=True)
class HFExport:
    """What was written: the folder, its vocabulary, the weights' dtype and their file's size."""

    folder: Path
    vocabulary: MergedVocabulary
    dtype: torch.dtype
    num_bytes: int


def export_hf(
    source: Path,
    target: Path,
    tokenizer_json: str,
    *,
    dtype: str = AUTO,
    variant: str | None = None,
    force: bool = False,
) -> HFExport:
    """Write the merged language model; the folder appears complete or not at all.

    Memory holds a few million values at a time, whatever the model's size.

    Args:
        source: a folder in the official layout.
        target: the folder to make.
        tokenizer_json: the source's text tokenizer with CosyVoice2's special tokens, as a `tokenizer.json`.
        dtype: float32, float16, bfloat16, or auto: as the source has them.
        variant: take `llm.variant.pt` where the source has one.
        force: replace an earlier export at the target.

    Raises:
        InvalidRequest: the target holds something, or the dtype is unknown.
        CheckpointError: the source cannot be used, or the dtype cannot hold its values.
        OSError: the place cannot be written.
    """
    _check_dtype(dtype)
    check_target(target, source, force=force, mark=SPEECH)
    tokenizer = Tokenizer.from_str(tokenizer_json)
    lm = open_merged_lm(source, tokenizer.get_vocab_size(with_added_tokens=True), variant)
    add_speech(tokenizer, lm.vocabulary)
    chosen = DTYPES[dtype] if dtype != AUTO else _stored_dtype(lm)
    with fresh_folder(target) as folder:
        with naming(folder):
            _write_texts(folder, lm, tokenizer, chosen)
            np.save(folder / EMBEDDING_BIAS, lm.read(HEAD_BIAS).numpy(), allow_pickle=False)
        shapes = {name: shape for name, shape in lm.shapes.items() if name != HEAD_BIAS}
        num_bytes = write_tensors(folder / WEIGHTS, shapes, chosen, lm.read)
    return HFExport(target, lm.vocabulary, chosen, num_bytes)


def _check_dtype(dtype: str) -> None:
    if dtype != AUTO and dtype not in DTYPES:
        raise InvalidRequest(f"dtype: {dtype!r} is unknown; use {AUTO} or one of {', '.join(DTYPES)}")


def _stored_dtype(lm: MergedLM) -> torch.dtype:
    stored = lm.read("model.norm.weight").dtype
    return stored if stored in DTYPES.values() else torch.float32


def _write_texts(folder: Path, lm: MergedLM, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    pad_id = tokenizer.token_to_id(padding_token(tokenizer))
    (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    contents = {
        TOKENIZER_CONFIG: tokenizer_config(tokenizer, lm.config.max_positions),
        CONFIG: settings.model_config(lm.config, lm.vocabulary, dtype),
        GENERATION: settings.generation_config(lm.config, lm.vocabulary, pad_id),
        SPEECH: settings.speech_settings(lm.config),
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
