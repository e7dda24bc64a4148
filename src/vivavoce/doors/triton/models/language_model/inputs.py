"""The tensors of a request to `tensorrt_llm` → what is asked for. The rules are in `input_rules.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.language_model.input_rules import INPUT_RULES, Effect, check_inputs
from vivavoce.doors.triton.models.language_model.prompt import read_prompt
from vivavoce.doors.triton.models.language_model.source import Flavour, Sampling
from vivavoce.errors import InvalidRequest

_INT32_MAX = 2**31 - 1
_TOKENS = (1, _INT32_MAX)
_SEED_BITS = 64


@dataclass(frozen=True, eq=False)
class Ask:
    """One request.

    prompt: merged ids; streaming: an answer for each piece; with_prompt: the answer begins with it; outputs: names of
    those that are wanted, empty: all.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    streaming: bool
    with_prompt: bool
    outputs: frozenset[str]


@dataclass(frozen=True)
class InputReader:
    """Reads requests.

    decoupled: there may be several answers; excludes_prompt: whether answers leave the prompt out where a request does
    not say.
    """

    backend: Any
    flavour: Flavour
    vocabulary: MergedVocabulary
    decoupled: bool
    excludes_prompt: bool

    def wants_stop(self, request: Any) -> bool:
        """Whether a request to a decoupled model only ends another one, of the same id.

        Raises:
            InvalidRequest: it does so and has no id.
        """
        wanted = self.decoupled and self._switch(request, "stop", False)
        if wanted and not request.request_id():
            raise InvalidRequest("stop: the request has no id; give it the id of the one that is to end")
        return wanted

    def read(self, request: Any) -> Ask:
        """All that another request asks for.

        Raises:
            InvalidRequest: an input is missing, out of its limits, or asks for what cannot be done.
        """
        check_inputs(self.backend, request, self.flavour)
        if self._switch(request, "stop", False):
            raise InvalidRequest("stop: this model is not decoupled and answers once; nothing can be ended before")
        streaming = self._switch(request, "streaming", False)
        if streaming and not self.decoupled:
            raise InvalidRequest("streaming: this model is not decoupled and answers once; send false or leave it out")
        prompt = self._prompt(request)
        read_prompt(self.vocabulary, prompt)
        # As in TensorRT-LLM's backend, a stream is of new tokens only.
        excluded = streaming or self._switch(request, "exclude_input_in_output", self.excludes_prompt)
        outputs = frozenset(request.requested_output_names())
        return Ask(prompt, self._sampling(request), streaming, with_prompt=not excluded, outputs=outputs)

    def _prompt(self, request: Any) -> tuple[int, ...]:
        ids = wire.whole_numbers(self.backend, request, "input_ids")
        if ids is None:
            raise InvalidRequest("input_ids: is missing; send the prompt")
        length = self._whole(request, "input_lengths", 1, len(ids))
        if length is None:
            raise InvalidRequest("input_lengths: is missing; send how many of input_ids count")
        return ids[:length]

    def _sampling(self, request: Any) -> Sampling:
        most = self._whole(request, "request_output_len", *_TOKENS)
        if most is None:
            raise InvalidRequest("request_output_len: is missing; send how many tokens there may be")
        least = self._whole(request, "min_length", 0, _INT32_MAX)
        seed = self._whole(request, "random_seed", 0, 2**_SEED_BITS - 1) or 0
        return Sampling(
            max_tokens=most,
            min_tokens=1 if least is None else least,
            may_end=self._may_end(request),
            # The same bits, read as a signed number.
            seed=seed - 2**_SEED_BITS if seed >> (_SEED_BITS - 1) else seed,
            top_p=self._number(request, "runtime_top_p", 0.001, 1.0),
            top_k=self._whole(request, "runtime_top_k", 0, 10_000),
            temperature=self._number(request, "temperature", 0.001, 100.0),
            repetition_penalty=self._number(request, "repetition_penalty", 0.001, 100.0),
            presence_penalty=self._number(request, "presence_penalty", -100.0, 100.0),
            frequency_penalty=self._number(request, "frequency_penalty", -100.0, 100.0),
            embedding_bias=self._bias(request),
        )

    def _may_end(self, request: Any) -> bool:
        """TensorRT-LLM takes −1 for none. All of the model's ids end speech, whichever of them is named."""
        end = self._whole(request, "end_id", -1, _INT32_MAX)
        ends = self.vocabulary.eos_ids
        if end is not None and end not in (-1, *ends):
            raise InvalidRequest(
                f"end_id: {end} ends no speech of this model; send {ends[0]}, or -1 for as many tokens as may be"
            )
        return end != -1

    def _bias(self, request: Any) -> NDArray[np.float32] | None:
        tensor = self.backend.get_input_tensor_by_name(request, "embedding_bias")
        if tensor is None:
            return None
        bias = np.array(tensor.as_numpy(), np.float32)
        if bias.ndim > 1 and bias.shape[0] != 1:
            raise InvalidRequest(f"embedding_bias: {bias.shape[0]} rows; send one for one sequence")
        # −∞ forbids an id.
        if np.isnan(bias).any() or (bias == np.inf).any():
            raise InvalidRequest("embedding_bias: holds no numbers, or +∞; send numbers, or −∞ for what may not be")
        return bias.reshape(-1)

    def _switch(self, request: Any, name: str, default: bool) -> bool:
        value = wire.number(self.backend, request, name)
        return default if value is None else bool(value)

    def _whole(self, request: Any, name: str, low: int, high: int) -> int | None:
        value = wire.number(self.backend, request, name)
        if value is None:
            return None
        if not low <= value <= high or value != int(value):
            raise InvalidRequest(f"{name}: {value} is outside of {low} … {high}; choose a whole number inside")
        return int(value)

    def _number(self, request: Any, name: str, low: float, high: float) -> float | None:
        """None: not given, or without effect with this runtime."""
        if INPUT_RULES[name].effect(self.flavour) is not Effect.HONOURED:
            return None
        value = wire.number(self.backend, request, name)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name}: {value:g} is outside of {low:g} … {high:g}; choose a number inside")
        return value
