"""Speech tokens from the model `tensorrt_llm`, whichever backend runs it."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.inner_calls import InnerError, checked, make_request, output
from vivavoce.doors.triton.models.merged_prompt import merged_prompt, output_length, spoken_tokens
from vivavoce.engine.request import SynthesisRequest

MODEL = "tensorrt_llm"
TOP_P, TOP_K, TEMPERATURE, REPETITION_PENALTY = 0.95, 50, 0.8, 1.1
"""How the documented deployment samples."""
_KEPT = 64
"""Answers that stay after their end; see `InnerLanguageModel._ended`."""


class InnerLanguageModel:
    """Asks for speech tokens; safe to use from several threads.

    Args:
        backend: `triton_python_backend_utils`.
        vocabulary: of the merged model.
        decoupled: `tensorrt_llm` streams.
        bias: [rows of the head] float32, added to the logits of every step, for a backend whose head has none and
            whose text ids are not forbidden; None: the backend sees to both.
    """

    def __init__(
        self, backend: Any, vocabulary: MergedVocabulary, *, decoupled: bool, bias: NDArray[np.float32] | None
    ) -> None:
        self._backend, self._vocabulary, self._decoupled, self._bias = backend, vocabulary, decoupled, bias
        # When an answer has ended, the server lets go of it a little later, in a thread that does not hold Python's
        # lock (seen in 2.51): if nobody else held it, the arrays in it would be freed there, under everybody's feet.
        self._ended: deque[Any] = deque(maxlen=_KEPT)

    def tokens(self, segment: SynthesisRequest) -> Generator[tuple[int, ...], None, None]:
        """Speech tokens (0 … V − 1) of a segment as they come; not streaming: all at once.

        Closing the iterator early stops the inner request.

        Raises:
            InnerError: the language model refused or failed.
        """
        request_id = uuid.uuid4().hex  # a client's own ids need not be its alone
        request = make_request(
            self._backend, MODEL, ("output_ids", "sequence_length"), self._tensors(segment), request_id
        )
        if not self._decoupled:
            yield self._read(checked(request.exec()))[0]
            return
        responses = request.exec(decoupled=True)
        over = False
        try:
            for response in responses:
                tokens, end = self._read(checked(response))
                if tokens:
                    yield tokens
                if end is not None:
                    over = end == self._vocabulary.eos_ids[0]  # two more ids end speech, of which it does not know
                    break
            else:
                over = True
        except InnerError:
            over = True
            raise
        finally:
            if not over:
                self._stop(responses, request_id)
            self._drain(responses)  # a request ends when all its responses were taken

    def _read(self, response: Any) -> tuple[tuple[int, ...], int | None]:
        ids, lengths = (output(self._backend, response, name) for name in ("output_ids", "sequence_length"))
        if ids is None:
            return (), None  # a last response that only says that it is the last
        flat = ids.reshape(-1)  # of the one beam
        count = len(flat) if lengths is None else int(lengths.reshape(-1)[0])
        return spoken_tokens(self._vocabulary, flat[:count].tolist())

    def _stop(self, responses: Any, request_id: str) -> None:
        """End a request whose answer nobody wants."""
        if hasattr(responses, "cancel"):  # from release 25.04 on
            responses.cancel()
        else:
            tensors = {"input_lengths": _whole(0), "request_output_len": _whole(0), "stop": np.array([True])}
            stop = make_request(self._backend, MODEL, ("output_ids",), tensors, request_id)
            self._drain(stop.exec(decoupled=True))  # its answer is empty

    def _drain(self, responses: Any) -> None:
        for _ in responses:
            pass
        self._ended.append(responses)

    def _tensors(self, segment: SynthesisRequest) -> dict[str, NDArray[Any]]:
        ids, length = merged_prompt(self._vocabulary, segment), output_length(segment)
        end_id = self._vocabulary.eos_ids[0]
        tensors: dict[str, NDArray[Any]] = {
            "input_ids": np.array(ids, np.int32),
            "input_lengths": _whole(len(ids)),
            "request_output_len": _whole(length.most),
            "min_length": _whole(length.least),
            "end_id": _whole(end_id),
            "pad_id": _whole(end_id),
            "streaming": np.array([self._decoupled]),
            "exclude_input_in_output": np.array([True]),
            "runtime_top_p": np.array([TOP_P], np.float32),
            "runtime_top_k": _whole(TOP_K),
            "temperature": np.array([TEMPERATURE], np.float32),
            "repetition_penalty": np.array([REPETITION_PENALTY], np.float32),
            "random_seed": np.array([segment.seed], np.uint64),
        }
        return tensors if self._bias is None else {**tensors, "embedding_bias": self._bias}


def _whole(number: int) -> NDArray[np.int32]:
    return np.array([number], np.int32)
