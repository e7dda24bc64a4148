"""The models `audio_tokenizer` and `speaker_embedding`: a reference recording → speech tokens, or a speaker vector."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.folder import BACKBONE, SPEAKER_ENCODER, detect_generation, speech_tokenizer_of
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S, MIN_REFERENCE_S
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.encoders import SpeakerEncoder, SpeechTokenizer
from vivavoce.models.features import SAMPLE_RATE
from vivavoce_triton.models.backend import Inputs, Parameters, answered
from vivavoce_triton.models.speaking import recording

CPU_PROVIDER = "CPUExecutionProvider"


class _ReferenceModel:
    """Encodes each recording on its own thread: the encoders have batch size 1, and ONNX Runtime releases the GIL.

    name: the output tensor's name; padded: whether the tensor `reference_wav_len` gives the recording's true length.
    """

    def __init__(self, backend: Any, name: str, encode: Callable[[Tensor], NDArray[Any]], *, padded: bool) -> None:
        self._backend, self._name, self._encode, self._padded = backend, name, encode, padded
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="vivavoce-reference")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return list(self._threads.map(self._respond, requests))

    def close(self) -> None:
        self._threads.shutdown()

    def _respond(self, request: Any) -> Any:
        inputs = Inputs(self._backend, request)
        return answered(self._backend, self._name, lambda: self._encode(_read_reference(inputs, padded=self._padded)))


class AudioTokenizer(_ReferenceModel):
    """`reference_wav` [1, n] FP32 at 16 kHz, whose first `reference_wav_len` samples count → `prompt_speech_tokens` [1,
    tokens] INT32, 25 per second: the tokenizer's ids plus the size of the text vocabulary.
    """

    @classmethod
    def load(cls, given: Parameters, backend: Any, *, merged: bool = True) -> AudioTokenizer:
        """Load the model; if not merged, ids are the tokenizer's. `VivavoceError`: folder or device cannot be used."""
        folder, providers = given.model_folder, onnx_providers(given.device)
        path = folder / speech_tokenizer_of(detect_generation(folder))
        tokenizer = SpeechTokenizer.from_file(path, providers=providers)
        text_size = np.int32(len(TextTokenizer.from_folder(folder / BACKBONE)) if merged else 0)

        def encode(recording: Tensor) -> NDArray[Any]:
            return (tokenizer(recording).numpy() + text_size).astype(np.int32)

        return cls(backend, "prompt_speech_tokens", encode, padded=True)


class PlainAudioTokenizer:
    """`audio_tokenizer` of CosyVoice3's layout. It is like `AudioTokenizer`, but outputs the tokenizer's own ids."""

    @staticmethod
    def load(given: Parameters, backend: Any) -> AudioTokenizer:
        return AudioTokenizer.load(given, backend, merged=False)


class SpeakerEmbedding(_ReferenceModel):
    """`reference_wav` [1, n] FP32 at 16 kHz, without padding → `prompt_spk_embedding` [1, 192] FP16, not normalised."""

    @classmethod
    def load(cls, given: Parameters, backend: Any) -> SpeakerEmbedding:
        """Load the model. `VivavoceError`: the folder or the device cannot be used."""
        folder, providers = given.model_folder, onnx_providers(given.device, tensorrt=True)
        encoder = SpeakerEncoder.from_file(folder / SPEAKER_ENCODER, providers=providers)
        if providers != [CPU_PROVIDER]:
            # TensorRT slowly rebuilds its engine for a length outside the range so far, so encode both limits now.
            for seconds in (MIN_REFERENCE_S, MAX_REFERENCE_S):
                encoder(torch.zeros(int(seconds * SAMPLE_RATE)))

        def encode(recording: Tensor) -> NDArray[Any]:
            return encoder(recording).numpy().astype(np.float16)

        return cls(backend, "prompt_spk_embedding", encode, padded=False)


def _read_reference(inputs: Inputs, *, padded: bool) -> Tensor:
    """Return a copy of the recording, [n] float32 in [−1, 1] at 16 kHz."""
    samples, length = inputs.floats("reference_wav"), None
    if samples is None:
        raise InvalidAudio("reference_wav: is missing; send a recording of 16 kHz in [-1, 1]")
    if padded:
        given = inputs.ids("reference_wav_len") or ()
        if len(given) != 1:
            raise InvalidRequest(
                f"reference_wav_len: {len(given)} numbers; send one, the number of samples in reference_wav"
            )
        (length,) = given
    return torch.from_numpy(recording(samples, length).samples)


def onnx_providers(device: torch.device, *, tensorrt: bool = False) -> list[str]:
    """Return ONNX Runtime's installed execution providers, best first. tensorrt: put TensorRT first if installed.

    They can use only the first GPU. A model for another GPU therefore runs on the CPU.
    """
    if device.type != "cuda" or device.index:
        return [CPU_PROVIDER]
    import onnxruntime

    wanted = ["CUDAExecutionProvider"]
    if tensorrt and find_spec("tensorrt") is not None:
        wanted.insert(0, "TensorrtExecutionProvider")
    present = onnxruntime.get_available_providers()
    return [*(name for name in wanted if name in present), CPU_PROVIDER]
