"""The token engine: the language model's stage without those after it. Prompts in, speech tokens out.

For servers that have flow and vocoder elsewhere; who wants audio asks `Engine`, which draws the same tokens.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from vivavoce.engine.host_threads import release_idle_team
from vivavoce.engine.lm_stage import Chooser, LMStage
from vivavoce.engine.loop_thread import LoopThread, stopped
from vivavoce.engine.messages import Cancelled, Prepare
from vivavoce.engine.settings import (
    CPU_SLOTS,
    CUDA_SLOTS,
    FEWEST_SLOTS,
    MAX_POSITIONS,
    EngineSettings,
    cuda_room,
    slot_bytes,
    uses_kernels,
)
from vivavoce.engine.token_handle import TokenHandle, TokenOutbox
from vivavoce.engine.token_loop import Asked, Job, Room, TokenLoop
from vivavoce.engine.token_request import TokenRequest, run_for
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import LanguageModel, Models


@dataclass(frozen=True)
class TokenSettings:
    """What an operator may choose.

    slots: sequences that are decoded at once, None: as `memory_share` allows; memory_share: of what a CUDA device has
    free beside the weights, that slots may take; kernels: see `EngineSettings`; max_waiting: requests that may wait
    for a slot.
    """

    slots: int | None = None
    memory_share: float = 0.5
    kernels: bool | None = None
    max_waiting: int = 1_000

    def __post_init__(self) -> None:
        if self.slots is not None and not 1 <= self.slots <= 4_096:
            raise InvalidRequest(f"slots: {self.slots} is outside of 1 … 4096; choose a number inside")
        if not 0 < self.memory_share <= 1:
            raise InvalidRequest(f"memory_share: {self.memory_share} is outside of 0 … 1; choose a number inside")
        if self.max_waiting < 0:
            raise InvalidRequest(f"max_waiting: {self.max_waiting} is below 0; choose 0 or more")


class TokenEngine:
    """Draws speech tokens for any number of users at once; safe to use from any thread.

    In float32 the same request has the same tokens whoever else is there, and the tokens that `Engine` has for the
    same prompt, seed and lengths.

    Args:
        model: the language model on its device, alone or with the other networks.
        settings: slots and waiting.
        chooser: stands in for repetition-aware sampling.
    """

    def __init__(
        self,
        model: LanguageModel | Models,
        settings: TokenSettings = TokenSettings(),
        *,
        chooser: Chooser | None = None,
    ) -> None:
        self.model = model
        self.capacity = min(model.config.lm.max_positions, MAX_POSITIONS)
        """Positions of a slot: rows of a prompt, tokens after it, and one more."""
        self.slots = _plan_slots(model, settings, self.capacity)
        kernels = uses_kernels(model, EngineSettings(kernels=settings.kernels))
        try:
            stage = LMStage(model, slots=self.slots, capacity=self.capacity, chooser=chooser, kernels=kernels)
        except ValueError as error:
            raise InvalidRequest(f"kernels: {error}") from None
        if model.device.type == "cuda":
            # Weights and state were laid out on this thread's stream, which the loop's stream does not wait for.
            torch.cuda.synchronize(model.device)
        self._room = Room(self.slots + settings.max_waiting)
        self._loop = TokenLoop(stage, model.device, self._room)
        self._ids = itertools.count()
        self._runner = LoopThread(self, self._loop, "vivavoce-tokens")

    @property
    def healthy(self) -> bool:
        """It takes requests."""
        return self._runner.healthy

    def submit(self, request: TokenRequest) -> TokenHandle:
        """Take a request in; returns at once.

        Raises:
            InvalidRequest: it does not fit the model, or a slot.
            Overloaded: too many requests wait.
            EngineStopped: the engine was closed or has failed.
        """
        if not self.healthy:
            raise stopped()
        run = run_for(request, self.model.config.lm, self.capacity)
        self._room.enter()
        self._runner.start()
        job = Job(next(self._ids), request, run, TokenOutbox())
        if self.model.device.type != "cuda":
            release_idle_team()
        self._loop.post(Asked(job))
        # A handle may be kept for long: it knows the number, not the job and its prompt.
        number = job.number
        return TokenHandle(job.outbox, cancel=lambda: self._loop.post(Cancelled(number)))

    def warm_up(self, streams: int | None = None) -> None:
        """Record the stage's launches, and set aside what the process holds from garbage collection until the engine is
        closed (`engine/collector.py`).

        streams: record what so many at once need, and the rest when it is first met; None: all.

        Raises:
            InvalidRequest: streams is below 1.
        """
        if streams is not None and streams < 1:
            raise InvalidRequest(f"streams: {streams} is below 1; choose 1 or more, or leave it out")
        if not self.healthy:
            raise stopped()
        self._runner.start()
        prepared: Future[None] = Future()
        self._loop.post(Prepare(streams, prepared))
        prepared.result()
        self._runner.set_aside.begin()

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Stop: accepted requests are finished (`drain`, for `timeout_s` at most), or end with EngineStopped."""
        self._runner.close(drain=drain, timeout_s=timeout_s)

    def __enter__(self) -> TokenEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plan_slots(model: LanguageModel | Models, settings: TokenSettings, capacity: int) -> int:
    if settings.slots is not None:
        return settings.slots
    if model.device.type != "cuda":
        return CPU_SLOTS
    room = int(cuda_room(model.device) * settings.memory_share)
    return max(FEWEST_SLOTS, min(CUDA_SLOTS, room // slot_bytes(model, capacity)))
