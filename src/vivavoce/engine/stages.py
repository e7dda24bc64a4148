"""The interfaces of the stages, and the errors that their failures become.

Another generation of models, or another runtime (vLLM, TensorRT), takes part by implementing these three interfaces:
loop, scheduler and entry points know nothing else of a stage. One thread uses them, under `torch.inference_mode()`, and
on CUDA each of the two queues (`device.DeviceQueue`) on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.flow_stage import FlowRow
from vivavoce.engine.lm_stage import DecodeRun, Sampled
from vivavoce.engine.request import Conditioning, SamplingParams
from vivavoce.engine.request_state import SequenceState
from vivavoce.engine.vocoder_stage import VocoderRow
from vivavoce.errors import OutOfMemory, StageFailed, VivavoceError


class LMInterface(Protocol):
    """A language model over slots. Launches (`prefill`, `decode`) do not wait; `collect` gives their ids."""

    slots: int
    capacity: int
    """Number of positions in each slot."""
    self_paced: bool
    """After `prefill` the runtime decodes by itself to the run's end. Then `decode` does nothing, `collect` reports the
    time for the ids (`Sampled.seconds`), and `wait` may return before there are new ids."""

    @property
    def healthy(self) -> bool:
        """False if the runtime is known to have failed. Any thread may ask."""

    @property
    def free_slots(self) -> int:
        """Slots that can be opened."""

    @property
    def decoding(self) -> int:
        """Number of slots with a run in progress, according to the ids that were collected."""

    @property
    def in_flight(self) -> int:
        """Number of launches whose ids were not collected yet."""

    @property
    def steps_in_flight(self) -> int:
        """Number of decode steps whose ids were not collected yet."""

    def prepare(self, slots: int | None = None) -> None:
        """Do ahead what the first work of this many slots would wait for; None: of all."""

    def check(self, run: DecodeRun, slot: int | None = None) -> None:
        """Refuse with InvalidRequest a run that needs more positions than the slot has left; None: than any has."""

    def open(self, params: SamplingParams, seed: int) -> int:
        """Take a free slot; its number."""

    def prefill(self, runs: Mapping[int, DecodeRun]) -> None:
        """Begin a run in each of these slots: read its rows, in one forward, and sample its first id."""

    def decode(self, steps: int = 1) -> None:
        """Sample `steps` more ids, or all up to its end, for every slot whose run is in progress."""

    def collect(self, wait: bool) -> list[Sampled]:
        """Ids of finished launches, oldest first; wait: block for the oldest one if none is finished.

        EngineStopped: nothing will ever come again; other errors: whose launch it was is not known.
        """

    def wait(self) -> None:
        """Block until the oldest launch whose ids were not collected is finished."""

    def close(self, slot: int) -> None:
        """Free a slot at once; ids that are still on their way to it are dropped."""

    def shutdown(self) -> None:
        """End what it has beside memory: processes, threads. Nothing is asked of it afterwards."""


class FlowJobInterface(Protocol):
    """One running batch of the flow."""

    @property
    def steps_left(self) -> int:
        """Calls of `step` until it is done."""

    def step(self) -> None:
        """One of its steps; does not wait for the device."""

    def result(self) -> Sequence[Tensor | None]:
        """Mels [frames, bins] of a done job's rows, in order; None where only a prompt's state was asked for."""

    def abandon(self) -> None:
        """Free what it holds; nothing of it stands."""


class FlowInterface(Protocol):
    """Speech tokens → mel, by chunks. State is a cache: a past that is not found is computed again, to the same result.

    A place (`open`) has `voice`, a key of the voice's prompt or None where it has no state of its own, and `known`, the
    state that the next chunk goes on from or None.
    """

    def prepare(self, frames: int | None = None) -> None:
        """Do ahead what the first batches of up to this many mel frames would wait for; None: of any size."""

    def open(self, conditioning: Conditioning) -> Any:
        """Open a stream for one sequence."""

    def close(self, stream: Any) -> None:
        """Free what a sequence holds; may be called again."""

    def lacks_prompt(self, stream: Any) -> bool:
        """Whether to compute the state of the sequence's voice before its next chunk."""

    def start(self, rows: Sequence[FlowRow]) -> FlowJobInterface:
        """Begin one batch, all of one attention; sets the rows' frames. If it raises, nothing was begun."""


class VocoderInterface(Protocol):
    """Mel → samples, by pieces. A place (`open`) has `frames_of`, see `VocoderStream`."""

    def prepare(self, frames: int | None = None) -> None:
        """Do ahead what the first batches of up to this many mel frames would wait for; None: of any size."""

    def open(self, seed: int, speed: float, joins: CrossfadeMode) -> Any:
        """Open a stream for one sequence."""

    def close(self, stream: Any) -> None:
        """Free what a sequence holds; may be called again."""

    def run(self, rows: Sequence[VocoderRow]) -> list[Tensor]:
        """Samples [n] float32 of each row, on the device. If it raises, nothing is changed."""


@dataclass(frozen=True)
class Stages:
    """The stages of one engine: a language model, flow and vocoder, or all three."""

    lm: LMInterface | None
    flow: FlowInterface | None
    vocoder: VocoderInterface | None


Fail = Callable[[Sequence[SequenceState], Exception], None]
"""Ends the requests of these sequences with the error; their neighbours go on."""


def is_out_of_memory(error: Exception) -> bool:
    """The device or the host had no memory for a batch's tensors: a smaller batch may fit."""
    # On the CPU torch raises a plain RuntimeError from its allocator.
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def not_finite() -> StageFailed:
    """The error of a request whose samples are not finite. No network makes such of finite ones, but overflow does."""
    return StageFailed(
        "engine: samples of this request came out as no numbers; with --dtype float32 nothing overflows, and if it is "
        "the same there, the voice or the model's weights are at fault"
    )


def explained(error: Exception) -> VivavoceError:
    """The error that a request ends with when a stage raised this one."""
    if isinstance(error, VivavoceError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory("memory: the device has too little for this request; use a shorter text or a larger device")
    return StageFailed(f"engine: a stage failed with {type(error).__name__}; the log has the details")
