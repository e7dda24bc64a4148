"""The flow and the vocoder of a folder without its language model, which another process runs, and their memory."""

from __future__ import annotations

from pathlib import Path

import torch

from vivavoce.checkpoint.folder import detect_generation, read_config
from vivavoce.checkpoint.names import FLOW_NAMES, VOCODER_NAMES
from vivavoce.checkpoint.weights import find_part, fold_weight_norm, load_into, read_tensors
from vivavoce.engine.settings import LEAST_ROOM, EngineSettings, MemoryPlan, plan_memory
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models, prepare_device
from vivavoce.models.flow.model import Flow
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.vocoder.hift import HiFT

FREE_SHARE = 0.3
"""Of the memory that a CUDA device has free: a language model beside it takes half or more."""


def load_networks(folder: Path, device: torch.device, dtype: torch.dtype) -> Models:
    """As `build_models`, but the language model is an outline without weights (on torch's meta device).

    Raises:
        CheckpointError: files missing, corrupt, or not fitting the configuration.
    """
    detect_generation(folder)
    prepare_device(device)
    flow_file, vocoder_file = (find_part(folder, part) for part in ("flow", "hift"))
    flow_state = read_tensors(flow_file)
    config = read_config(folder, flow_state)
    with torch.device("meta"):
        lm, flow, vocoder = SpeechLM(config.lm), Flow(config.flow), HiFT(config.vocoder)
    load_into(flow, flow_state, FLOW_NAMES, flow_file.name, dtype)
    vocoder_state = fold_weight_norm(read_tensors(vocoder_file))
    load_into(vocoder, vocoder_state, VOCODER_NAMES, vocoder_file.name, torch.float32)
    for network in (flow, vocoder):
        network.to(device).eval().requires_grad_(False)
    return Models(config, lm, flow, vocoder, device, dtype)


def plan_share(models: Models, memory_bytes: int | None) -> MemoryPlan:
    """Divide what these networks may take of the device, by the engine's rules.

    memory_bytes: all of it, the weights included; None: they and `FREE_SHARE` of what is free. Of no effect on a CPU.

    Raises:
        InvalidRequest: too little.
    """
    if models.device.type == "cuda":
        taken = torch.cuda.memory_reserved(models.device)
        if memory_bytes is None:
            free, _ = torch.cuda.mem_get_info(models.device)
            memory_bytes = taken + max(LEAST_ROOM, int(FREE_SHARE * free))
        if memory_bytes < taken + LEAST_ROOM:
            raise InvalidRequest(
                f"memory_gb: {memory_bytes / 2**30:.1f} is too little, the weights take {taken / 2**30:.1f}; choose "
                f"{(taken + LEAST_ROOM) / 2**30:.1f} or more, or leave it empty"
            )
    # The one slot of a language model that a plan has at least is small beside all else.
    return plan_memory(models, EngineSettings(slots=1, memory_bytes=memory_bytes))
