"""The checkpoint's speech tokenizer (speech_tokenizer_v*.onnx) in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivavoce.errors import InvalidAudio
from vivavoce.models.features.whisper_mel import SAMPLE_RATE, whisper_log_mel
from vivavoce.models.onnx_session import OnnxModel, open_onnx

MAX_SECONDS = 30
"""What the tokenizer was trained on; the official code accepts no more."""


class SpeechTokenizer:
    """Turns speech into the tokens that the language model continues and the flow renders."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    @classmethod
    def from_file(cls, path: str | Path, *, providers: Sequence[str] | None = None) -> SpeechTokenizer:
        """Open the ONNX file; `providers` as in `open_onnx`.

        Raises:
            CheckpointError: missing, corrupt or another model.
        """
        return cls(open_onnx(path, num_inputs=2, providers=providers))

    def __call__(self, samples: Tensor) -> Tensor:
        """Tokens [num_tokens], int32 on the CPU, of `samples` [n], float32 at 16 kHz.

        Raises:
            InvalidAudio: longer than 30 s, or shorter than one feature frame.
        """
        if len(samples) > MAX_SECONDS * SAMPLE_RATE:
            raise InvalidAudio(
                f"audio: lasts {len(samples) / SAMPLE_RATE:.2f} s; the speech tokenizer takes "
                f"{MAX_SECONDS} s at most; cut it"
            )
        features = whisper_log_mel(samples).cpu().numpy()[None]
        num_frames = np.array([features.shape[2]], np.int32)
        return torch.from_numpy(self._model.run(features, num_frames).astype(np.int32))
