"""How models that speak end a request: with an error in one sentence, or with the flag that says it was all."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.inner_calls import InnerError

log = logging.getLogger(__name__)


def refusal(backend: Any, error: Exception) -> Any:
    """A response of what went wrong here, or in another model that was asked."""
    if isinstance(error, InnerError):
        return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(str(error), error.code))
    return wire.refusal(backend, error)


def end(backend: Any, sender: Any, error: Exception | None = None) -> None:
    """Send a stream's end, after what ended it early if anything did.

    The server unloads a model once every request and sender is gone. An error holds the frames that it came through,
    and they hold those; whoever calls this keeps neither.
    """
    final = backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    try:
        if error is None:
            sender.send(flags=final)
        else:
            sender.send(refusal(backend, error), flags=final)
    except Exception:  # the server's own; nobody is left to be told
        log.exception("the end of a stream could not be sent")
    if error is not None:
        traceback.clear_frames(error.__traceback__)
