"""How an engine is set up, and what of the device's memory each part may take."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field

import torch

from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.flow_stage.buckets import FRAME_BUCKETS
from vivavoce.engine.graphs import sizes_within
from vivavoce.engine.precision import Precision
from vivavoce.engine.scheduler import Limits
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.kernels import usable

MAX_POSITIONS = 5_120
"""Positions of a slot: 200 text tokens at 20 speech tokens each, and 30 s of reference with its transcript."""
CPU_SLOTS = 32
CUDA_SLOTS = 256
"""From there on a decode step takes longer by as much as it does more."""
CPU_STATE_BYTES = 2 << 30
SLOTS_SHARE, BATCHES_SHARE, BATCHES_BYTES = 0.25, 0.2, 8 << 30
"""Of the memory that a CUDA device has beside the weights: what slots take at most where that is enough for the fewest,
and what is left to recordings, batches' own tensors and weights in the form that kernels read, which at CosyVoice2's
size never need more than so many bytes; all else is for the flow's state."""
RECORDINGS_BYTES, FRAME_BYTES = 3 << 29, 200 << 10
"""With kernels: what of it does not grow with batches, and what a mel frame of the largest one takes, above all in the
vocoder."""
FEWEST_FRAMES = 2_048
"""Mel frames of the largest batch that is recorded: fewer would cost time."""
FEWEST_SLOTS = 8
LEAST_ROOM = 1 << 30
"""Bytes beside the weights with which an engine can work."""


@dataclass(frozen=True)
class EngineSettings:
    """What an operator may choose; None: as the device's memory allows.

    slots: sequences that the language model decodes at once; state_bytes: memory for the flow's state of the past;
    memory_bytes: all that may be taken of a CUDA device's memory, the weights included; kernels: whether our own
    kernels and recorded launches are used, None: where they are faster, on CUDA devices in 16 bit; deterministic: the
    same request gives the same bits whoever shares its batches, which costs speed; precision: what is of eight bits,
    with kernels only: less exact, and on an H200 slower; admission: whether streams that would make others run dry are
    refused or wait; max_waiting: requests that may wait; first_chunk_s: the time to a first chunk that admission plans
    for; headroom: the share of real time that streams may use before more of them wait or are refused.
    """

    slots: int | None = None
    state_bytes: int | None = None
    memory_bytes: int | None = None
    kernels: bool | None = None
    deterministic: bool = False
    precision: Precision = field(default_factory=Precision)
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
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise InvalidRequest(f"memory_bytes: {self.memory_bytes} is less than 1; choose some gigabytes")
        if self.deterministic and self.kernels is False:
            raise InvalidRequest("deterministic: needs kernels of our own; leave kernels out, or deterministic")
        if self.precision != Precision() and self.kernels is False:
            raise InvalidRequest("precision: eight bits need kernels of our own; leave kernels out, or eight bits")
        if self.max_waiting < 1:
            raise InvalidRequest(f"max_waiting: {self.max_waiting} is less than 1; choose 1 or more")


@dataclass(frozen=True)
class MemoryPlan:
    """Slots and positions of the key-value cache, bytes for the flow's state, and mel frames of the largest batch that
    is recorded; None: nothing is.
    """

    slots: int
    capacity: int
    state_bytes: int
    batch_frames: int | None


def plan_memory(models: Models, settings: EngineSettings) -> MemoryPlan:
    """Divide what the device has free; call it once the weights are there.

    Raises:
        InvalidRequest: too little is free, or `memory_bytes` leaves too little, beside the weights.
    """
    lm = models.config.lm
    capacity = min(lm.max_positions, MAX_POSITIONS)
    batch_frames = None
    per_slot = slot_bytes(models, capacity)
    if models.device.type == "cuda":
        room = cuda_room(models.device, settings.memory_bytes)
        slots = settings.slots or max(FEWEST_SLOTS, min(CUDA_SLOTS, int(room * SLOTS_SHARE) // per_slot))
        batches = min(int(room * BATCHES_SHARE), BATCHES_BYTES)
        if uses_kernels(models, settings):
            batches = min(max(batches, RECORDINGS_BYTES + FEWEST_FRAMES * FRAME_BYTES), room // 2)
            frames = max(FEWEST_FRAMES, (batches - RECORDINGS_BYTES) // FRAME_BYTES)
            batch_frames = sizes_within(FRAME_BUCKETS, frames)[-1]
        # One slot more takes what only pads.
        state_bytes = room - batches - (slots + 1) * per_slot
        if state_bytes < 0:
            raise InvalidRequest(
                f"memory: {slots} slots take {(slots + 1) * per_slot} bytes, beside the weights there are {room}, of "
                f"which {batches} are for batches; allow more memory or fewer slots"
            )
    else:
        slots = settings.slots or CPU_SLOTS
        state_bytes = min(CPU_STATE_BYTES, _host_memory() // 4)
    if settings.state_bytes is not None:
        state_bytes = settings.state_bytes
    return MemoryPlan(slots, capacity, state_bytes, batch_frames)


def slot_bytes(model: Models | LanguageModel, capacity: int) -> int:
    """Keys and values of so many positions in all layers."""
    lm = model.config.lm
    return 2 * lm.num_layers * lm.num_kv_heads * lm.head_dim * capacity * model.dtype.itemsize


def uses_kernels(models: Models | LanguageModel, settings: EngineSettings) -> bool:
    """Whether the stages run on our own kernels.

    Raises:
        InvalidRequest: they were asked for, and cannot run here.
    """
    can = usable(models.device)
    wanted = settings.kernels
    if wanted is None and settings.deterministic:
        wanted = True
    if wanted is None:
        return can and models.device.type == "cuda" and models.dtype != torch.float32
    if wanted and not can:
        asked = "deterministic: needs kernels of our own, which" if settings.deterministic else "kernels:"
        raise InvalidRequest(
            f"{asked} device {models.device} cannot run; use a CUDA device with triton installed, or leave it out"
        )
    return wanted


def cuda_room(device: torch.device, memory_bytes: int | None = None) -> int:
    """Bytes that may be taken beside the weights.

    Raises:
        InvalidRequest: too little is free, or `memory_bytes` leaves too little.
    """
    # What engines that were closed have held, and torch keeps.
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if free < LEAST_ROOM:
        raise InvalidRequest(
            f"memory: {free} bytes of {device} are free, the engine needs {LEAST_ROOM} or more; free some, or use "
            "another device"
        )
    if memory_bytes is None:
        return free
    taken = torch.cuda.memory_reserved(device)
    if memory_bytes < taken + LEAST_ROOM:
        raise InvalidRequest(
            f"memory_bytes: {memory_bytes} is too little, the weights take {taken}; choose {taken + LEAST_ROOM} or more"
        )
    return min(free, memory_bytes - taken)


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 8 << 30
