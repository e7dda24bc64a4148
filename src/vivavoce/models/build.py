"""Builds the networks of a model folder and loads their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vivavoce.checkpoint.config import ConformerLMConfig, Generation, LMConfig, ModelConfig
from vivavoce.checkpoint.folder import detect_generation
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import check_variant, find_part, load_into, read_tensors
from vivavoce.models.generations import NETWORKS, NetworkPart

if TYPE_CHECKING:
    from vivavoce.models.flow.model import Flow
    from vivavoce.models.lm.qwen2 import SpeechLM
    from vivavoce.models.vocoder.causal import CausalHiFT
    from vivavoce.models.vocoder.hift import HiFT


@dataclass(frozen=True)
class Models:
    """The networks of a model. The types of the fields are those of CosyVoice 2 and 3; see `NETWORKS` for others."""

    config: ModelConfig
    lm: SpeechLM
    flow: Flow
    vocoder: HiFT | CausalHiFT
    device: torch.device
    dtype: torch.dtype
    folder: Path = Path()  # empty if the model has no weights
    merged: Path | None = None  # the folder of `vivavoce export hf`, if another runtime runs the language model


@dataclass(frozen=True)
class LanguageConfig:
    lm: LMConfig | ConformerLMConfig
    generation: Generation


@dataclass(frozen=True)
class LanguageModel:
    config: LanguageConfig
    lm: SpeechLM
    device: torch.device
    dtype: torch.dtype
    merged: Path | None = None


def build_models(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    variant: str | None = None,
    *,
    language_model: bool = True,
    llm: Path | None = None,
) -> Models:
    """Load a model folder. dtype: of language model and flow. variant: use the file `part.variant.pt` where it exists.
    language_model: if False, the language model gets no weights (meta device). llm: a file with weights for the
    language model, instead of the folder's file. Raises CheckpointError if files are missing or corrupt, or do not fit
    their configuration."""
    generation = detect_generation(folder)
    check_variant(folder, variant)
    prepare_device(device)
    parts = NETWORKS[generation]
    loaded = {name: part for name, part in parts.items() if language_model or name != "lm"}
    given = {} if llm is None else {"lm": llm}
    paths = {name: given.get(name) or find_part(folder, part.part, variant) for name, part in loaded.items()}
    states = {"flow": read_tensors(paths["flow"])}
    config = read_config(folder, states["flow"])
    networks: dict[str, Any] = {}
    for name, part in parts.items():
        if name not in loaded:
            networks[name] = part.outline(config)
            continue
        state = part.state(states.pop(name) if name in states else read_tensors(paths[name]))
        to = torch.float32 if part.float32 else dtype
        networks[name] = build_network(part, config, state, paths[name].name, device, to)
    return Models(config=config, device=device, dtype=dtype, folder=folder, **networks)


def build_network(
    part: NetworkPart,
    config: Any,
    state: Mapping[str, torch.Tensor],
    file: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    """Build a network and load a file's tensors into it. Raises CheckpointError if the tensors do not fit."""
    network = part.outline(config)
    load_into(network, state, part.names, file, dtype)
    return network.to(device).eval().requires_grad_(False)


def build_language_model(
    folder: Path, device: torch.device, dtype: torch.dtype = torch.float32, variant: str | None = None
) -> LanguageModel:
    config = read_config(folder, ())
    check_variant(folder, variant)
    prepare_device(device)
    part = NETWORKS[config.generation]["lm"]
    path = find_part(folder, part.part, variant)
    lm = build_network(part, config, part.state(read_tensors(path)), path.name, device, dtype)
    return LanguageModel(LanguageConfig(config.lm, config.generation), lm, device, dtype)


def prepare_device(device: torch.device) -> None:
    if device.type == "cuda":
        # Switch cuDNN's attention off: it plans for 50 ms at each new length, and every decode step has a new length.
        # The switch affects the whole process, because torch has no switch for a single model.
        torch.backends.cuda.enable_cudnn_sdp(False)
