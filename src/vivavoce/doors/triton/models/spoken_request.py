"""One request of the models that speak: its tensors, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vivavoce.doors.triton import wire
from vivavoce.engine.request import check_speed
from vivavoce.errors import InvalidAudio, InvalidRequest, InvalidText
from vivavoce.models.features.whisper_mel import SAMPLE_RATE as REFERENCE_RATE
from vivavoce.service.audio.checks import check_reference
from vivavoce.service.audio.types import Audio
from vivavoce.service.limits import check_seed

DEFAULT_SEED = 42
"""Of requests that bring none, so that the same request gives the same audio."""
_SPEED_DIGITS = 6
"""Of FP32, which makes 1.2000000477 of the 1.2 that was meant."""


@dataclass(frozen=True, eq=False)
class SpokenRequest:
    """What a client wants to hear.

    text: what is said; reference: a recording of the voice at 16 kHz with its transcript `reference_text`, or None;
    voice: the name of a known one, "" for the default; instruct: how to say it, "" for no instruction.
    """

    text: str
    reference: Audio | None
    reference_text: str
    voice: str
    instruct: str
    seed: int
    speed: float


def read_request(backend: Any, request: Any) -> SpokenRequest:
    """The tensors of a request; see the models' config.pbtxt.

    Raises:
        InvalidText: there is no text.
        InvalidAudio: the recording is too short, too long, silent, not finite, or shorter than its length says.
        InvalidRequest: a tensor holds more than one value, or what contradicts another one.
    """
    text = wire.text(backend, request, "target_text")
    if not (text and text.strip()):
        raise InvalidText("target_text: is empty; send some text")
    reference = _reference(backend, request)
    transcript = wire.text(backend, request, "reference_text") or ""
    voice = wire.text(backend, request, "voice") or ""
    if reference is None and transcript:
        raise InvalidRequest("reference_text: belongs to a recording; send reference_wav with it, or leave it out")
    if reference is not None and voice:
        raise InvalidRequest("voice: a name and reference_wav are given; leave one of them out")
    seed, speed = wire.number(backend, request, "seed"), wire.number(backend, request, "speed")
    wanted = SpokenRequest(
        text=text,
        reference=reference,
        reference_text=transcript,
        voice=voice,
        instruct=wire.text(backend, request, "instruct_text") or "",
        seed=DEFAULT_SEED if seed is None else int(seed),
        speed=1.0 if speed is None else round(float(speed), _SPEED_DIGITS),
    )
    check_seed(wanted.seed)
    check_speed(wanted.speed)
    return wanted


def _reference(backend: Any, request: Any) -> Audio | None:
    wave = wire.floats(backend, request, "reference_wav")
    length = wire.number(backend, request, "reference_wav_len")
    if wave is None:
        if length is not None:
            raise InvalidRequest("reference_wav_len: belongs to reference_wav; send both, or neither")
        return None
    if length is not None and not 0 < length <= len(wave):
        raise InvalidAudio(
            f"reference_wav_len: {int(length)} of a reference_wav of {len(wave)} samples; send the number of samples "
            "that are speech"
        )
    # A copy: the server's memory behind the tensor is gone when the request is.
    audio = Audio(np.array(wave if length is None else wave[: int(length)]), REFERENCE_RATE)
    check_reference(audio, field="reference_wav")
    return audio
