"""What stands in for `tensorrt_llm` where a test wants to say which tokens come, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from fake_backend import PATIENCE_S, FakeBackend, InferenceRequest, InferenceResponse, Served, Tensor

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary


class ScriptedLanguageModel:
    """Says for each prompt the tokens that `script` gives for its text ids; knows `stop`, as the real one does.

    gates: by text ids, what must be set before the token after the first `free` ones comes.
    """

    def __init__(
        self, vocabulary: MergedVocabulary, script: Callable[[tuple[int, ...]], Sequence[int]], *, free: int = 40
    ) -> None:
        self.vocabulary, self.script, self.free = vocabulary, script, free
        self.gates: dict[tuple[int, ...], threading.Event] = {}
        self.asked: list[dict[str, np.ndarray]] = []
        self.given: list[int] = []
        """Tokens handed out, by the order of requests."""
        self.stopped: set[str] = set()

    def streaming(self, request: InferenceRequest) -> Iterator[InferenceResponse]:
        tensors = read(request)
        if "stop" in tensors:
            self.stopped.add(request.request_id())
            return iter(())
        return self._pieces(request, tensors)

    def whole(self, request: InferenceRequest) -> InferenceResponse:
        tensors = read(request)
        self.asked.append(tensors)
        return self._response([*self._speech(tensors), self.vocabulary.eos_ids[0]])

    def _pieces(self, request: InferenceRequest, tensors: dict[str, np.ndarray]) -> Iterator[InferenceResponse]:
        place = len(self.asked)
        self.asked.append(tensors)
        self.given.append(0)
        gate = self.gates.get(self._text(tensors))
        for number, token in enumerate(self._speech(tensors)):
            if gate is not None and number >= self.free:
                assert gate.wait(PATIENCE_S)
            if request.request_id() in self.stopped or request.is_cancelled():
                return
            self.given[place] += 1
            yield self._response([token])
        yield InferenceResponse([])

    def _speech(self, tensors: dict[str, np.ndarray]) -> list[int]:
        return [self.vocabulary.speech(token) for token in self.script(self._text(tensors))]

    def _text(self, tensors: dict[str, np.ndarray]) -> tuple[int, ...]:
        ids = tensors["input_ids"][0].tolist()
        return tuple(ids[1 : ids.index(self.vocabulary.task)])

    def _response(self, ids: Sequence[int]) -> InferenceResponse:
        # As the real one's: [batch, beam, tokens], with room after the tokens that count.
        padded = np.array([[[*ids, 0]]], np.int32)
        return InferenceResponse(
            [Tensor("output_ids", padded), Tensor("sequence_length", np.array([[len(ids)]], np.int32))]
        )


def read(request: InferenceRequest) -> dict[str, np.ndarray]:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def one_at_a_time(served: Served) -> Served:
    """The server calls an instance from one thread at a time."""
    lock = threading.Lock()

    def serve(request: InferenceRequest) -> Any:
        with lock:
            return served(request)

    return serve


def asked_of(backend: FakeBackend, model: str) -> list[InferenceRequest]:
    return [request for request in backend.asked if request.model_name() == model]
