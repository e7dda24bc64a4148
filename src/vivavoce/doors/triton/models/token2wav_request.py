"""What a request of token2wav asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.flow_prompts import Prompt, PromptReader, speech_tokens
from vivavoce.engine.request import check_speed
from vivavoce.errors import InvalidRequest, RequestCancelled
from vivavoce.service.limits import check_seed

TOKENS, OFFSET, LAST = "target_speech_tokens", "token_offset", "finalize"
_SPEED_DIGITS = 6
"""Of FP32, which makes 1.2000000477 of the 1.2 that was meant: a frame less or more of long audio."""


@dataclass(frozen=True)
class Step:
    """A step of the stream of a request id.

    offset: tokens whose audio has been asked for by the steps before; final: no more will come.
    """

    id: str
    offset: int
    final: bool


@dataclass(frozen=True, eq=False)
class Asked:
    """A request that is well-formed by itself.

    tokens: speech tokens, for a step all of the sequence so far; prompt, seed, speed: None if not given; step: None: it
    is whole.
    """

    tokens: tuple[int, ...]
    prompt: Prompt | None
    seed: int | None
    speed: float | None
    step: Step | None

    @property
    def gives_up(self) -> bool:
        """It is the end of a stream of which nobody wants to hear any more."""
        return self.step is not None and self.step.final and not self.tokens


class RequestReader:
    """Reads requests for a model.

    Args:
        backend: `triton_python_backend_utils`.
        config: the model's.
        text_size: what is added to speech tokens on their way between models.
    """

    def __init__(self, backend: Any, config: ModelConfig, text_size: int) -> None:
        self._backend, self._config, self._text_size = backend, config, text_size
        self._prompts = PromptReader(config, text_size)

    def read(self, request: Any) -> Asked:
        """What is asked for.

        Raises:
            InvalidRequest: a tensor is missing or out of its limits.
            RequestCancelled: whoever asked has gone.
        """
        if request.is_cancelled():
            raise RequestCancelled("request: its client has left")
        ids = wire.whole_numbers(self._backend, request, TOKENS)
        if ids is None:
            raise InvalidRequest(f"{TOKENS}: is missing; send the tokens that are to be spoken")
        step = self._step(request)
        tokens = speech_tokens(TOKENS, ids, self._text_size, self._config.flow.num_tokens)
        if not tokens and not (step and step.final):
            raise InvalidRequest(f"{TOKENS}: is empty; send the tokens that are to be spoken")
        seed, speed = self._seed(request), self._speed(request)
        return Asked(tokens, self._prompts.read(self._backend, request), seed, speed, step)

    def _step(self, request: Any) -> Step | None:
        offset, last = (wire.number(self._backend, request, name) for name in (OFFSET, LAST))
        if offset is None and last is None:
            return None
        if offset is None or last is None:
            missing, other = (OFFSET, LAST) if offset is None else (LAST, OFFSET)
            raise InvalidRequest(f"{missing}: is missing beside {other}; a step needs both, a whole utterance neither")
        name = request.request_id()
        if not name:
            raise InvalidRequest("request id: is empty; give the steps of a stream an id that no other stream has")
        if offset < 0:
            raise InvalidRequest(f"{OFFSET}: {int(offset)} is below 0; it is the number of tokens already spoken")
        return Step(name, int(offset), bool(last))

    def _seed(self, request: Any) -> int | None:
        seed = wire.number(self._backend, request, "seed")
        if seed is None:
            return None
        check_seed(int(seed))
        return int(seed)

    def _speed(self, request: Any) -> float | None:
        speed = wire.number(self._backend, request, "speed")
        if speed is None:
            return None
        meant = round(float(speed), _SPEED_DIGITS)
        check_speed(meant)
        return meant
