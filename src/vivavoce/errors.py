"""Every error vivavoce raises on purpose, with its stable code and its meaning at each door.

A message is one line. It names the field, the value and the limit, and ends with the way out. Exit 1 marks what the
user has no part in; exit 130 is the shell's word for interrupted.
"""

from __future__ import annotations

import re
from typing import ClassVar


class VivavoceError(Exception):
    """Base of all errors below; catching it catches every failure that vivavoce foresees.

    Most of them the user can mend, by another request or by waiting; what is not below it is a defect. A subclass says
    what differs from its base; its code is its name in lower case, with underscores, unless it says another.
    """

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 2
    retry_after_s: float | None = None
    """Seconds after which the same request may succeed, an estimate; None where waiting does not help."""

    def __init_subclass__(cls, **different: float | str) -> None:
        for name, value in {"code": re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower(), **different}.items():
            if name not in vars(cls):
                setattr(cls, name, value)


class InvalidRequest(VivavoceError, http_status=400, grpc_status="INVALID_ARGUMENT"):
    """A field of the request is missing, malformed or out of its limits."""


class InvalidText(InvalidRequest):
    """The text cannot be spoken: nothing in it to say, too long, or letters that the model lacks.

    nothing_to_say: there is no fault in it, and no word.
    """

    def __init__(self, message: str = "", *, nothing_to_say: bool = False) -> None:
        super().__init__(message)
        self.nothing_to_say = nothing_to_say


class InvalidAudio(InvalidRequest):
    """The reference or source audio cannot be used: no audio, too short, too long, silent, not finite."""


class TooLarge(InvalidRequest, http_status=413, grpc_status="RESOURCE_EXHAUSTED"):
    """A request, or a file in it, has more bytes than are taken."""


class Unauthorized(VivavoceError, http_status=401, grpc_status="UNAUTHENTICATED"):
    """A server that wants an API key was given none, or one that it does not know."""


class Forbidden(VivavoceError, http_status=403, grpc_status="PERMISSION_DENIED"):
    """The API key is known, and may not do what was asked."""


class RequestNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """No request of that id is remembered, or it is another caller's."""


class VoiceNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """The request names a voice that no store knows."""


class VoiceExists(VivavoceError, http_status=409, grpc_status="ALREADY_EXISTS"):
    """A voice of that name is stored already."""


class VoiceStoreError(VivavoceError):
    """A stored voice's file is damaged or foreign, or the file system refuses to read or write it."""


class VoiceStoreAway(VoiceStoreError, http_status=503, grpc_status="UNAVAILABLE", retry_after_s=5.0):
    """A store of voices on another machine cannot be reached now, or refuses; the same request may succeed later."""


class CheckpointError(VivavoceError, grpc_status="FAILED_PRECONDITION"):
    """A model folder is incomplete, corrupt or contradicts itself."""


class UnsupportedModel(CheckpointError, grpc_status="UNIMPLEMENTED"):
    """A model folder of a generation, or with a feature, that this version does not have."""


class ModelNotFound(VivavoceError, http_status=404, grpc_status="NOT_FOUND"):
    """The model is neither a folder nor the name of a known model."""


class DownloadError(VivavoceError, http_status=502, grpc_status="UNAVAILABLE"):
    """A hub could not be reached, does not have the file, or sent bytes whose checksum is wrong."""


class MissingDependency(VivavoceError, grpc_status="FAILED_PRECONDITION"):
    """A package that is needed cannot be imported; the message holds the pip line to type."""


class Overloaded(VivavoceError, http_status=429, grpc_status="RESOURCE_EXHAUSTED"):
    """The engine has no room for the request now; the same request may succeed later."""

    retry_after_s: float

    # The default lets a pickled error be rebuilt from its message; its attributes follow.
    def __init__(self, message: str = "", retry_after_s: float = 1.0, figures: str = "") -> None:
        """figures: why, in the words of the scheduler, for the log."""
        super().__init__(message)
        self.retry_after_s, self.figures = retry_after_s, figures


class OutOfMemory(VivavoceError, http_status=503, grpc_status="RESOURCE_EXHAUSTED"):
    """The device's memory does not hold the request, not even alone in its batch."""


class StageFailed(VivavoceError, exit_code=1):
    """A stage of the engine threw while it worked on this request; the engine goes on with the others."""


class EngineStopped(VivavoceError, http_status=503, grpc_status="UNAVAILABLE", exit_code=1, retry_after_s=5.0):
    """The engine takes no more requests: it is shutting down, or it broke and cannot go on."""


class ListenerStalled(VivavoceError, http_status=408, grpc_status="DEADLINE_EXCEEDED", exit_code=1):
    """A listener has not read its audio for longer than the server waits, which keeps no more of it."""


class DeadlineExceeded(VivavoceError, http_status=504, grpc_status="DEADLINE_EXCEEDED", exit_code=1):
    """The time that a request was given was over before its speech was whole; what was left of it is not made."""


class RequestCancelled(VivavoceError, code="cancelled", http_status=499, grpc_status="CANCELLED", exit_code=130):
    """The request was ended before its speech was complete, by its caller or because its listener left."""
