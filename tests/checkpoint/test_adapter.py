"""Folders of LoRA adapters: what is read, and what is refused, each with its field, value and limit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters import ATTENTION, write_adapter
from vivavoce.checkpoint.adapter import TARGETS, read_adapter
from vivavoce.checkpoint.config import qwen2_of
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models

WEIGHTS = "adapter_model.safetensors"


@pytest.mark.parametrize(("settings", "scale"), [({"rank": 4, "alpha": 8}, 2.0), ({"rank": 4, "alpha": 3}, 0.75)])
def test_the_scale_is_alpha_by_rank(tmp_path: Path, models: Models, settings: dict[str, int], scale: float) -> None:
    folder = write_adapter(tmp_path / "one", models.lm, targets=("q_proj", "down_proj"), **settings)
    found = read_adapter(folder, qwen2_of(models.config.lm))
    assert (found.rank, found.targets) == (4, ("q_proj", "down_proj"))
    stored = load_file(folder / WEIGHTS)
    a, b = found.pairs[1, "down_proj"]
    assert torch.equal(a, stored["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"])
    assert torch.equal(b, scale * stored["base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"])


def test_rank_stabilised_adapters_are_scaled_by_the_root(tmp_path: Path, models: Models) -> None:
    folder = write_adapter(tmp_path / "one", models.lm, rank=4, alpha=8, use_rslora=True)
    plain = write_adapter(tmp_path / "two", models.lm, rank=4, alpha=16)
    config = qwen2_of(models.config.lm)
    assert torch.equal(
        read_adapter(folder, config).pairs[0, "q_proj"][1], read_adapter(plain, config).pairs[0, "q_proj"][1]
    )


def test_names_of_other_wrappers_and_16_bit_are_read(tmp_path: Path, models: Models) -> None:
    folder = write_adapter(tmp_path / "one", models.lm, targets=ATTENTION)
    stored = load_file(folder / WEIGHTS)
    named = {
        key.replace("base_model.model.model", "base_model.model.llm.model.model"): one.bfloat16()
        for key, one in stored.items()
    }
    save_file(named, folder / WEIGHTS)
    found = read_adapter(folder, qwen2_of(models.config.lm))
    assert found.targets == ATTENTION
    assert all(one.dtype == torch.float32 for pair in found.pairs.values() for one in pair)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', not LORA; train a LoRA adapter"),
        ({"rank": 65}, "r is 65, outside of 1 … 64; choose a rank inside, or raise max_adapter_rank"),
        ({"lora_alpha": "8"}, "lora_alpha is '8', not a number"),
        ({"use_dora": True}, "use_dora is True; DoRA scales whole weights"),
        ({"bias": "lora_only"}, "bias is 'lora_only', not none"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']; whole modules cannot differ"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern is {'q_proj': 3}; every target needs the same alpha"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which changes the model's own"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules has 'lm_head'; choose of q_proj, k_proj, v_proj"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_served_are_refused(
    tmp_path: Path, models: Models, settings: dict[str, object], message: str
) -> None:
    folder = write_adapter(tmp_path / "one", models.lm, **settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"adapter: adapter_config.json of one: {re.escape(message)}"):
        read_adapter(folder, qwen2_of(models.config.lm), 64)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, models: Models) -> None:
    config = qwen2_of(models.config.lm)
    stem = "base_model.model.model.layers"
    good = load_file(write_adapter(tmp_path / "good", models.lm, targets=("q_proj",)) / WEIGHTS)

    def refused(message: str, changed: dict[str, torch.Tensor], without: str = "-") -> None:
        folder = write_adapter(tmp_path / "bad", models.lm, targets=("q_proj",))
        save_file({name: one for name, one in (good | changed).items() if without not in name}, folder / WEIGHTS)
        with pytest.raises(InvalidRequest, match=re.escape(message)):
            read_adapter(folder, config)

    name = f"{stem}.0.self_attn.q_proj.lora_A.weight"
    refused(f"{name!r} has shape [4, 7], expected [4, 64]; it belongs to another model", {name: torch.zeros(4, 7)})
    beyond = name.replace("layers.0", "layers.77")
    refused(f"layer 77, the model has {config.num_layers}; it belongs to another model", {beyond: good[name].clone()})
    refused("has numbers that are not finite", {name: torch.full_like(good[name], float("nan"))})
    refused("'base_model.model.lm_head.lora_A.weight' is not lora_A or lora_B of q_proj",
            {"base_model.model.lm_head.lora_A.weight": torch.zeros(1)})  # fmt: skip
    vector = f"{stem}.0.self_attn.q_proj.lora_magnitude_vector"
    refused(f"{vector!r} is not lora_A or lora_B", {vector: torch.zeros(1)})
    refused(
        "layer 0 has lora_A of q_proj without its lora_B; save it again", {}, without="layers.0.self_attn.q_proj.lora_B"
    )
    refused("it holds no tensor", {}, without="layers")


def test_files_that_are_none_are_refused(tmp_path: Path, models: Models) -> None:
    config = qwen2_of(models.config.lm)

    def refused(message: str) -> None:
        with pytest.raises(InvalidRequest, match=re.escape(message)):
            read_adapter(tmp_path / "one", config)

    refused(f"adapter_config.json: is missing in {tmp_path / 'one'}; name a folder that PEFT has written")
    folder = write_adapter(tmp_path / "one", models.lm)
    (folder / WEIGHTS).write_bytes(b"\xff" * 100)
    refused("it is damaged, or not a safetensors file")
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    refused("adapter_model.bin is a pickle: save it as safetensors")
    (folder / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused("is a pointer of git-lfs")
    with (folder / WEIGHTS).open("wb") as file:
        file.truncate(1 << 30)
    refused("1073741824 bytes are more than")
    for broken in ("[]", "{", json.dumps({"r": 4}), "[" * 100_000):
        (folder / "adapter_config.json").write_text(broken)
        with pytest.raises(InvalidRequest, match=r"adapter: adapter_config\.json"):
            read_adapter(folder, config)


def test_every_target_has_a_size(models: Models) -> None:
    from vivavoce.checkpoint.adapter import target_sizes

    lm, sizes = models.lm, target_sizes(qwen2_of(models.config.lm))
    named = dict(lm.named_modules())
    for target in TARGETS:
        room = "attention" if target in ATTENTION else "mlp"
        assert sizes[target] == tuple(named[f"layers.0.{room}.{target}"].weight.shape)
