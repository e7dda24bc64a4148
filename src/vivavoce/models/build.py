"""A model folder → networks with weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vivavoce.checkpoint.config import LMConfig, ModelConfig
from vivavoce.checkpoint.folder import detect_generation, read_config
from vivavoce.checkpoint.names import FLOW_NAMES, LM_NAMES, VOCODER_NAMES, NameTable
from vivavoce.checkpoint.weights import check_variant, find_part, fold_weight_norm, load_into, read_tensors
from vivavoce.models.flow.model import Flow
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.vocoder.hift import HiFT


@dataclass(frozen=True)
class Models:
    """The three networks that speak, on one device."""

    config: ModelConfig
    lm: SpeechLM
    flow: Flow
    vocoder: HiFT
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class LanguageConfig:
    """Sizes of a language model that is on its own."""

    lm: LMConfig


@dataclass(frozen=True)
class LanguageModel:
    """The language model on its own, on one device: `Models` for whoever makes speech tokens and no audio."""

    config: LanguageConfig
    lm: SpeechLM
    device: torch.device
    dtype: torch.dtype


def build_models(
    folder: Path, device: torch.device, dtype: torch.dtype = torch.float32, variant: str | None = None
) -> Models:
    """Load a CosyVoice2 folder.

    Args:
        folder: official layout.
        device: where the networks run.
        dtype: of the language model and the flow. The vocoder stays in float32: its phases are sums of many
            thousand radians, and its share of the work is small.
        variant: take `part.variant.pt` where the folder has one.

    Raises:
        CheckpointError: files missing, corrupt, or not fitting the configuration.
    """
    detect_generation(folder)
    check_variant(folder, variant)
    prepare_device(device)
    paths = {part: find_part(folder, part, variant) for part in ("llm", "flow", "hift")}
    flow_state = read_tensors(paths["flow"])
    config = read_config(folder, flow_state)

    def load(module: nn.Module, state: dict[str, torch.Tensor], names: NameTable, part: str, to: torch.dtype) -> None:
        load_into(module, state, names, paths[part].name, to)
        module.to(device).eval().requires_grad_(False)

    with torch.device("meta"):
        lm, flow, vocoder = SpeechLM(config.lm), Flow(config.flow), HiFT(config.vocoder)
    load(lm, read_tensors(paths["llm"]), LM_NAMES, "llm", dtype)
    load(flow, flow_state, FLOW_NAMES, "flow", dtype)
    load(vocoder, fold_weight_norm(read_tensors(paths["hift"])), VOCODER_NAMES, "hift", torch.float32)
    return Models(config, lm, flow, vocoder, device, dtype)


def build_language_model(
    folder: Path, device: torch.device, dtype: torch.dtype = torch.float32, variant: str | None = None
) -> LanguageModel:
    """Load the language model of a CosyVoice2 folder; arguments and errors as in `build_models`."""
    config = read_config(folder, ()).lm
    check_variant(folder, variant)
    prepare_device(device)
    path = find_part(folder, "llm", variant)
    with torch.device("meta"):
        lm = SpeechLM(config)
    load_into(lm, read_tensors(path), LM_NAMES, path.name, dtype)
    lm.to(device).eval().requires_grad_(False)
    return LanguageModel(LanguageConfig(config), lm, device, dtype)


def prepare_device(device: torch.device) -> None:
    """Set what the networks need of the process before they run on the device."""
    if device.type == "cuda":
        # cuDNN's attention plans anew for every length that it meets, some 50 ms each time, and a decode meets a new
        # one at every token. The switch belongs to the process: torch has none that a model could keep to itself.
        torch.backends.cuda.enable_cudnn_sdp(False)
