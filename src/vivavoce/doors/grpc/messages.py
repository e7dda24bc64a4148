"""CosyVoice's messages, field by field as in cosyvoice.proto beside this file."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from vivavoce.doors.grpc.wire import Field, file_descriptor, message_classes
from vivavoce.errors import InvalidRequest

PACKAGE = "cosyvoice"
SERVICE = f"{PACKAGE}.CosyVoice"
METHOD = "Inference"
PAYLOAD = "RequestPayload"

FILE = file_descriptor(
    "cosyvoice.proto",
    PACKAGE,
    {
        "Request": (
            Field("sft_request", 1, "sftRequest", PAYLOAD),
            Field("zero_shot_request", 2, "zeroshotRequest", PAYLOAD),
            Field("cross_lingual_request", 3, "crosslingualRequest", PAYLOAD),
            Field("instruct_request", 4, "instructRequest", PAYLOAD),
        ),
        "sftRequest": (Field("spk_id", 1, "string"), Field("tts_text", 2, "string")),
        "zeroshotRequest": (
            Field("tts_text", 1, "string"),
            Field("prompt_text", 2, "string"),
            Field("prompt_audio", 3, "bytes"),
        ),
        "crosslingualRequest": (Field("tts_text", 1, "string"), Field("prompt_audio", 2, "bytes")),
        "instructRequest": (
            Field("tts_text", 1, "string"),
            Field("spk_id", 2, "string"),
            Field("instruct_text", 3, "string"),
        ),
        "Response": (Field("tts_audio", 1, "bytes"),),
    },
)

_CLASSES = message_classes(FILE)


def parse_request(content: bytes) -> tuple[str, Any]:
    """The name of the payload that a `Request` holds, and the payload.

    Raises:
        InvalidRequest: it is no `Request`, or holds none.
    """
    request: Any = _CLASSES["Request"]()
    try:
        request.ParseFromString(content)
    except DecodeError:
        raise InvalidRequest(
            f"request: its {len(content)} bytes are no cosyvoice.Request; make it with code from cosyvoice.proto"
        ) from None
    kind = request.WhichOneof(PAYLOAD)
    if kind is None:
        raise InvalidRequest(
            "request: holds nothing to do; set one of sft_request, zero_shot_request, cross_lingual_request, "
            "instruct_request"
        )
    return kind, getattr(request, kind)


def response(tts_audio: bytes) -> bytes:
    """A `Response`, serialised."""
    message: Any = _CLASSES["Response"]()
    message.tts_audio = tts_audio
    return message.SerializeToString()
