"""Every error vivavoce raises on purpose, with its stable code and its meaning at each door.

::

    VivavoceError
    ├── InvalidRequest            400  INVALID_ARGUMENT    exit 2   a field of the request is out of its limits
    │   ├── InvalidText           400  INVALID_ARGUMENT    exit 2   nothing to say, too long, letters the model lacks
    │   ├── InvalidAudio          400  INVALID_ARGUMENT    exit 2   not audio, too short, too long, silent, not finite
    │   └── TooLarge              413  RESOURCE_EXHAUSTED  exit 2   more bytes than a request may have
    ├── Unauthorized              401  UNAUTHENTICATED     exit 2   no API key, or one that nobody has
    ├── Forbidden                 403  PERMISSION_DENIED   exit 2   the key may not do this
    ├── RequestNotFound           404  NOT_FOUND           exit 2   no request of that id is remembered
    ├── VoiceNotFound             404  NOT_FOUND           exit 2   no store knows the voice
    ├── VoiceExists               409  ALREADY_EXISTS      exit 2   the name is taken
    ├── VoiceStoreError           500  INTERNAL            exit 2   a stored voice is damaged, or the disk refuses
    │   └── VoiceStoreAway        503  UNAVAILABLE         exit 2   the store of voices cannot be reached just now
    ├── CheckpointError           500  FAILED_PRECONDITION exit 2   the model folder cannot be used as it is
    │   └── UnsupportedModel      500  UNIMPLEMENTED       exit 2   a generation or feature this version lacks
    ├── ModelNotFound             404  NOT_FOUND           exit 2   neither a folder nor a known model's name
    ├── DownloadError             502  UNAVAILABLE         exit 2   the hub could not be reached, or sent wrong bytes
    ├── MissingDependency         500  FAILED_PRECONDITION exit 2   a package is needed and cannot be imported
    ├── Overloaded                429  RESOURCE_EXHAUSTED  exit 2   no room for the request now; it says when to retry
    ├── OutOfMemory               503  RESOURCE_EXHAUSTED  exit 2   the device's memory does not hold the request
    ├── StageFailed               500  INTERNAL            exit 1   a stage threw; this request alone is lost
    ├── EngineStopped             503  UNAVAILABLE         exit 1   the engine is shutting down, or broke
    ├── ListenerStalled           408  DEADLINE_EXCEEDED   exit 1   the listener has stopped reading its audio
    └── RequestCancelled          499  CANCELLED           exit 130 the caller, or a listener who left, ended it

A message is one line. It names the field, the value and the limit, and ends with the way out. Exit 1 marks what the
user has no part in; exit 130 is the shell's word for interrupted.
"""

from __future__ import annotations

from typing import ClassVar


class VivavoceError(Exception):
    """Base of all errors above; catching it catches every failure that vivavoce foresees.

    Most of them the user can mend, by another request or by waiting; what is not below it is a defect.
    """

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 2


class InvalidRequest(VivavoceError):
    """A field of the request is missing, malformed or out of its limits."""

    code = "invalid_request"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class InvalidText(InvalidRequest):
    """The text cannot be spoken: nothing in it to say, too long, or letters that the model lacks."""

    code = "invalid_text"


class InvalidAudio(InvalidRequest):
    """The reference or source audio cannot be used: no audio, too short, too long, silent, not finite."""

    code = "invalid_audio"


class TooLarge(InvalidRequest):
    """A request, or a file in it, has more bytes than are taken."""

    code = "too_large"
    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class Unauthorized(VivavoceError):
    """A server that wants an API key was given none, or one that it does not know."""

    code = "unauthorized"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class Forbidden(VivavoceError):
    """The API key is known, and may not do what was asked."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class RequestNotFound(VivavoceError):
    """No request of that id is remembered, or it is another caller's."""

    code = "request_not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class VoiceNotFound(VivavoceError):
    """The request names a voice that no store knows."""

    code = "voice_not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class VoiceExists(VivavoceError):
    """A voice of that name is stored already."""

    code = "voice_exists"
    http_status = 409
    grpc_status = "ALREADY_EXISTS"


class VoiceStoreError(VivavoceError):
    """A stored voice's file is damaged or foreign, or the file system refuses to read or write it."""

    code = "voice_store_error"


class VoiceStoreAway(VoiceStoreError):
    """A store of voices on another machine cannot be reached now; the same request may succeed later."""

    code = "voice_store_away"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class CheckpointError(VivavoceError):
    """A model folder is incomplete, corrupt or contradicts itself."""

    code = "checkpoint_error"
    grpc_status = "FAILED_PRECONDITION"


class UnsupportedModel(CheckpointError):
    """A model folder of a generation, or with a feature, that this version does not have."""

    code = "unsupported_model"
    grpc_status = "UNIMPLEMENTED"


class ModelNotFound(VivavoceError):
    """The model is neither a folder nor the name of a known model."""

    code = "model_not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class DownloadError(VivavoceError):
    """A hub could not be reached, does not have the file, or sent bytes whose checksum is wrong."""

    code = "download_error"
    http_status = 502
    grpc_status = "UNAVAILABLE"


class MissingDependency(VivavoceError):
    """A package that is needed cannot be imported; the message holds the pip line to type."""

    code = "missing_dependency"
    grpc_status = "FAILED_PRECONDITION"


class Overloaded(VivavoceError):
    """The engine has no room for the request now; the same request may succeed later.

    retry_after_s: seconds after which to try again, an estimate.
    """

    code = "overloaded"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"

    # The default lets a pickled error be rebuilt from its message; its attributes follow.
    def __init__(self, message: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OutOfMemory(VivavoceError):
    """The device's memory does not hold the request, not even alone in its batch."""

    code = "out_of_memory"
    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"


class StageFailed(VivavoceError):
    """A stage of the engine threw while it worked on this request; the engine goes on with the others."""

    code = "stage_failed"
    exit_code = 1


class EngineStopped(VivavoceError):
    """The engine takes no more requests: it is shutting down, or it broke and cannot go on."""

    code = "engine_stopped"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    exit_code = 1


class ListenerStalled(VivavoceError):
    """A listener has not read its audio for longer than the server waits, which keeps no more of it."""

    code = "listener_stalled"
    http_status = 408
    grpc_status = "DEADLINE_EXCEEDED"
    exit_code = 1


class RequestCancelled(VivavoceError):
    """The request was ended before its speech was complete, by its caller or because its listener left."""

    code = "cancelled"
    http_status = 499
    grpc_status = "CANCELLED"
    exit_code = 130
