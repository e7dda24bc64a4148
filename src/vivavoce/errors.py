"""Every error that vivavoce raises on purpose, with its stable code and its HTTP, gRPC and exit status.

A message is one line. It names the field, the value and the limit, and ends with a remedy. The exit code is 2 if the
user can mend the error, 1 if not, and 130 after an interruption, as in shells.
"""

from __future__ import annotations

import re
import types
from typing import ClassVar, get_args


class VivavoceError(Exception):
    """Base of all errors below; catching it catches every failure that vivavoce foresees.

    The user can mend most of them, by another request or by waiting; any other exception is a defect. A subclass sets
    only the attributes that differ from its base; the default of `code` is its name in lower case, with underscores.
    """

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 2
    retry_after_s: float | None = None
    """Estimated seconds after which the same request may succeed; None where waiting does not help."""

    def __init_subclass__(cls, **different: float | str) -> None:
        for name, value in {"code": re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower(), **different}.items():
            if name not in vars(cls):
                setattr(cls, name, value)


class InvalidRequest(VivavoceError, http_status=400, grpc_status="INVALID_ARGUMENT"):
    """A field of the request is missing, malformed or out of its limits."""


def check_kind(field: str, value: object, kind: type | types.UnionType, remedy: str) -> None:
    """Raise InvalidRequest if the value is not of the type `kind`. remedy: the end of the error's message."""
    if not isinstance(value, kind):
        kinds = " or ".join(one.__name__ for one in get_args(kind) or (kind,) if one is not types.NoneType)
        raise InvalidRequest(f"{field}: {value!r:.40} is of type {type(value).__name__}, not {kinds}; {remedy}")


class InvalidText(InvalidRequest):
    """The text cannot be spoken: it is empty, too long, or has letters that the model lacks.

    nothing_to_say: the text is valid, but has no word.
    """

    def __init__(self, message: str = "", *, nothing_to_say: bool = False) -> None:
        super().__init__(message)
        self.nothing_to_say = nothing_to_say


class InvalidAudio(InvalidRequest):
    """The reference or source audio cannot be used: no audio, too short, too long, silent, not finite."""


class TooLarge(InvalidRequest, http_status=413, grpc_status="RESOURCE_EXHAUSTED"):
    """A request, or a file in it, is above a limit in bytes."""


class Unauthorized(VivavoceError, http_status=401, grpc_status="UNAUTHENTICATED"):
    """The server wants an API key, and the request has none, or an unknown one."""


class Forbidden(VivavoceError, http_status=403, grpc_status="PERMISSION_DENIED"):
    """The API key is valid, but does not permit the request."""


class RequestNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """The request id is unknown, or belongs to another caller."""


class VoiceNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """The request names a voice that no store knows."""


class AdapterNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """The request, or its voice, names a LoRA adapter that is not loaded."""


class VoiceExists(VivavoceError, http_status=409, grpc_status="ALREADY_EXISTS"):
    """A voice of that name is stored already."""


class VoiceStoreError(VivavoceError):
    """A stored voice's file is damaged or has another format, or the file system refuses to read or write it."""


class VoiceStoreAway(VoiceStoreError, http_status=503, grpc_status="UNAVAILABLE", retry_after_s=5.0):
    """A remote voice store cannot be reached, or refuses the operation; the same request may succeed later."""


class CheckpointError(VivavoceError, grpc_status="FAILED_PRECONDITION"):
    """A model folder is incomplete, corrupt or contradicts itself."""


class UnsupportedModel(CheckpointError, grpc_status="UNIMPLEMENTED"):
    """This version does not support the generation of the model, or a feature of it."""


class ModelNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """The model is neither a folder nor the name of a known model."""


class DownloadError(VivavoceError, http_status=502, grpc_status="UNAVAILABLE"):
    """A hub cannot be reached, lacks the file, or sent bytes with a wrong checksum."""


class MissingDependency(VivavoceError, grpc_status="FAILED_PRECONDITION"):
    """A required package cannot be imported; the message has the pip command."""


class Overloaded(VivavoceError, http_status=429, grpc_status="RESOURCE_EXHAUSTED"):
    """The engine has no room for the request now; the same request may succeed later."""

    retry_after_s: float

    # Unpickling passes only the message and sets the attributes afterwards, so the other parameters have defaults.
    def __init__(self, message: str = "", retry_after_s: float = 1.0, figures: str = "") -> None:
        """figures: the scheduler's reason, for the log."""
        super().__init__(message)
        self.retry_after_s, self.figures = retry_after_s, figures


class OutOfMemory(VivavoceError, http_status=503, grpc_status="RESOURCE_EXHAUSTED"):
    """The device's memory cannot hold the request, not even alone in a batch."""


class StageFailed(VivavoceError, exit_code=1):
    """A stage of the engine raised an exception on this request; the engine continues with the others."""


class EngineStopped(VivavoceError, http_status=503, grpc_status="UNAVAILABLE", exit_code=1, retry_after_s=5.0):
    """The engine accepts no more requests: it is shutting down, or it has failed."""


class ListenerStalled(VivavoceError, http_status=408, grpc_status="DEADLINE_EXCEEDED", exit_code=1):
    """The client has not read its audio for longer than the server waits, and the server buffers no more of it."""


class DeadlineExceeded(VivavoceError, http_status=504, grpc_status="DEADLINE_EXCEEDED", exit_code=1):
    """The request's time limit passed before its speech was complete; the rest of it is not made."""


class RequestCancelled(VivavoceError, code="cancelled", http_status=499, grpc_status="CANCELLED", exit_code=130):
    """The request was ended before its speech was complete, by its caller or by a disconnect."""
