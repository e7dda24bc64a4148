"""The model `audio_tokenizer`: a reference recording → its speech tokens, as the merged language model numbers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from vivavoce.checkpoint.folder import BACKBONE, SPEECH_TOKENIZER
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.place import given_parameters, model_device, model_folder, onnx_providers
from vivavoce.doors.triton.models.references import SideBySide, read_reference
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer
from vivavoce.service.text.tokenizer import TextTokenizer


class AudioTokenizer:
    """`reference_wav` [1, n] FP32 of 16 kHz, of which `reference_wav_len` samples count → `prompt_speech_tokens`
    [1, tokens] INT32, 25 a second: the tokenizer's ids, each with `text_size` added.
    """

    def __init__(self, backend: Any, tokenizer: SpeechTokenizer, text_size: int) -> None:
        self._backend, self._tokenizer, self._text_size = backend, tokenizer, text_size
        read = partial(read_reference, backend, padded=True)
        self._batches = SideBySide(backend, read, self._respond)

    @classmethod
    def load(cls, args: Mapping[str, Any], backend: Any) -> AudioTokenizer:
        """From what Triton's `initialize` is given; parameters: model_dir, device.

        Raises:
            VivavoceError: the folder or the device cannot be used.
        """
        parameters = given_parameters(args)
        folder, device = model_folder(parameters), model_device(parameters)
        tokenizer = SpeechTokenizer.from_file(folder / SPEECH_TOKENIZER, providers=onnx_providers(device))
        return cls(backend, tokenizer, len(TextTokenizer.from_folder(folder / BACKBONE)))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A response for each request, in order; a refused one harms no other."""
        return self._batches.answer(requests)

    def close(self) -> None:
        """Nothing may be asked after it."""
        self._batches.close()

    def _respond(self, recording: Tensor) -> Any:
        tokens = self._tokenizer(recording).numpy() + np.int32(self._text_size)
        return wire.answer(self._backend, prompt_speech_tokens=tokens.astype(np.int32)[None])
