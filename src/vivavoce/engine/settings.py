"""The settings of an engine, and the division of the device's memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import inf, sqrt
from pathlib import Path

import torch

from vivavoce.checkpoint.config import MAX_ADAPTER_RANK, Generation, qwen2_of
from vivavoce.engine.adapters import MAX_ADAPTERS
from vivavoce.engine.admission import AdmissionLimits
from vivavoce.engine.backends import backend_problems
from vivavoce.engine.device import FRAME_SIZES, rounded
from vivavoce.engine.request import FlowSteps, is_number
from vivavoce.engine.scheduler import Limits
from vivavoce.errors import InvalidRequest, check_kind
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.lm.adapters import RANK_STEP, numbers_of
from vivavoce_kernels import usable

MAX_POSITIONS = 5_120
"""The most positions of a slot: 200 text tokens at 20 speech tokens each, and 30 s of reference with its transcript."""
CPU_SLOTS = 32
CUDA_SLOTS = 256
"""The most slots by default. With more slots, the time of a decode step grows in proportion to their number."""
CPU_STATE_BYTES = 2 << 30
SLOTS_SHARE, BATCHES_SHARE = 0.25, 0.25
"""Shares of the CUDA memory that the weights leave: at most SLOTS_SHARE for slots (more if FEWEST_SLOTS need it), and
BATCHES_SHARE for CUDA graphs, batches' tensors and weights in the kernels' layout. The rest is for the flow's state."""
CUDA_BYTES, LATER_BYTES = 3 << 28, 1 << 28
"""Bytes that CUDA takes beside torch's allocations, for its context and the code of kernels and libraries; LATER_BYTES
of them are taken only after memory was divided."""
FEWEST_FRAMES = 2_048
"""The largest flow batch has at least this many mel frames, even if little memory is left: smaller batches are slow."""
FEWEST_BYTES, ROOT_BYTES = 15 << 27, 72 << 20
"""With kernels: bytes of CUDA graphs and batches up to FEWEST_FRAMES, and growth in bytes for each square root of
frames; fitted to engines of CosyVoice 2 and 3 on an H200 (benchmarks/results/gpu)."""
FEWEST_SLOTS = 8
LONE_SLOTS_SHARE = 0.5
"""`SLOTS_SHARE` if the engine has only a language model."""
STREAMS = 4_096
"""Number of concurrent requests if no language model limits them by its slots."""
LEAST_ROOM = 1 << 30
"""The fewest bytes beside the weights with which an engine can work."""

_KINDS = {"bool": bool, "str": str}


@dataclass(frozen=True)
class EngineSettings(AdmissionLimits):
    """The operator's settings, admission's limits included; a size that is None is chosen to fit the device's memory.

    slots: sequences that the language model decodes at once; slots_share: if `slots` is None, slots take at most this
    share of the CUDA memory that the weights leave, None: a quarter, or half if there is only a language model;
    state_bytes: memory for the flow's state of the past; memory_bytes: the most memory of a CUDA device that may be
    taken, the weights included; kernels: whether our own kernels and CUDA graphs are used, None: on CUDA devices in 16
    bit, where they are faster; deterministic: slower, but a request always gives the same bits, whatever other requests
    share its batches; watermark: the audio carries an inaudible mark of synthetic speech, and comes 20 ms later;
    lm_backend, flow_backend: runtimes of the language model and of the flow's velocity estimator, see docs/backends.md;
    trt_concurrent: execution contexts of TensorRT; tp: GPUs that share each layer of the language model; pp: GPUs among
    which its layers are divided; trust_model_code: run files of the model's folder that hold code, even if they were
    not made on this machine; flow_steps: official or fast (`FlowSteps`), for requests that do not choose; adapters:
    folders of LoRA adapters of the language model, by the names that requests use; max_adapters: the most adapters that
    may be loaded at once, `adapters` included; 0 means as many as `adapters` has; max_adapter_rank: the largest rank of
    an adapter.
    """

    slots: int | None = None
    slots_share: float | None = None
    state_bytes: int | None = None
    memory_bytes: int | None = None
    kernels: bool | None = None
    deterministic: bool = False
    watermark: bool = False
    lm_backend: str = "torch"
    flow_backend: str = "torch"
    trt_concurrent: int = 1
    tp: int = 1
    pp: int = 1
    trust_model_code: bool = False
    flow_steps: str = "official"
    adapters: Mapping[str, str | Path] = field(default_factory=dict, hash=False)
    max_adapters: int = 0
    max_adapter_rank: int = 64
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, (kind, _, may_be_none) = getattr(self, one.name), str(one.type).partition(" | ")
            if value is None and may_be_none:
                continue
            if kind in _KINDS:
                check_kind(one.name, value, _KINDS[kind], "see vivavoce.EngineSettings")
            elif kind in ("int", "float") and not is_number(value, whole=kind == "int"):
                number = "whole number" if kind == "int" else "number"
                raise InvalidRequest(f"{one.name}: {value!r} is not a {number}; see vivavoce.EngineSettings")
        super().__post_init__()
        for name, low, high in (
            ("slots", 1, 4_096),
            ("state_bytes", 0, inf),
            ("memory_bytes", 1, inf),
            ("max_adapters", 0, MAX_ADAPTERS),
            ("max_adapter_rank", 1, MAX_ADAPTER_RANK),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"{name}: {value} is outside of {low} … {high}; choose a number inside")
        if self.slots_share is not None and not 0 < self.slots_share <= 1:
            raise InvalidRequest(f"slots_share: {self.slots_share} is outside of (0, 1]; choose a share")
        if self.deterministic and self.kernels is False:
            raise InvalidRequest("deterministic: needs kernels of our own; leave kernels out, or deterministic")
        if self.flow_steps not in (known := [one.value for one in FlowSteps]):
            raise InvalidRequest(f"flow_steps: {self.flow_steps!r} is not one of {', '.join(known)}; choose one")
        if len(self.adapters) > (most := self.max_adapters or MAX_ADAPTERS):
            raise InvalidRequest(f"adapters: {len(self.adapters)} are named, the limit is {most}; name fewer")
        problem = next(backend_problems(self), None)
        if problem is None and self.adapter_places and self.lm_backend != "torch":
            problem = f"adapters: lm_backend {self.lm_backend} runs no adapters; choose torch, or leave adapters out"
        if problem is not None:
            raise InvalidRequest(problem)

    @property
    def adapter_places(self) -> int:
        """The number of adapters that may be loaded at once."""
        return self.max_adapters or len(self.adapters)


@dataclass(frozen=True)
class MemoryPlan:
    """The division of memory: slots and positions of the key-value cache, bytes for the flow's state, and mel frames of
    the largest batch with a CUDA graph (None: there are no graphs). On CUDA also the bytes of all slots (for another
    runtime, its weights are included), and the estimated bytes of batches."""

    slots: int
    capacity: int
    state_bytes: int
    batch_frames: int | None
    slots_bytes: int = 0
    batches_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes taken of a CUDA device beside the weights and `CUDA_BYTES`."""
        return self.slots_bytes + self.state_bytes + self.batches_bytes


def plan_memory(models: Models | LanguageModel, settings: EngineSettings) -> MemoryPlan:
    """Divide the device's free memory, after the weights are loaded. Raises InvalidRequest if it is too little."""
    if models.device.type == "cuda":
        room = cuda_room(models.device, settings.memory_bytes)
        return divide(room, models, settings, uses_kernels(models, settings))
    state_bytes = min(CPU_STATE_BYTES, host_memory() // 4) if settings.state_bytes is None else settings.state_bytes
    has_lm = settings.lm_backend != "torch" or has_language_model(models)
    slots = settings.slots or (CPU_SLOTS if has_lm else STREAMS)
    return MemoryPlan(slots, _capacity(models), state_bytes if isinstance(models, Models) else 0, None)


def divide(room: int, models: Models | LanguageModel, settings: EngineSettings, kernels: bool) -> MemoryPlan:
    """Divide a CUDA device's memory. Only sizes are read, so it works without a device and on models without weights.

    room: bytes that the weights leave; kernels: whether kernels are used. Raises InvalidRequest if room is too little.
    """
    has_flow, capacity = isinstance(models, Models), _capacity(models)
    keeps_state = has_flow and models.config.generation is not Generation.V1
    # A language model without weights takes no slots, unless all models are outlines on the meta device.
    apart = settings.lm_backend != "torch"
    has_lm = apart or has_language_model(models) or models.device.type == "meta"
    per_slot = slot_bytes(models, capacity) if has_lm else 0
    batch_frames, batches, spared = None, 0, 0
    share = settings.slots_share or (SLOTS_SHARE if has_flow else LONE_SLOTS_SHARE)
    most_slots = CUDA_SLOTS if has_lm else STREAMS
    slots = settings.slots or max(FEWEST_SLOTS, min(most_slots, int(room * share) // max(1, per_slot)))
    if has_flow:
        batches = spared = min(int(room * BATCHES_SHARE), _batches_bytes(FRAME_SIZES.positions[-1]))
        if kernels:
            fitting = [size for size in FRAME_SIZES.positions if _batches_bytes(size) <= batches]
            batch_frames = max((FEWEST_FRAMES, *fitting))
            batches = _batches_bytes(batch_frames)
            # If the device is too small for all graphs, less is reserved: not all of them are needed at once.
            spared = min(batches, room // 2)
    # One additional slot is for padding.
    slots_bytes = int(room * share) if apart else (slots + 1) * per_slot
    slots_bytes += adapter_bytes(models, settings)
    state_bytes = room - spared - slots_bytes
    if state_bytes < 0:
        raise InvalidRequest(
            f"memory: {slots} slots take {slots_bytes} bytes, the weights leave {room} bytes, of "
            f"which {spared} are for batches; allow more memory or fewer slots"
        )
    if settings.state_bytes is not None:
        state_bytes = settings.state_bytes
    return MemoryPlan(slots, capacity, state_bytes if keeps_state else 0, batch_frames, slots_bytes, batches)


def _batches_bytes(frames: int) -> int:
    """Estimate the bytes that batches and CUDA graphs take; frames: mel frames of the largest batch with a graph."""
    return FEWEST_BYTES + int(ROOT_BYTES * (sqrt(frames) - sqrt(FEWEST_FRAMES)))


def _capacity(models: Models | LanguageModel) -> int:
    return min(models.config.lm.max_positions, MAX_POSITIONS)


def has_language_model(models: Models | LanguageModel) -> bool:
    """Return whether the language model has weights; without weights it is on torch's meta device."""
    return not next(models.lm.parameters()).is_meta


def slot_bytes(model: Models | LanguageModel, capacity: int) -> int:
    """Return the bytes of keys and values of a slot with `capacity` positions, in all layers."""
    lm = model.config.lm
    return 2 * lm.num_layers * lm.num_kv_heads * lm.head_dim * capacity * model.dtype.itemsize


def adapter_bytes(model: Models | LanguageModel, settings: EngineSettings) -> int:
    """Return the bytes of all adapter places, each of the largest rank. UnsupportedModel: the model is CosyVoice 1."""
    if not settings.adapter_places:
        return 0
    rank = rounded(settings.max_adapter_rank, RANK_STEP)
    return settings.adapter_places * numbers_of(qwen2_of(model.config.lm), rank) * model.dtype.itemsize


def suits_kernels(generation: Generation, dtype: torch.dtype) -> bool:
    """Return whether our own kernels are faster on a CUDA device; CosyVoice 1 has no kernels."""
    return generation is not Generation.V1 and dtype != torch.float32


def uses_kernels(models: Models | LanguageModel, settings: EngineSettings) -> bool:
    """Return whether the stages run on our own kernels.

    Raises:
        InvalidRequest: the settings ask for kernels, which cannot run on this device.
    """
    can = usable(models.device)
    wanted = settings.kernels
    if wanted is None and settings.deterministic:
        wanted = True
    if wanted is None:
        return can and models.device.type == "cuda" and suits_kernels(models.config.generation, models.dtype)
    if wanted and not can:
        asked = "deterministic: needs kernels of our own, which" if settings.deterministic else "kernels: they"
        raise InvalidRequest(
            f"{asked} cannot run on device {models.device}; use a CUDA device with triton installed, or leave it out"
        )
    return wanted


def room_beside(weights: int, memory_bytes: int) -> int:
    """Return how many of `memory_bytes` remain beside the weights. Raises InvalidRequest if too few remain."""
    room = memory_bytes - weights - CUDA_BYTES
    if room < LEAST_ROOM:
        raise InvalidRequest(
            f"memory_bytes: {memory_bytes} is too little, the weights take {weights} and CUDA itself {CUDA_BYTES}; "
            f"choose {memory_bytes - room + LEAST_ROOM} or more"
        )
    return room


def cuda_room(device: torch.device, memory_bytes: int | None = None) -> int:
    """Return how many bytes of the device may be taken beside the weights.

    Raises:
        InvalidRequest: too little is free, or `memory_bytes` leaves too little.
    """
    # Free the memory that torch keeps from closed engines.
    gc.collect()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0] - LATER_BYTES
    if free < LEAST_ROOM:
        raise InvalidRequest(
            f"memory: {free + LATER_BYTES} bytes of {device} are free, the engine needs {LEAST_ROOM + LATER_BYTES} or "
            "more; free some, or use another device"
        )
    return free if memory_bytes is None else min(free, room_beside(torch.cuda.memory_reserved(device), memory_bytes))


def host_memory(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process may use: the machine's memory, or a lower limit of its control group."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not every system has these values
        memory = 8 << 30
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return memory
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root, name = (mounted, "memory.max") if not controllers else (mounted / "memory", "memory.limit_in_bytes")
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = root / path.strip("/")
        # Parent groups have limits, too. In a container the path may be one of the host, which does not exist here.
        for group in (folder, *folder.parents[: len(folder.parts) - len(root.parts)]):
            with suppress(OSError, ValueError):  # "max" means that there is no limit
                memory = min(memory, int((group / name).read_text()))
    return memory
