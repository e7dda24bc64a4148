"""What a call of CosyVoice's service asks for, as an order."""

from __future__ import annotations

from typing import Any

from vivavoce.doors.grpc.messages import parse_request
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.service.audio.wav import wav_header
from vivavoce.service.host.order import Recording, SpeechOrder

PROMPT_RATE = 16_000
"""Samples per second of `prompt_audio`, which comes without a header."""


def order_of(content: bytes, owner: str) -> SpeechOrder:
    """The order of one serialised `Request`; owner: whose voices are seen beside the public ones.

    Raises:
        InvalidRequest: it is malformed, or lacks something.
        InvalidAudio: its recording is empty or holds half a sample.
    """
    kind, payload = parse_request(content)
    text = _given(payload, "tts_text")
    if kind == "sft_request":
        return SpeechOrder(text, _given(payload, "spk_id"), owner=owner, mode="sft")
    if kind == "instruct_request":
        instruct = _given(payload, "instruct_text")
        return SpeechOrder(text, _given(payload, "spk_id"), owner=owner, mode="instruct", instruct=instruct)
    if kind == "zero_shot_request":
        recording = _recording(payload.prompt_audio, _given(payload, "prompt_text"))
        return SpeechOrder(text, recording, owner=owner, mode="zero_shot")
    return SpeechOrder(text, _recording(payload.prompt_audio, ""), owner=owner, mode="cross_lingual")


def _given(payload: Any, field: str) -> str:
    value: str = getattr(payload, field)
    if not value:
        raise InvalidRequest(f"{field}: is missing; a {payload.DESCRIPTOR.name} needs it")
    return value


def _recording(samples: bytes, transcript: str) -> Recording:
    if not samples:
        raise InvalidAudio(f"prompt_audio: is missing; send 16-bit mono samples at {PROMPT_RATE} Hz")
    if len(samples) % 2:
        raise InvalidAudio(
            f"prompt_audio: {len(samples)} bytes are no whole number of 16-bit samples; "
            f"send mono samples at {PROMPT_RATE} Hz, without a header"
        )
    return Recording(wav_header(PROMPT_RATE, len(samples) // 2) + samples, transcript)
