"""What the small files of a merged Hugging Face folder say: where speech begins, and the model's sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vivavoce.checkpoint.config import LMConfig, SamplingDefaults, Vocabulary
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.settings_reader import MAX_BLOCKS, Section
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.hf.tokenizer import EOS, SOS, SPEECH_START, TASK
from vivavoce.export.hf.write import CONFIG, SPEECH, TOKENIZER, TOKENIZER_CONFIG

REMEDY = "make or download the folder again"
_ADDED_TOKENS = "added_tokens.json"
_RELEASE = {"mix_ratio": [5, 15], "sampling": {"top_p": 0.8, "top_k": 25, "win_size": 10, "tau_r": 0.1}}
"""What `speech_lm.json` would say of the CosyVoice2 release, for folders without it."""


def read_vocabulary(folder: Path) -> MergedVocabulary:
    """Where speech begins in a merged folder, and how many tokens it has, as the tokenizer's files say.

    Raises:
        CheckpointError: no file knows the added tokens, or their order is not the merged model's.
    """
    ids = _added_ids(folder)
    wanted = (SPEECH_START, *EOS, SOS, TASK)
    missing = [token for token in wanted if token not in ids]
    if missing:
        raise CheckpointError(f"{folder.name}: no tokenizer file has {', '.join(missing)}; {REMEDY}")
    vocabulary = MergedVocabulary(ids[SPEECH_START], ids[EOS[0]] - ids[SPEECH_START])
    expected = [vocabulary.text_size, *vocabulary.eos_ids, vocabulary.sos, vocabulary.task]
    if vocabulary.num_speech_tokens < 1 or [ids[token] for token in wanted] != expected:
        found = ", ".join(f"{token} {ids[token]}" for token in wanted)
        raise CheckpointError(
            f"{folder.name}: the added tokens are not in the merged model's order ({found}); {REMEDY}"
        )
    return vocabulary


def _added_ids(folder: Path) -> dict[str, int]:
    """Ids by token, from every place in which tokenizers keep added tokens."""
    ids: dict[str, int] = {}
    for name, read in _ADDED_IDS.items():
        if (folder / name).is_file():
            try:
                ids |= read(_read_json(folder / name))
            except (AttributeError, KeyError, TypeError, ValueError):
                raise CheckpointError(f"{name}: its added tokens cannot be read; {REMEDY}") from None
    return ids


def _ids_listed(data: Mapping[str, Any]) -> dict[str, int]:
    return {token["content"]: int(token["id"]) for token in data.get("added_tokens", ())}


def _ids_as_keys(data: Mapping[str, Any]) -> dict[str, int]:
    return {token["content"]: int(token_id) for token_id, token in data.get("added_tokens_decoder", {}).items()}


def _ids_as_values(data: Mapping[str, Any]) -> dict[str, int]:
    return {token: int(token_id) for token, token_id in data.items()}


_ADDED_IDS: dict[str, Callable[[Mapping[str, Any]], dict[str, int]]] = {
    TOKENIZER_CONFIG: _ids_as_keys,
    _ADDED_TOKENS: _ids_as_values,
    TOKENIZER: _ids_listed,
}
"""Readers of the files that may have them; the last one has the last word."""


def read_lm_config(folder: Path, vocabulary: MergedVocabulary) -> LMConfig:
    """Our configuration of the model; the text vocabulary is what the tokenizer uses, without padding.

    Raises:
        CheckpointError: a setting is missing, of the wrong kind, or out of its range.
        UnsupportedModel: no Qwen2, or one with a feature that `SpeechLM` lacks.
    """
    data = _read_json(folder / CONFIG)
    settings = Section(CONFIG, data)
    speech = Section(SPEECH, _read_json(folder / SPEECH) if (folder / SPEECH).is_file() else _RELEASE)
    _check_features(data)
    mix = speech.integers("mix_ratio")
    if len(mix) != 2:
        raise CheckpointError(f"{SPEECH}: mix_ratio: {list(mix)} are not two numbers; {REMEDY}")
    num_tokens = vocabulary.num_speech_tokens
    return LMConfig(
        hidden_size=settings.integer("hidden_size"),
        intermediate_size=settings.integer("intermediate_size"),
        num_layers=settings.integer("num_hidden_layers", maximum=MAX_BLOCKS),
        num_heads=settings.integer("num_attention_heads"),
        num_kv_heads=settings.integer("num_key_value_heads"),
        text_vocab_size=vocabulary.text_size,
        rms_norm_eps=settings.number("rms_norm_eps"),
        rope_theta=_rope_theta(settings, data),
        max_positions=settings.integer("max_position_embeddings"),
        mix_text=mix[0],
        mix_speech=mix[1],
        vocabulary=Vocabulary(
            num_speech_tokens=num_tokens,
            num_logits=num_tokens + len(EOS),
            sos=0,
            task=1,
            eos=num_tokens,
            fill=num_tokens + 2,
            masked_before_minimum=num_tokens,
        ),
        sampling=_sampling(speech.section("sampling")),
    )


def _check_features(data: Mapping[str, Any]) -> None:
    rope = data.get("rope_scaling") or data.get("rope_parameters") or {}
    scaling = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
    for key, found, known in (
        ("model_type", data.get("model_type"), "qwen2"),
        ("hidden_act", data.get("hidden_act", "silu"), "silu"),
        ("use_sliding_window", data.get("use_sliding_window", False), False),
        ("rope_type", scaling, "default"),
    ):
        if found != known:
            raise UnsupportedModel(f"{CONFIG}: {key} is {found!r}; this version runs {known!r} only")


def _rope_theta(settings: Section, data: Mapping[str, Any]) -> float:
    """By its old name, or by transformers 5's."""
    if data.get("rope_theta") is None and data.get("rope_parameters"):
        return settings.section("rope_parameters").number("rope_theta")
    return settings.number("rope_theta")


def _sampling(sampling: Section) -> SamplingDefaults:
    return SamplingDefaults(
        top_p=sampling.number("top_p"),
        top_k=sampling.integer("top_k"),
        win_size=sampling.integer("win_size", minimum=0),
        tau_r=sampling.number("tau_r"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: is missing in {path.parent}; {REMEDY}") from None
    except (OSError, ValueError):
        raise CheckpointError(f"{path.name}: not valid JSON; {REMEDY}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: holds no settings; {REMEDY}")
    return data
