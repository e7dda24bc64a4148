"""LoRA adapters with random weights, as PEFT writes them, for tests and benchmarks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from vivavoce.checkpoint.adapter import PRODUCTS, SETTINGS, TARGETS, WEIGHTS, target_sizes
from vivavoce.checkpoint.config import LMConfig

_ATTENTION = {*PRODUCTS["qkv"], *PRODUCTS["out"]}


def make_random_adapter(
    folder: Path,
    config: LMConfig,
    *,
    rank: int = 4,
    alpha: float = 8,
    targets: Sequence[str] = TARGETS,
    seed: int = 0,
    size: float = 1.0,
    **settings: Any,
) -> Path:
    """Write an adapter that changes the output of a model of these sizes. size: of the change of a layer's output,
    relative to that output, if alpha = rank; settings: more fields of the adapter's configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "target_modules": list(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        "use_rslora": False,
        "inference_mode": True,
    }
    (folder / SETTINGS).write_text(json.dumps(plain | settings))
    generator, sizes, tensors = torch.Generator().manual_seed(seed), target_sizes(config), {}
    for layer in range(config.num_layers):
        for target in targets:
            outputs, inputs = sizes[target]
            room = "self_attn" if target in _ATTENTION else "mlp"
            stem = f"base_model.model.model.layers.{layer}.{room}.{target}"
            a = torch.randn(rank, inputs, generator=generator) / math.sqrt(inputs)
            b = size * torch.randn(outputs, rank, generator=generator) / math.sqrt(rank)
            tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"] = a, b
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


def merge_adapter(lm: torch.nn.Module, folder: Path) -> None:
    """Add scale · B·A to the weights of a language model, in place; all three are read from the adapter's folder."""
    settings, tensors = json.loads((folder / SETTINGS).read_text()), load_file(folder / WEIGHTS)
    scale = settings["lora_alpha"] / (math.sqrt(settings["r"]) if settings["use_rslora"] else settings["r"])
    parameters = dict(lm.named_parameters())
    for name, a in tensors.items():
        if ".lora_A." in name:
            own = name.removeprefix("base_model.model.model.").replace("self_attn", "attention").replace(".lora_A", "")
            weight, b = parameters[own], tensors[name.replace("lora_A", "lora_B")]
            weight.data += (scale * b.double() @ a.double()).to(weight)
