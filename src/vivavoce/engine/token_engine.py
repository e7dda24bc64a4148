"""The token engine: the language model's stage without those after it. Prompts in, speech tokens out.

For servers that have flow and vocoder elsewhere; who wants audio asks `Engine`, which draws the same tokens.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from vivavoce.engine.collector import LivingSetAside
from vivavoce.engine.host_threads import release_idle_team
from vivavoce.engine.lm_stage import Chooser, LMStage
from vivavoce.engine.messages import Cancelled, Prepare, Stop
from vivavoce.engine.settings import (
    CPU_SLOTS,
    CUDA_SLOTS,
    FEWEST_SLOTS,
    LEAST_ROOM,
    MAX_POSITIONS,
    EngineSettings,
    uses_kernels,
)
from vivavoce.engine.token_handle import TokenHandle, TokenOutbox
from vivavoce.engine.token_loop import Asked, Job, Room, TokenLoop, stopped
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
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._set_aside = LivingSetAside()
        # The thread holds the loop, not the engine: an engine that nobody uses any more stops by itself.
        self._finalizer = weakref.finalize(self, _leave, self._loop, self._set_aside)

    @property
    def healthy(self) -> bool:
        """It takes requests."""
        return not (self._stopped or self._loop.ended)

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
        self._start()
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
        self._start()
        prepared: Future[None] = Future()
        self._loop.post(Prepare(streams, prepared))
        prepared.result()
        self._set_aside.begin()

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Stop: accepted requests are finished (`drain`, for `timeout_s` at most), or end with EngineStopped."""
        self._stopped = True
        self._loop.post(Stop(drain))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._loop.post(Stop(drain=False))
                self._thread.join()
        self._set_aside.end()

    def __enter__(self) -> TokenEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop.run, name="vivavoce-tokens", daemon=True)
                self._thread.start()
                atexit.register(_stop_at_exit, weakref.ref(self._thread), weakref.ref(self._loop))


def _plan_slots(model: LanguageModel | Models, settings: TokenSettings, capacity: int) -> int:
    if settings.slots is not None:
        return settings.slots
    if model.device.type != "cuda":
        return CPU_SLOTS
    lm = model.config.lm
    slot_bytes = 2 * lm.num_layers * lm.num_kv_heads * lm.head_dim * capacity * model.dtype.itemsize
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(model.device)
    if free < LEAST_ROOM:
        raise InvalidRequest(
            f"memory: {free} bytes of {model.device} are free, the engine needs {LEAST_ROOM} or more; free some, or "
            "use another device"
        )
    return max(FEWEST_SLOTS, min(CUDA_SLOTS, int(free * settings.memory_share) // slot_bytes))


def _leave(loop: TokenLoop, set_aside: LivingSetAside) -> None:
    """What becomes of an engine that nobody uses any more, and nobody closed."""
    loop.post(Stop(drain=False))
    set_aside.end()


def _stop_at_exit(thread: weakref.ref[threading.Thread], loop: weakref.ref[TokenLoop]) -> None:
    """A thread that still computes while the interpreter goes away would crash it, whether its engine lives or not."""
    running, its_loop = thread(), loop()
    if running is not None and its_loop is not None:
        its_loop.post(Stop(drain=False))
        running.join()
