"""LoRA adapters of the language model (arXiv:2106.09685): small matrices are trained beside frozen weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import linear

from vivavoce.checkpoint.adapter import SETTINGS, TARGETS, WEIGHTS
from vivavoce.files import replacing
from vivavoce.models.lm.qwen2 import SpeechLM

_PEFT = "base_model.model.model."


class LoRA(nn.Module):
    """The matrices A and B of each target layer of a language model. It freezes the model's own weights, and adds
    scale · B(Ax) to each target's output, as long as the model exists; B begins with zeros. Only the matrices are
    parameters and state of this module. Its training mode is also the model's.
    """

    def __init__(self, lm: SpeechLM, rank: int) -> None:
        super().__init__()
        self.rank, self.alpha = rank, 2 * rank
        self._host = [lm.requires_grad_(False)]  # a list keeps it from being registered as a submodule
        for name, module in lm.named_modules():
            if name.startswith("layers.") and name.rpartition(".")[2] in TARGETS:
                assert isinstance(module, nn.Linear)
                key = name.replace(".attention.", ".self_attn.").replace(".", "/")  # parameters' names have no dots
                down, up = torch.empty(rank, module.in_features), torch.zeros(module.out_features, rank)
                nn.init.kaiming_uniform_(down, a=math.sqrt(5))
                self.register_parameter(f"{key}/lora_A", nn.Parameter(down))
                self.register_parameter(f"{key}/lora_B", nn.Parameter(up))
                module.register_forward_hook(self._grown(key))

    def _grown(self, key: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
        scale = self.alpha / self.rank

        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            down, up = self.get_parameter(f"{key}/lora_A"), self.get_parameter(f"{key}/lora_B")
            return output + scale * linear(linear(inputs[0], down), up)

        return hook

    def train(self, mode: bool = True) -> LoRA:
        self._host[0].train(mode)
        super().train(mode)
        return self


def write_adapter(folder: Path, state: Mapping[str, Tensor], lora: LoRA, model: str) -> None:
    """Write an adapter folder that PEFT and `vivavoce` read. state: of the `LoRA`; model: name of the tuned model."""
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(TARGETS),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    tensors = {f"{_PEFT}{name.replace('/', '.')}.weight": tensor.contiguous() for name, tensor in state.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as file:
        file.write(save(tensors, {"format": "pt"}))
    with replacing(folder / SETTINGS) as file:
        file.write((json.dumps(settings, indent=2) + "\n").encode())
