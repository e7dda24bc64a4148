"""The merged model back into CosyVoice2's own tables: the state of our language model, and a folder that speaks it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig
from vivavoce.checkpoint.folder import read_config
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.names import LM_NAMES
from vivavoce.export.fresh_folder import check_target, fresh_folder
from vivavoce.export.merged_lm import EMBEDDING, HEAD, HEAD_BIAS, TensorReader
from vivavoce.export.named_errors import naming
from vivavoce.export.trtllm.backbone import row_blocks
from vivavoce.export.trtllm.rank_file import RankFile, TensorSpec
from vivavoce.models.lm.qwen2 import SpeechLM

_TABLES = (EMBEDDING, HEAD, HEAD_BIAS)
WRITTEN_BACK = "written_back.json"
"""Says that `write_back` made the folder; models from elsewhere may have the same weight files."""
_WEIGHTS = "llm.safetensors"
_LM_FILES = "llm*"


def speech_tensors(
    reader: TensorReader, config: LMConfig, vocabulary: MergedVocabulary
) -> Iterator[tuple[str, int, Tensor]]:
    """The state dict of `SpeechLM(config)`, float32, from the merged model's tensors and its head's bias.

    Yields:
        (name, first row, rows): a tensor as a whole, the text embedding in blocks of a bounded size. Rows of it that
        no id of the tokenizer uses are left out.
    """
    speech = slice(vocabulary.speech(0), vocabulary.sos)
    for block in row_blocks(vocabulary.text_size, config.hidden_size):
        yield "text_embedding.weight", block.start, reader.read(EMBEDDING, block).float()
    yield "speech_embedding.weight", 0, reader.read(EMBEDDING, speech).float()
    yield "control_embedding.weight", 0, reader.read(EMBEDDING, slice(vocabulary.sos, vocabulary.size)).float()
    for name in reader.shapes:
        if name not in _TABLES:
            yield LM_NAMES.to_ours(f"llm.model.{name}"), 0, reader.read(name).float()
    yield "speech_head.weight", 0, reader.read(HEAD, speech).float()
    yield "speech_head.bias", 0, reader.read(HEAD_BIAS, speech)


def write_back(
    reader: TensorReader, official: Path, target: Path, vocabulary: MergedVocabulary, *, force: bool = False
) -> None:
    """Write a model folder in the official layout that speaks with the merged model, a bounded part at a time.

    Args:
        reader: the merged model, as a checkpoint has it.
        official: the folder that it came from, whose other parts are copied.
        target: the folder to make.
        vocabulary: of the merged model.
        force: replace what an earlier call has made.

    Raises:
        InvalidRequest: the target holds something else.
        OSError: the place cannot be written.
    """
    check_target(target, official, force=force, mark=WRITTEN_BACK, field="write-back")
    config = read_config(official, ()).lm
    with torch.device("meta"):
        state = SpeechLM(config).state_dict()
    specs = {
        LM_NAMES.to_official(name): TensorSpec(tuple(tensor.shape), torch.float32) for name, tensor in state.items()
    }
    with fresh_folder(target) as folder:
        with naming(folder):
            shutil.copytree(official, folder, ignore=shutil.ignore_patterns(_LM_FILES), dirs_exist_ok=True)
            (folder / WRITTEN_BACK).write_text(json.dumps({"lm": _WEIGHTS}) + "\n", encoding="utf-8")
        with closing(RankFile(folder / _WEIGHTS, specs)) as file:
            for name, row, tensor in speech_tensors(reader, config, vocabulary):
                file.write(LM_NAMES.to_official(name), tensor, row)
            file.flush()
