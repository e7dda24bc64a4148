"""The interfaces of the stages, and the errors with which requests end if a stage fails.

Another generation of models, or another runtime (vLLM, TensorRT), implements these three interfaces: loop, scheduler
and entry points use only them. One thread calls them, under `torch.inference_mode()`, and on CUDA each of the two
queues (`device.DeviceQueue`) has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.cost_model import ShortBatches
from vivavoce.engine.flow_stage import FlowRow
from vivavoce.engine.lm_stage import DecodeRun, Sampled
from vivavoce.engine.request import Conditioning, FlowSteps, SamplingParams
from vivavoce.engine.request_state import SequenceState
from vivavoce.engine.vocoder_stage import VocoderRow
from vivavoce.errors import OutOfMemory, StageFailed, VivavoceError


class LMInterface(Protocol):
    """A language model over slots. Launches (`prefill`, `decode`) do not wait; `collect` returns their ids."""

    slots: int
    capacity: int
    """Number of positions in each slot."""
    self_paced: bool
    """After `prefill` the runtime decodes by itself to the run's end. Then `decode` does nothing, `collect` gives the
    seconds of the ids (`Sampled.seconds`), and `wait` may return before there are new ids."""

    @property
    def healthy(self) -> bool:
        """False if the runtime is known to have failed. Any thread may ask."""

    @property
    def free_slots(self) -> int:
        """Number of slots that can be opened."""

    @property
    def decoding(self) -> int:
        """Number of slots with a run in progress, as far as the collected ids show."""

    @property
    def in_flight(self) -> int:
        """Number of launches whose ids were not collected yet."""

    @property
    def steps_in_flight(self) -> int:
        """Number of decode steps whose ids were not collected yet."""

    def prepare(self, slots: int | None = None) -> None:
        """Record in advance the launches that this many slots need; if None, that all slots need."""

    def check(self, run: DecodeRun, slot: int | None = None) -> None:
        """Raise InvalidRequest for a run that needs more positions than the slot has left (None: an empty slot)."""

    def open(self, params: SamplingParams, seed: int) -> int:
        """Take a free slot, and return its number."""

    def prefill(self, runs: Mapping[int, DecodeRun]) -> None:
        """Begin a run in each of these slots: prefill its rows, in one forward pass, and sample its first id."""

    def decode(self, steps: int = 1) -> None:
        """For every slot whose run is in progress, sample `steps` more ids, or fewer if the run ends."""

    def collect(self, wait: bool) -> list[Sampled]:
        """Return the ids of finished launches, oldest first; wait: if none is finished, block until the oldest is.

        Raises EngineStopped if no more ids will come; after any other error it is unknown which launch failed.
        """

    def wait(self) -> None:
        """Block until the oldest launch with ids that were not collected is finished."""

    def close(self, slot: int) -> None:
        """Free a slot at once; ids of its run that arrive later are dropped."""

    def shutdown(self) -> None:
        """End processes and threads of the runtime. The stage is not used afterwards."""


class FlowJobInterface(Protocol):
    """A running batch of the flow; share: its network evaluations, divided by the evaluations of official steps."""

    share: float

    @property
    def steps_left(self) -> int:
        """Number of calls of `step` until the batch is done."""

    def step(self) -> None:
        """Take one step, without waiting for the device."""

    def result(self) -> Sequence[Tensor | None]:
        """Return the mels [frames, bins] of a done job's rows, in order; None for a row that computes a prompt's
        state."""

    def abandon(self) -> None:
        """Give the batch up; its streams stay as they were."""


class FlowInterface(Protocol):
    """Turns speech tokens into mel, by chunks. State is a cache: a missing past is computed again with the same result.

    A stream (from `open`) has these attributes. `voice`: the key of its voice's prompt, None: the prompt has no state.
    `known`: the state that the next chunk continues, or None. `prompt_end`: number of prompt tokens that the state of
    the prompt covers. `meet`, if there is a voice: a method that notes that a stream will use the voice's prompt, and
    returns True if it is the first such stream.
    """

    @property
    def short(self) -> ShortBatches: ...

    def prepare(self, frames: int | None = None) -> None:
        """Record in advance the launches of batches of up to this many mel frames; None: of any size."""

    def open(self, conditioning: Conditioning, steps: FlowSteps) -> Any:
        """Open a stream for one sequence; the rows of a batch have the same steps."""

    def close(self, stream: Any) -> None:
        """Free the state of a sequence; may be called again."""

    def lacks_prompt(self, stream: Any) -> bool:
        """Return whether the state of the voice's prompt is missing and can be computed."""

    def start(self, rows: Sequence[FlowRow]) -> FlowJobInterface:
        """Begin a batch of rows with the same attention, and set their `frames`. If it raises, nothing was begun."""


class VocoderInterface(Protocol):
    """Turns mel into samples, by pieces. A stream (from `open`) has the method `frames_of`, see `VocoderStream`."""

    def prepare(self, frames: int | None = None) -> None:
        """Record in advance the launches of batches of up to this many mel frames; None: of any size."""

    def open(self, seed: int, speed: float, joins: CrossfadeMode) -> Any:
        """Open a stream for one sequence."""

    def close(self, stream: Any) -> None:
        """Free the state of a sequence; may be called again."""

    def run(self, rows: Sequence[VocoderRow]) -> list[Tensor]:
        """Return the samples of each row, [n] float32 on the device. If it raises, nothing is changed."""


@dataclass(frozen=True)
class Stages:
    """The stages of one engine: only a language model, only flow and vocoder, or all three."""

    lm: LMInterface | None = None
    flow: FlowInterface | None = None
    vocoder: VocoderInterface | None = None


Fail = Callable[[Sequence[SequenceState], Exception], None]
"""Ends the requests of these sequences with the error; other requests go on."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the device or the host had too little memory for a batch's tensors: a smaller batch may fit."""
    # On the CPU torch raises a plain RuntimeError from its allocator.
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def not_finite() -> StageFailed:
    """Return the error for a request with samples that are not finite, by an overflow or by bad weights or features."""
    return StageFailed(
        "engine: samples of this request are not finite; use --dtype float32, which does not overflow; if that does "
        "not help, the voice or the model's weights are at fault"
    )


def explained(error: Exception) -> VivavoceError:
    """Return the error with which a request ends if a stage raised `error`."""
    if isinstance(error, VivavoceError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory("memory: the device has too little for this request; use a shorter text or a larger device")
    return StageFailed(f"engine: a stage failed with {type(error).__name__}; the log has the details")
