import inspect
import pickle

import pytest

from vivavoce import errors


def all_errors():
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    return [cls for cls in classes if issubclass(cls, errors.VivavoceError)]


WRITTEN = [
    ("VivavoceError", "error", 500, "INTERNAL", 2),
    ("InvalidRequest", "invalid_request", 400, "INVALID_ARGUMENT", 2),
    ("InvalidText", "invalid_text", 400, "INVALID_ARGUMENT", 2),
    ("InvalidAudio", "invalid_audio", 400, "INVALID_ARGUMENT", 2),
    ("TooLarge", "too_large", 413, "RESOURCE_EXHAUSTED", 2),
    ("Unauthorized", "unauthorized", 401, "UNAUTHENTICATED", 2),
    ("Forbidden", "forbidden", 403, "PERMISSION_DENIED", 2),
    ("RequestNotFound", "request_not_found", 404, "NOT_FOUND", 2),
    ("VoiceNotFound", "voice_not_found", 404, "NOT_FOUND", 2),
    ("AdapterNotFound", "adapter_not_found", 404, "NOT_FOUND", 2),
    ("VoiceExists", "voice_exists", 409, "ALREADY_EXISTS", 2),
    ("VoiceStoreError", "voice_store_error", 500, "INTERNAL", 2),
    ("VoiceStoreAway", "voice_store_away", 503, "UNAVAILABLE", 2),
    ("CheckpointError", "checkpoint_error", 500, "FAILED_PRECONDITION", 2),
    ("UnsupportedModel", "unsupported_model", 500, "UNIMPLEMENTED", 2),
    ("ModelNotFound", "model_not_found", 404, "NOT_FOUND", 2),
    ("DownloadError", "download_error", 502, "UNAVAILABLE", 2),
    ("MissingDependency", "missing_dependency", 500, "FAILED_PRECONDITION", 2),
    ("Overloaded", "overloaded", 429, "RESOURCE_EXHAUSTED", 2),
    ("OutOfMemory", "out_of_memory", 503, "RESOURCE_EXHAUSTED", 2),
    ("StageFailed", "stage_failed", 500, "INTERNAL", 1),
    ("EngineStopped", "engine_stopped", 503, "UNAVAILABLE", 1),
    ("ListenerStalled", "listener_stalled", 408, "DEADLINE_EXCEEDED", 1),
    ("DeadlineExceeded", "deadline_exceeded", 504, "DEADLINE_EXCEEDED", 1),
    ("RequestCancelled", "cancelled", 499, "CANCELLED", 130),
]
"""Name, code, HTTP status, gRPC status and exit code: programs go by them."""


def test_what_programs_go_by_stays():
    errors_now = [(cls.__name__, cls.code, cls.http_status, cls.grpc_status, cls.exit_code) for cls in all_errors()]
    assert sorted(errors_now) == sorted(WRITTEN)
    assert len({code for _, code, *_ in errors_now}) == len(errors_now)


@pytest.mark.parametrize("cls", all_errors())
def test_an_error_survives_its_way_between_processes(cls):
    again = pickle.loads(pickle.dumps(cls("one line")))
    assert type(again) is cls
    assert str(again) == "one line"


def test_overloaded_says_when_to_retry_also_in_another_process():
    error = errors.Overloaded("streams: too many", retry_after_s=4.5)
    assert pickle.loads(pickle.dumps(error)).retry_after_s == 4.5
    assert str(error) == "streams: too many"
