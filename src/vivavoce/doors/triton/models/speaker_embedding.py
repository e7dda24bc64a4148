"""The model `speaker_embedding`: a reference recording → the vector that stands for its speaker's voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.folder import SPEAKER_ENCODER
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.place import (
    CPU_PROVIDER,
    given_parameters,
    model_device,
    model_folder,
    onnx_providers,
)
from vivavoce.doors.triton.models.references import SideBySide, read_reference
from vivavoce.models.features.kaldi_fbank import SAMPLE_RATE
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder
from vivavoce.service.audio.checks import MAX_REFERENCE_S, MIN_REFERENCE_S


class SpeakerEmbedding:
    """`reference_wav` [1, n] FP32 of 16 kHz, without padding → `prompt_spk_embedding` [1, 192] FP16, not normalised."""

    def __init__(self, backend: Any, encoder: SpeakerEncoder) -> None:
        self._backend, self._encoder = backend, encoder
        read = partial(read_reference, backend, padded=False)
        self._batches = SideBySide(backend, read, self._respond)

    @classmethod
    def load(cls, args: Mapping[str, Any], backend: Any) -> SpeakerEmbedding:
        """From what Triton's `initialize` is given; parameters: model_dir, device.

        Raises:
            VivavoceError: the folder or the device cannot be used.
        """
        parameters = given_parameters(args)
        folder = model_folder(parameters)
        providers = onnx_providers(model_device(parameters), tensorrt=True)
        encoder = SpeakerEncoder.from_file(folder / SPEAKER_ENCODER, providers=providers)
        if providers != [CPU_PROVIDER]:
            _meet_all_lengths(encoder)
        return cls(backend, encoder)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A response for each request, in order; a refused one harms no other."""
        return self._batches.answer(requests)

    def close(self) -> None:
        """Nothing may be asked after it."""
        self._batches.close()

    def _respond(self, recording: Tensor) -> Any:
        embedding = self._encoder(recording).numpy().astype(np.float16)
        return wire.answer(self._backend, prompt_spk_embedding=embedding[None])


def _meet_all_lengths(encoder: SpeakerEncoder) -> None:
    """TensorRT builds an engine for the lengths it has met, and anew for one beyond them, which takes long."""
    for seconds in (MIN_REFERENCE_S, MAX_REFERENCE_S):
        encoder(torch.zeros(int(seconds * SAMPLE_RATE)))
