"""A client of the model `tensorrt_llm`: requests typed as its contract says, and the ids of their answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fake_backend import FakeBackend, InferenceRequest, InferenceResponse, TritonError, output, refused

from tests.engine.engine_helpers import voice
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.models.tensorrt_llm import TensorrtLLM

BACKEND = FakeBackend()
VOICE = voice()
CONTRACT = json.loads((Path(__file__).parents[1] / "data" / "triton" / "models.json").read_text("utf-8"))
TYPES: dict[str, str] = {one["name"]: one["type"] for one in CONTRACT["tensorrt_llm"]["inputs"]}
DTYPES = {"INT32": np.int32, "INT64": np.int64, "UINT64": np.uint64, "UINT8": np.uint8, "BOOL": np.bool_}
DTYPES |= {"FP32": np.float32, "FP16": np.float16, "STRING": np.object_}
DEPLOYMENT = {
    "request_output_len": 12,
    "streaming": True,
    "random_seed": 42,
    "runtime_top_p": 0.95,
    "runtime_top_k": 50,
    "temperature": 0.8,
    "repetition_penalty": 1.1,
}
"""What the published deployment sends, but for the length."""


def tensor(name: str, *values: Any) -> np.ndarray:
    """[1, n]."""
    return np.array([values], DTYPES.get(TYPES[name], np.float32))


def ids_of(response: InferenceResponse) -> list[int]:
    ids = output(response, "output_ids")
    assert (ids.dtype, ids.shape[:2]) == (np.int32, (1, 1))
    assert output(response, "sequence_length").tolist() == [[ids.shape[2]]]
    assert output(response, "batch_index").tolist() == output(response, "sequence_index").tolist() == [[0]]
    found: list[int] = ids[0, 0].tolist()
    return found


class Client:
    """Asks one model for the speech of a short prompt; an input that is None is left out."""

    def __init__(self, model: TensorrtLLM, vocabulary: MergedVocabulary, **always: Any) -> None:
        self.model, self.vocabulary, self._always = model, vocabulary, {**DEPLOYMENT, **always}

    def prompt(self, size: int = 3) -> list[int]:
        """Of so many text ids."""
        vocabulary = self.vocabulary
        speech = [vocabulary.speech(one) for one in VOICE.lm_prompt_tokens]
        return [vocabulary.sos, *VOICE.lm_prompt_text, *range(65, 65 + size), vocabulary.task, *speech]

    def request(self, ids: Sequence[int] | None = None, request_id: str = "", **given: Any) -> InferenceRequest:
        ids = self.prompt() if ids is None else ids
        tensors = {
            name: value if isinstance(value, np.ndarray) else tensor(name, value)
            for name, value in {"input_lengths": len(ids), **self._always, **given}.items()
            if value is not None
        }
        return BACKEND.request(request_id, input_ids=tensor("input_ids", *ids), **tensors)

    def begin(self, *arguments: Any, **given: Any) -> InferenceRequest:
        """A request that the decoupled model works on."""
        request = self.request(*arguments, **given)
        assert self.model.execute([request]) is None
        return request

    def answers(self, *arguments: Any, **given: Any) -> list[InferenceResponse]:
        request = self.request(*arguments, **given)
        return self.model.execute([request]) or list(request.answers())

    def pieces(self, *arguments: Any, **given: Any) -> list[list[int]]:
        return [ids_of(answer) for answer in self.answers(*arguments, **given)]

    def heard(self, *arguments: Any, **given: Any) -> list[int]:
        return [one for piece in self.pieces(*arguments, **given) for one in piece]

    def refusal(self, *arguments: Any, code: int = TritonError.INVALID_ARG, **given: Any) -> str:
        (answer,) = self.answers(*arguments, **given)
        return refused(answer, code)

    def stop(self, request_id: str) -> InferenceRequest:
        """The message that ends a request, as callers inside the server send it."""
        given = {"input_lengths": 0, "request_output_len": 0, "stop": True}
        return BACKEND.request(request_id, **{name: tensor(name, value) for name, value in given.items()})

    def close(self) -> None:
        self.model.close()
