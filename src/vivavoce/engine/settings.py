"""How an engine is set up, and what of the device's memory each part may take."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.scheduler import Limits
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models

MAX_POSITIONS = 5_120
"""Positions of a slot: 200 text tokens at 20 speech tokens each, and 30 s of reference with its transcript."""
CPU_SLOTS = 32
CUDA_SLOTS = 256
CPU_STATE_BYTES = 2 << 30
SLOTS_SHARE, STATE_SHARE = 0.25, 0.6
"""Of a CUDA device's free memory; the rest is room for a batch's own tensors."""


@dataclass(frozen=True)
class EngineSettings:
    """What an operator may choose; None: as the device's memory allows.

    slots: sequences that the language model decodes at once; state_bytes: memory for the flow's state of the past;
    admission: whether streams that would make others run dry are refused or wait; max_waiting: requests that may wait;
    first_chunk_s: the time to a first chunk that admission plans for; headroom: the share of real time that streams may
    use before more of them wait or are refused.
    """

    slots: int | None = None
    state_bytes: int | None = None
    admission: AdmissionMode = AdmissionMode.QUEUE
    max_waiting: int = 1_000
    first_chunk_s: float = 1.0
    headroom: float = 0.85
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.slots is not None and not 1 <= self.slots <= 4_096:
            raise InvalidRequest(f"slots: {self.slots} is outside of 1 … 4096; choose a number inside")
        if self.state_bytes is not None and self.state_bytes < 0:
            raise InvalidRequest(f"state_bytes: {self.state_bytes} is below 0; choose 0 or more")
        if self.max_waiting < 1:
            raise InvalidRequest(f"max_waiting: {self.max_waiting} is less than 1; choose 1 or more")


@dataclass(frozen=True)
class MemoryPlan:
    """Slots and positions of the key-value cache, and bytes for the flow's state."""

    slots: int
    capacity: int
    state_bytes: int


def plan_memory(models: Models, settings: EngineSettings) -> MemoryPlan:
    """Divide what the device has free; call it once the weights are there."""
    lm = models.config.lm
    capacity = min(lm.max_positions, MAX_POSITIONS)
    width = torch.finfo(models.dtype).bits // 8
    slot_bytes = 2 * lm.num_layers * lm.num_kv_heads * lm.head_dim * capacity * width
    if models.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(models.device)
        slots = max(8, min(CUDA_SLOTS, int(free * SLOTS_SHARE) // slot_bytes))
        state_bytes = int(free * STATE_SHARE)
    else:
        slots, state_bytes = CPU_SLOTS, min(CPU_STATE_BYTES, _host_memory() // 4)
    if settings.slots is not None:
        slots = settings.slots
    if settings.state_bytes is not None:
        state_bytes = settings.state_bytes
    return MemoryPlan(slots, capacity, state_bytes)


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 8 << 30
