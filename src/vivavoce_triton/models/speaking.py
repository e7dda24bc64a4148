"""Read the requests of the models `cosyvoice2` and `vivavoce`, and get the voices for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.frontend.audio.samples import Audio, check_reference
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.text.text_input import Normalization
from vivavoce.frontend.voices.registry import Extractor, VoiceRegistry
from vivavoce.frontend.voices.stores import open_voice_store
from vivavoce.frontend.voices.voice import Voice, built_in_voices
from vivavoce.models.features import SAMPLE_RATE as REFERENCE_RATE
from vivavoce_triton.models.backend import Inputs, Parameters

DEFAULT_SEED = 42
RELEASED_SPEAKER = "001"
"""Name of the speaker in the spk2info.pt that was released with the model."""
SPEED_DIGITS = 6
"""Speeds are rounded to this many digits: FP32 turns 1.2 into 1.2000000477, which can add a frame."""


@dataclass(frozen=True, eq=False)
class SpokenRequest:
    """A request for speech. reference: the recording at 16 kHz, or None; voice: name, or "" for the default voice."""

    text: str
    reference: Audio | None
    reference_text: str
    voice: str
    options: SpeakOptions


def read_request(inputs: Inputs, reading: Normalization) -> SpokenRequest:
    """Read a request. reading: default of this input. `InvalidText`, `InvalidAudio`, `InvalidRequest`: a bad tensor."""
    text = inputs.text("target_text")
    if not text.strip():
        raise InvalidText("target_text: is empty; send some text")
    reference, transcript, voice = _reference(inputs), inputs.text("reference_text"), inputs.text("voice")
    if reference is None and transcript:
        raise InvalidRequest("reference_text: belongs to a recording; send reference_wav with it, or leave it out")
    if reference is not None and voice:
        raise InvalidRequest("voice: a name and reference_wav are given; leave one of them out")
    seed, speed = inputs.number("seed"), inputs.number("speed")
    options = SpeakOptions(
        instruct=inputs.text("instruct_text") or None,
        seed=DEFAULT_SEED if seed is None else int(seed),
        speed=1.0 if speed is None else round(float(speed), SPEED_DIGITS),
        reading=cast(Normalization, inputs.text("reading") or reading),
        guard=False,  # as in the official deployment
    )
    return SpokenRequest(text, reference, transcript, voice, options)


def _reference(inputs: Inputs) -> Audio | None:
    wave, length = inputs.floats("reference_wav"), inputs.number("reference_wav_len")
    if wave is None:
        if length is not None:
            raise InvalidRequest("reference_wav_len: belongs to reference_wav; send both, or neither")
        return None
    return recording(wave, None if length is None else int(length))


def recording(samples: NDArray[np.float32], length: int | None = None) -> Audio:
    """Copy and check the first `length` samples of `reference_wav`. Raises `InvalidRequest` or `InvalidAudio`."""
    if length is not None and not 0 < length <= len(samples):
        raise InvalidRequest(
            f"reference_wav_len: {length} of the {len(samples)} samples in reference_wav; send a number in "
            f"1 … {len(samples)}, the number of those that are speech"
        )
    # Copy the samples, because the tensor's memory belongs to the request.
    audio = Audio(np.array(samples[:length]), REFERENCE_RATE)
    check_reference(audio, field="reference_wav")
    return audio


def chunk_policy(parameters: Parameters) -> ChunkPolicy | None:
    """Return the rule for chunk sizes, or None for whole responses. `InvalidRequest`: the chunk strategy is unknown."""
    policy = ChunkPolicy.parse(parameters["dynamic_chunk_strategy"] or "exponential")
    return policy if parameters.decoupled else None


class RequestVoices:
    """Finds built-in or stored voices, and caches recordings' voices. `VoiceNotFound`: the default voice is missing."""

    def __init__(self, parameters: Parameters, extractor: Extractor, fingerprint: str | Callable[[], str]) -> None:
        built_in, store = built_in_voices(parameters.model_folder), open_voice_store(parameters.path("voices_dir"))
        self._registry = VoiceRegistry(extractor, store, built_in, fingerprint)
        self._default = parameters["default_voice"] or (RELEASED_SPEAKER if RELEASED_SPEAKER in built_in else "")
        self._cached_only = parameters.switch("use_spk2info_cache")
        if self._default:
            self._registry.find(self._default)  # raises VoiceNotFound at the start, not in every request

    def of(self, wanted: SpokenRequest) -> Voice:
        if wanted.reference is not None:
            if self._cached_only:
                raise InvalidRequest(
                    "reference_wav: this server accepts stored voices only (use_spk2info_cache); leave the recording "
                    "out, or name a voice"
                )
            return self._registry.resolve(wanted.reference, wanted.reference_text)
        name = wanted.voice or self._default
        return self._registry.find(name) if name else self._registry.resolve(None)
