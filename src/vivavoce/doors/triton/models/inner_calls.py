"""Requests to other models of the same server (business logic scripting)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class InnerError(Exception):
    """Another model of the server refused or failed; `code` is Triton's."""

    def __init__(self, message: str, code: Any) -> None:
        super().__init__(message)
        self.code = code


def make_request(
    backend: Any, model: str, outputs: Sequence[str], tensors: dict[str, NDArray[Any]], request_id: str = ""
) -> Any:
    """A request of one utterance to `model`; tensors come without their batch dimension."""
    inputs = [backend.Tensor(name, np.ascontiguousarray(value)[None]) for name, value in tensors.items()]
    return backend.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=inputs, request_id=request_id
    )


def checked(response: Any) -> Any:
    """The response, if it is one.

    Raises:
        InnerError: it is an error; the message is the inner one.
    """
    if response.has_error():
        error = response.error()
        raise InnerError(error.message(), error.code())
    return response


def output(backend: Any, response: Any, name: str) -> NDArray[Any] | None:
    """A copy of an output without its batch dimension; None: the response has none of the name."""
    tensor = backend.get_output_tensor_by_name(response, name)
    return None if tensor is None else np.array(tensor.as_numpy()[0])
