"""`config.json` of a Qwen2 folder in Hugging Face's layout: what every reader of one asks of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vivavoce.checkpoint.settings_reader import Section
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.hf.write import CONFIG

REMEDY = "make or download the folder again"
_ROPE_GROUPS = ("rope_parameters", "rope_scaling")
_DEFAULT_ROPE_THETA = 10_000.0
"""What transformers' Qwen2 has where the folder says nothing."""


def read_json(path: Path, remedy: str = REMEDY) -> dict[str, Any]:
    """The settings that a JSON file holds; remedy: the way out that its errors name.

    Raises:
        CheckpointError: missing, no JSON, or no mapping.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: is missing in {path.parent}; {remedy}") from None
    except (OSError, ValueError, RecursionError):
        raise CheckpointError(f"{path.name}: not valid JSON; {remedy}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: holds no settings; {remedy}")
    return data


def check_features(config: Mapping[str, Any]) -> None:
    """Refuse what computes otherwise than CosyVoice2's language model does.

    Raises:
        CheckpointError: a setting is of the wrong kind, or the heads do not divide the width.
        UnsupportedModel: no Qwen2, quantised, or one with a feature that `SpeechLM` lacks.
    """
    kinds = [(f"{name}.rope_type", _rope_kind(name, config), "default") for name in _ROPE_GROUPS]
    for key, found, known in (
        ("model_type", config.get("model_type"), "qwen2"),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("use_sliding_window", bool(config.get("use_sliding_window")), False),
        *kinds,
    ):
        if found != known:
            raise UnsupportedModel(
                f"{CONFIG}: {key} is {found!r}; only {known!r} is read, such as `vivavoce convert hf` writes"
            )
    if config.get("quantization_config") is not None:
        raise UnsupportedModel(
            f"{CONFIG}: quantization_config says that the weights are quantised; give the folder that they were "
            "quantised from"
        )
    _check_heads(config)


def rope_theta(config: Mapping[str, Any]) -> float:
    """The rotary base, by transformers 5's name or by the old one.

    Raises:
        CheckpointError: it is no number, or the two names contradict each other.
    """
    group = config.get(_ROPE_GROUPS[0]) or {}
    new, old = (
        None if values.get("rope_theta") is None else Section(path, values).number("rope_theta")
        for path, values in ((f"{CONFIG}: {_ROPE_GROUPS[0]}", group), (CONFIG, config))
    )
    if new is not None and old is not None and new != old:
        raise CheckpointError(
            f"{CONFIG}: rope_theta is {old:g} and {_ROPE_GROUPS[0]}.rope_theta is {new:g}, which must be one; {REMEDY}"
        )
    found = old if new is None else new
    return _DEFAULT_ROPE_THETA if found is None else found


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the head is the embedding.

    Raises:
        CheckpointError: the setting is neither true nor false.
    """
    tied = config.get("tie_word_embeddings")
    if tied is None:
        return False
    if not isinstance(tied, bool):
        raise CheckpointError(f"{CONFIG}: tie_word_embeddings: expected true or false, found {tied!r}; {REMEDY}")
    return tied


def _rope_kind(name: str, config: Mapping[str, Any]) -> object:
    """A group by itself: one that says "default" must not hide another that says otherwise."""
    group = config.get(name)
    if group is None:
        return "default"
    if not isinstance(group, Mapping):
        raise CheckpointError(f"{CONFIG}: {name}: expected a group of settings, found {group!r}; {REMEDY}")
    return group.get("rope_type") or group.get("type") or "default"


def _check_heads(config: Mapping[str, Any]) -> None:
    settings = Section(CONFIG, config)
    hidden, heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    kv_heads = settings.integer("num_key_value_heads")
    if hidden % heads or heads % kv_heads:
        raise CheckpointError(
            f"{CONFIG}: {heads} heads and {kv_heads} key-value heads do not divide hidden_size {hidden}; {REMEDY}"
        )
    if config.get("head_dim") is not None and settings.integer("head_dim") != hidden // heads:
        raise UnsupportedModel(
            f"{CONFIG}: head_dim is {config['head_dim']}; only hidden_size / num_attention_heads is read, which is "
            f"{hidden // heads}"
        )
