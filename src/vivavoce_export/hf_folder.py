"""The merged language model as a Hugging Face Qwen2 folder, which `export_hf` writes and `read_merged` reads.

Other exports start from a `Source`: such a folder, or an official folder whose model is merged while it is read. A
folder may also have the layout in which CosyVoice2's language model is published for Triton (Hugging Face
`yuekai/cosyvoice2_llm`): there the head's bias is `lm_head.bias` among the weights, or is missing. The official
deployment of CosyVoice3 makes folders without a bias, because CosyVoice3's head has none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from vivavoce.checkpoint.config import LMConfig
from vivavoce.checkpoint.folder import read_json
from vivavoce.checkpoint.settings import Section, lm_config
from vivavoce.checkpoint.weights import LM_NAMES, NameTable, find_part, load_into
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.files import fresh_folder
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce_export.files import AUTO, DTYPES, TensorFile, blank, cast, check_dtype, check_target, naming, row_blocks
from vivavoce_export.merged_lm import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    HEAD_BIAS,
    MappedWeights,
    MergedLM,
    QwenSizes,
    TensorReader,
    no_bias,
    official_tensors,
    open_merged_lm,
)
from vivavoce_runtimes.merged_vocabulary import CONTROLS, EMBEDDING_BIAS, END, MergedVocabulary

CONFIG, GENERATION, SPEECH = "config.json", "generation_config.json", "speech_lm.json"
WEIGHTS = "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPEECH_START = "<|s_0|>"
REMEDY = "make or download the folder again"
_INDEX = "model.safetensors.index.json"
_ADDED_TOKENS = "added_tokens.json"
_SPOKEN = (SPEECH_START, END)
_ROPE_GROUPS = ("rope_parameters", "rope_scaling")
_DEFAULT_ROPE_THETA = 10_000.0
_RELEASE = {"mix_ratio": [5, 15], "sampling": {"top_p": 0.8, "top_k": 25, "win_size": 10, "tau_r": 0.1}}
"""Content of `speech_lm.json` for CosyVoice2 and 3, as released; used for folders that lack this file."""
_FLOATS = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- '<|sos|>' + message['content'] + '<|task_id|>' }}"
    "{%- elif message['role'] == 'assistant' %}{{- message['content'] }}"
    "{%- endif %}{%- endfor %}"
)
"""Chat template: the user's message is the text, and the assistant's message is speech tokens, `<|s_12|><|s_7|>…`."""
_PAD = "<|endoftext|>"


@dataclass(frozen=True, eq=False)
class Source:
    """A merged model that can be read.

    reader: reads its tensors by Hugging Face's names, also the head's, if head and embedding are the same tensor.
    dtype: of the stored weights. files: the files that are read. bias: [vocab] float32, added to the head's outputs;
    None: no bias. vocabulary: None if the folder has no tokenizer with CosyVoice's ids.
    """

    sizes: QwenSizes
    reader: TensorReader
    dtype: torch.dtype
    files: tuple[Path, ...]
    bias: Tensor | None = None
    vocabulary: MergedVocabulary | None = None

    def fingerprint(self) -> str:
        marks = [(path.name, status.st_size, status.st_mtime_ns) for path in self.files for status in (path.stat(),)]
        return hashlib.sha256(json.dumps(marks).encode()).hexdigest()


def open_official(folder: Path, text_size: int, variant: str | None = None) -> Source:
    """Open an official folder of CosyVoice2 or 3; arguments and errors as in `open_merged_lm`."""
    lm = open_merged_lm(folder, text_size, variant)
    dtype, files = lm.read(FINAL_NORM).dtype, (find_part(folder, "llm", variant),)
    return Source(lm.sizes, lm, dtype, files, lm.read(HEAD_BIAS), lm.vocabulary)


def is_hugging_face(folder: Path) -> bool:
    """Return whether config.json is directly in the folder. The official layout has it in a subfolder."""
    return (folder / CONFIG).is_file()


def open_hugging_face(folder: Path) -> Source:
    """Open a Qwen2 folder in Hugging Face's layout, such as `vivavoce export hf` writes.

    CheckpointError: files are missing, corrupt or do not fit config.json. UnsupportedModel: the model is not a Qwen2,
    is quantised, or has a feature that CosyVoice's language models lack.
    """
    config = read_json(folder / CONFIG, REMEDY)
    check_features(config)
    settings, paths, tied = Section(CONFIG, config), _weight_files(folder), config.get("tie_word_embeddings")
    if not isinstance(tied, bool | None):
        raise CheckpointError(f"{CONFIG}: tie_word_embeddings: expected true or false, found {tied!r}; {REMEDY}")
    sizes = settings.read(QwenSizes, rope_theta=rope_theta(config), tied=bool(tied))
    reader = MappedWeights(*paths, same={HEAD: EMBEDDING} if sizes.tied else None)
    _check_weights(sizes, reader)
    bias = read_bias(folder, sizes.vocab_size, reader.read(HEAD_BIAS) if HEAD_BIAS in reader.shapes else None)
    vocabulary = _find_vocabulary(folder)
    if vocabulary is not None and vocabulary.size > sizes.vocab_size:
        raise CheckpointError(
            f"{CONFIG}: vocab_size is {sizes.vocab_size}, and the tokenizer has ids up to {vocabulary.size - 1}; "
            f"{REMEDY}"
        )
    if bias is None and vocabulary is not None and not vocabulary.own.has_own_controls:
        bias = no_bias(vocabulary, sizes.vocab_size)
    beside = [path for path in (folder / EMBEDDING_BIAS,) if path.is_file()]
    files, dtype = (folder / CONFIG, *paths, *beside), reader.dtypes[FINAL_NORM]
    return Source(sizes, reader, dtype, files, None if bias is None else bias.float(), vocabulary)


def _weight_files(folder: Path) -> list[Path]:
    """Find the single weights file, or the shards that the index names, or without an index the shards by name."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / _INDEX).is_file():
        shards = sorted(folder.glob("model*.safetensors"))
        if not shards:
            raise CheckpointError(f"model: {WEIGHTS} is missing in {folder.name}; download the whole folder")
        return shards
    try:
        names = {str(file) for file in read_json(folder / _INDEX)["weight_map"].values()}
        if any(Path(name).name != name for name in names):
            raise ValueError
        return [folder / name for name in sorted(names)]
    except (ValueError, LookupError, AttributeError, TypeError):
        raise CheckpointError(f"{_INDEX}: names no files, or files outside of the folder; download it again") from None


def _check_weights(sizes: QwenSizes, reader: MappedWeights) -> None:
    for name, dtype in reader.dtypes.items():
        if dtype not in _FLOATS and name.endswith((".weight", ".bias")):
            stored = str(dtype).removeprefix("torch.")
            raise UnsupportedModel(
                f"model: {name} is stored as {stored}, so it is quantised; give the folder that it was quantised from"
            )
    for name, shape in sizes.shapes.items():
        found = reader.shapes.get(name)
        if found != shape:
            what = f"is {list(found)} instead of {list(shape)}" if found else "is missing"
            raise CheckpointError(f"model: {name} {what}; the weights do not match {CONFIG}, download the folder again")


def check_features(config: Mapping[str, Any]) -> None:
    """Refuse a model that is not a Qwen2, is quantised, or has features that CosyVoice's language models lack."""
    for key, found, known in (
        ("model_type", config.get("model_type"), "qwen2"),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("use_sliding_window", bool(config.get("use_sliding_window")), False),
        # Check each group: a group that says "default" must not hide another group with another value.
        *((f"{name}.rope_type", _rope_kind(name, config), "default") for name in _ROPE_GROUPS),
    ):
        if found != known:
            raise UnsupportedModel(
                f"{CONFIG}: {key} is {found!r}; only {known!r} is read, such as `vivavoce export hf` writes"
            )
    if config.get("quantization_config") is not None:
        raise UnsupportedModel(
            f"{CONFIG}: quantization_config says that the weights are quantised; give the folder that they were "
            "quantised from"
        )
    settings = Section(CONFIG, config)
    hidden, heads, kv_heads = map(settings.integer, ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    if hidden % heads or heads % kv_heads:
        raise CheckpointError(
            f"{CONFIG}: {heads} heads and {kv_heads} key-value heads do not divide hidden_size {hidden}; {REMEDY}"
        )
    if config.get("head_dim") is not None and settings.integer("head_dim") != hidden // heads:
        raise UnsupportedModel(
            f"{CONFIG}: head_dim is {config['head_dim']}; only hidden_size / num_attention_heads is read, which is "
            f"{hidden // heads}"
        )


def _rope_kind(name: str, config: Mapping[str, Any]) -> object:
    group = config.get(name)
    if group is None:
        return "default"
    if not isinstance(group, Mapping):
        raise CheckpointError(f"{CONFIG}: {name}: expected a group of settings, found {group!r}; {REMEDY}")
    return group.get("rope_type") or group.get("type") or "default"


def rope_theta(config: Mapping[str, Any]) -> float:
    """Read the rotary embedding's base by its name in transformers 5, or its old name. CheckpointError: they differ."""
    group = config.get(_ROPE_GROUPS[0]) or {}
    new, old = (
        None if values.get("rope_theta") is None else Section(path, values).number("rope_theta")
        for path, values in ((f"{CONFIG}: {_ROPE_GROUPS[0]}", group), (CONFIG, config))
    )
    if new is not None and old is not None and new != old:
        raise CheckpointError(
            f"{CONFIG}: rope_theta is {old:g} and {_ROPE_GROUPS[0]}.rope_theta is {new:g}, they must agree; {REMEDY}"
        )
    found = old if new is None else new
    return _DEFAULT_ROPE_THETA if found is None else found


def read_vocabulary(folder: Path) -> MergedVocabulary:
    """Read the vocabulary of a merged folder from its tokenizer files. CheckpointError: it has no speech tokens."""
    vocabulary = _find_vocabulary(folder)
    if vocabulary is None:
        raise CheckpointError(f"{folder.name}: no tokenizer file has {', '.join(_SPOKEN)}; {REMEDY}")
    return vocabulary


def _find_vocabulary(folder: Path) -> MergedVocabulary | None:
    """Read the vocabulary; return None if the folder has no tokenizer, or its tokenizer has no speech tokens."""
    ids = added_ids(folder)
    if not ids.keys() & {*_SPOKEN}:
        return None
    wanted = {generation: (SPEECH_START, *controls) for generation, controls in CONTROLS.items()}
    generation = max(wanted, key=lambda one: len(ids.keys() & {*wanted[one]}))
    missing = [token for token in wanted[generation] if token not in ids]
    if missing:
        raise CheckpointError(f"{folder.name}: no tokenizer file has {', '.join(missing)}; {REMEDY}")
    start, *controls = (ids[token] for token in wanted[generation])
    vocabulary = MergedVocabulary(start, controls[0] - start, generation)
    in_order = controls == list(range(controls[0], controls[0] + len(controls)))
    if not in_order or vocabulary.text_size < 1 or vocabulary.num_speech_tokens < 1:
        found = ", ".join(f"{token} {ids[token]}" for token in wanted[generation])
        raise CheckpointError(
            f"{folder.name}: the added tokens are not in the merged model's order ({found}); {REMEDY}"
        )
    return vocabulary


def added_ids(folder: Path) -> dict[str, int]:
    """Read the added tokens and their ids from all files in which tokenizers keep them; the last file has priority."""
    ids: dict[str, int] = {}
    for name in (TOKENIZER_CONFIG, _ADDED_TOKENS, TOKENIZER):
        if not (folder / name).is_file():
            continue
        data = read_json(folder / name, REMEDY)
        try:
            if name == TOKENIZER_CONFIG:
                found = {one["content"]: int(key) for key, one in (data.get("added_tokens_decoder") or {}).items()}
            elif name == TOKENIZER:
                found = {token["content"]: token["id"] for token in data.get("added_tokens") or ()}
            else:
                found = data
            if any(type(number) is not int for number in found.values()):
                raise ValueError
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CheckpointError(f"{name}: its added tokens cannot be read; {REMEDY}") from None
        ids |= found
    return ids


def read_lm_config(folder: Path, vocabulary: MergedVocabulary) -> LMConfig:
    """Read the language model's configuration. Its text vocabulary has the tokenizer's size, without padding."""
    data = read_json(folder / CONFIG, REMEDY)
    speech = read_json(folder / SPEECH, REMEDY) if (folder / SPEECH).is_file() else _RELEASE
    known = {"text_vocab_size": vocabulary.text_size, "rope_theta": rope_theta(data)}
    return lm_config(Section(CONFIG, data), Section(SPEECH, speech), vocabulary.own, **known)


def read_bias(folder: Path, rows: int | None = None, stored: Tensor | None = None) -> Tensor | None:
    """Read the head's bias, [rows] of a float dtype, from `embedding_bias.npy`, or return `stored` without this file.

    stored: the bias among the weights. The file takes precedence: it is float32, and runtimes add it to the logits.
    """
    path = folder / EMBEDDING_BIAS
    bias = stored
    if path.is_file():
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")  # fails if the header promises more values than exist
            bias = torch.from_numpy(np.array(mapped))
        except Exception:  # numpy parses the header as Python source, which can fail with many types of error
            raise CheckpointError(f"{path.name}: cannot be read; {REMEDY}") from None
    if bias is not None and (bias.dim() != 1 or not bias.is_floating_point()):
        dtype = str(bias.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{folder.name}: the head's bias is {list(bias.shape)} {dtype}, expected a list of floating point numbers; "
            f"{REMEDY}"
        )
    if bias is not None and rows is not None and len(bias) != rows:
        raise CheckpointError(f"{folder.name}: the head's bias is {list(bias.shape)} instead of [{rows}]; {REMEDY}")
    return bias


def add_speech(tokenizer: Tokenizer, vocabulary: MergedVocabulary) -> None:
    """Add speech and control ids after the text ids, in place. CheckpointError: a token cannot get its expected id.

    Speech tokens are not special tokens, so decoding keeps them. It drops the special tokens: end ids and controls.
    """
    added = vocabulary.added_tokens()
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=index >= vocabulary.num_speech_tokens)
            for index, token in enumerate(added)
        ]
    )
    for expected, token in enumerate(added, start=vocabulary.text_size):
        given = tokenizer.token_to_id(token)
        if given != expected:
            raise CheckpointError(
                f"tokenizer: {token} gets the id {given} and not {expected}; its own ids have gaps or hold that token "
                "already, so copy the model's CosyVoice-BlankEN folder again, whole"
            )


def tokenizer_config(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json` for the merged tokenizer. max_length: the model's positions."""
    return {
        # Generic class: transformers reads the tokenizer file as it is, without its special rules for Qwen2.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": None,
        "eos_token": END,
        # The padding token of Qwen2, if the tokenizer has it.
        "pad_token": END if tokenizer.token_to_id(_PAD) is None else _PAD,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }


@dataclass(frozen=True)
class HFExport:
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
    """Write the merged language model of an official folder. The target folder appears complete or not at all.

    tokenizer_json: content of a `tokenizer.json`, the source's text tokenizer with the model's special tokens; dtype:
    one of `DTYPES`, or auto for the source's; force: replace an earlier export. Weights are converted in small blocks.
    InvalidRequest: the target or the dtype cannot be used. CheckpointError: the source cannot be read, or the dtype
    cannot hold its values.
    """
    check_dtype(dtype)
    check_target(target, source, force=force, mark=SPEECH)
    tokenizer = Tokenizer.from_str(tokenizer_json)
    lm = open_merged_lm(source, tokenizer.get_vocab_size(with_added_tokens=True), variant)
    add_speech(tokenizer, lm.vocabulary)
    stored = lm.read(FINAL_NORM).dtype
    chosen = DTYPES.get(dtype, stored if stored in DTYPES.values() else torch.float32)
    with fresh_folder(target) as folder:
        with naming(folder):
            (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
            for name, content in _texts(lm, tokenizer, chosen).items():
                (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
            np.save(folder / EMBEDDING_BIAS, lm.read(HEAD_BIAS).numpy(), allow_pickle=False)
        shapes = lm.sizes.shapes
        specs = {name: blank(shape, chosen) for name, shape in shapes.items()}
        with closing(TensorFile(folder / WEIGHTS, specs)) as file:
            for name, shape in shapes.items():
                for block in row_blocks(shape[0], math.prod(shape[1:])):
                    file.write(name, cast(lm.read(name, block), chosen, name), row=block.start)
    return HFExport(target, lm.vocabulary, chosen, file.num_bytes)


def _texts(lm: MergedLM, tokenizer: Tokenizer, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Return the folder's settings by file name. `config.json` has the rotary base and dtype by old and new names."""
    config, vocabulary, stored = lm.config, lm.vocabulary, str(dtype).removeprefix("torch.")
    of_tokenizer, ends = tokenizer_config(tokenizer, config.max_positions), list(lm.vocabulary.eos_ids)
    return {
        TOKENIZER_CONFIG: of_tokenizer,
        CONFIG: {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "hidden_act": "silu",
            "rms_norm_eps": config.rms_norm_eps,
            "max_position_embeddings": config.max_positions,
            "rope_theta": config.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": config.num_layers,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "vocab_size": vocabulary.padded_size,
            "tie_word_embeddings": False,
            "bos_token_id": vocabulary.sos,
            "eos_token_id": ends,
            "dtype": stored,
            "torch_dtype": stored,
        },
        GENERATION: {
            "do_sample": True,
            "temperature": 1.0,
            "top_p": config.sampling.top_p,
            "top_k": config.sampling.top_k,
            "bos_token_id": vocabulary.sos,
            "eos_token_id": ends,
            "pad_token_id": tokenizer.token_to_id(of_tokenizer["pad_token"]),
        },
        # CosyVoice's own settings, with the names that its yaml file uses.
        SPEECH: {"mix_ratio": [config.mix_text, config.mix_speech], "sampling": vars(config.sampling)},
    }


def read_merged(folder: Path) -> tuple[LMConfig, dict[str, Tensor]]:
    """Read configuration and weights of `SpeechLM` from a merged folder: by our names, on the CPU, in the file's dtype.

    The text embedding has only the rows that the tokenizer uses, without the official file's padding. Missing sampling
    settings get the values of the release; a missing bias of the head becomes zeros, as in plain Qwen2 runtimes.
    CheckpointError: files are missing, corrupt or do not fit each other. UnsupportedModel: the model is not a Qwen2, or
    has a feature that `SpeechLM` lacks.
    """
    vocabulary = read_vocabulary(folder)
    source, config = open_hugging_face(folder), read_lm_config(folder, vocabulary)
    blocks: dict[str, list[Tensor]] = {}
    for official, _, rows in official_tensors(source.reader, vocabulary):
        blocks.setdefault(LM_NAMES.to_ours(official), []).append(rows)
    state = {name: torch.cat(rows) for name, rows in blocks.items()}
    head = vocabulary.head
    bias = torch.zeros(len(head)) if source.bias is None else source.bias[head.start : head.stop]
    if vocabulary.own.has_own_controls:
        state["speech_head.bias"] = bias
    elif bias.any():
        raise CheckpointError(f"{folder.name}: the head has a bias, and CosyVoice3's has none; {REMEDY}")
    return config, state


def speech_lm(config: LMConfig, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> SpeechLM:
    """Build the network with these weights, converted to `dtype`, on the CPU and ready to run."""
    with torch.device("meta"):
        lm = SpeechLM(config)
    load_into(lm, state, NameTable(()), WEIGHTS, dtype)
    return lm.eval().requires_grad_(False)
