"""What `config.json` may say of a Qwen2 model, as every reader of one has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.export.hf.config import check_features, read_json, rope_theta

PLAIN = {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
DEFAULT = {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": None, "rope_parameters": None, "quantization_config": None, "head_dim": None},
        {"rope_parameters": DEFAULT, "rope_scaling": {"type": "default"}, "use_sliding_window": None, "head_dim": 16},
    ],
)
def test_plain_models_pass(changes: dict[str, Any]) -> None:
    check_features({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": DEFAULT, "rope_scaling": {"type": "yarn"}}, r"rope_scaling\.rope_type is 'yarn'"),
        (
            {"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": {"type": "default"}},
            r"rope_parameters\.rope_type",
        ),
        ({"quantization_config": {}}, "quantization_config says that the weights are quantised"),
        ({"head_dim": 32}, "head_dim is 32; only hidden_size / num_attention_heads is read, which is 16"),
    ],
)
def test_what_computes_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        check_features({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": [1]}, r"rope_scaling: expected a group of settings, found \[1\]"),
        ({"rope_parameters": "default"}, "rope_parameters: expected a group of settings, found 'default'"),
        ({"num_attention_heads": 3}, "3 heads and 2 key-value heads do not divide hidden_size 64"),
        ({"num_attention_heads": 0}, "num_attention_heads: expected a whole number from 1"),
        ({"head_dim": "wide"}, "head_dim: expected a number, found 'wide'"),
    ],
)
def test_settings_of_the_wrong_kind_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^config\.json: {message}"):
        check_features({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("config", "base"),
    [
        ({}, 10_000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": None, "rope_parameters": DEFAULT}, 1e6),
        ({"rope_theta": 1e6, "rope_parameters": DEFAULT}, 1e6),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}, 5e5),
    ],
)
def test_the_rotary_base_has_two_names(config: dict[str, Any], base: float) -> None:
    assert rope_theta(config) == base


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"rope_theta": 5e5, "rope_parameters": DEFAULT},
            r"rope_theta is 500000 and rope_parameters\.rope_theta is 1e\+06",
        ),
        ({"rope_parameters": {"rope_theta": "x"}}, r"rope_parameters\.rope_theta: expected a number, found 'x'"),
    ],
)
def test_a_rotary_base_that_cannot_be_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rope_theta(config)


@pytest.mark.parametrize(
    ("content", "message"), [("[1]", "holds no settings; mend it"), ("[" * 100_000, "not valid JSON")]
)
def test_files_that_hold_no_settings_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"^x\.json: {message}"):
        read_json(tmp_path / "x.json", "mend it")
    (tmp_path / "x.json").write_text(json.dumps(PLAIN))
    assert read_json(tmp_path / "x.json") == PLAIN
