"""Tensors of Triton's Python backend in and out, checked and named.

`triton_python_backend_utils` exists inside the server only, so it is handed in as `backend`. Every request holds one
utterance: tensors have a batch dimension of 1 where the model batches (`[1, n]`), or none.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, VivavoceError

log = logging.getLogger(__name__)

_CODES = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "NOT_FOUND": "NOT_FOUND",
    "ALREADY_EXISTS": "ALREADY_EXISTS",
    "UNIMPLEMENTED": "UNSUPPORTED",
    "UNAVAILABLE": "UNAVAILABLE",
    "RESOURCE_EXHAUSTED": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
}
"""gRPC's statuses of our errors → Triton's, which has no word for exhausted resources; all else is INTERNAL."""


def floats(backend: Any, request: Any, name: str) -> NDArray[np.float32] | None:
    """One utterance's numbers [n], float32 from whatever float the model takes; None: not given.

    Raises:
        InvalidRequest: more than one utterance, or a number that is not finite.
    """
    values = _one(backend, request, name)
    if values is None:
        return None
    numbers = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    if not np.isfinite(numbers).all():
        raise InvalidRequest(f"{name}: holds a number that is not finite; send numbers only")
    return numbers


def whole_numbers(backend: Any, request: Any, name: str) -> tuple[int, ...] | None:
    """One utterance's whole numbers; None: not given.

    Raises:
        InvalidRequest: more than one utterance.
    """
    values = _one(backend, request, name)
    return None if values is None else tuple(np.asarray(values).reshape(-1).tolist())


def number(backend: Any, request: Any, name: str) -> float | None:
    """A single number, whole numbers and truth values as well; None: not given.

    Raises:
        InvalidRequest: more than one.
    """
    values = _one(backend, request, name)
    if values is None:
        return None
    if values.size != 1:
        raise InvalidRequest(f"{name}: {values.size} values; send one")
    found: float = np.asarray(values).reshape(-1)[0].item()
    return found


def text(backend: Any, request: Any, name: str) -> str | None:
    """A single string in UTF-8; None: not given.

    Raises:
        InvalidRequest: more than one, or no UTF-8.
    """
    values = _one(backend, request, name)
    if values is None:
        return None
    if values.size != 1:
        raise InvalidRequest(f"{name}: {values.size} strings; send one")
    raw = values.reshape(-1)[0]
    try:
        return raw.decode("utf-8") if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name}: not UTF-8 at byte {error.start}; send UTF-8") from error


def answer(backend: Any, **tensors: NDArray[Any]) -> Any:
    """A response of these outputs, each with its batch dimension where the model batches."""
    return backend.InferenceResponse(output_tensors=[backend.Tensor(name, value) for name, value in tensors.items()])


def refusal(backend: Any, error: Exception) -> Any:
    """A response that says in one sentence what went wrong; what nobody foresaw is logged with its traceback."""
    if isinstance(error, VivavoceError):
        message, code = str(error), _CODES.get(error.grpc_status, "INTERNAL")
    else:
        log.error("a request failed", exc_info=error)
        message, code = f"internal error: {type(error).__name__}: {error}", "INTERNAL"
    # Older servers lack some codes.
    number = getattr(backend.TritonError, code, backend.TritonError.INTERNAL)
    return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(message, number))


def parameters(config: dict[str, Any]) -> dict[str, str]:
    """Parameters of a model's config.pbtxt, as Triton's `initialize` is given them, by name."""
    return {name: str(value["string_value"]) for name, value in config.get("parameters", {}).items()}


def _one(backend: Any, request: Any, name: str) -> NDArray[Any] | None:
    tensor = backend.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    values: NDArray[Any] = tensor.as_numpy()
    if values.ndim > 1 and values.shape[0] != 1:
        raise InvalidRequest(f"{name}: a batch of {values.shape[0]} in one request; send one utterance a request")
    return values
