"""The checkpoint's speaker encoder (campplus.onnx, CAM++) in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.models.features.kaldi_fbank import speaker_fbank
from vivavoce.models.onnx_session import OnnxModel, open_onnx

EMBEDDING_SIZE = 192


class SpeakerEncoder:
    """Turns speech into the vector that stands for its speaker's voice."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    @classmethod
    def from_file(cls, path: str | Path, *, providers: Sequence[str] | None = None) -> SpeakerEncoder:
        """Open the ONNX file; `providers` as in `open_onnx`.

        Raises:
            CheckpointError: missing, corrupt or another model.
        """
        return cls(open_onnx(path, num_inputs=1, providers=providers))

    def __call__(self, samples: Tensor) -> Tensor:
        """Embedding [192], float32 on the CPU, not normalised, of `samples` [n], float32 at 16 kHz.

        Raises:
            InvalidAudio: shorter than one frame of 25 ms.
            CheckpointError: the model gives another size.
        """
        embedding = self._model.run(speaker_fbank(samples).numpy()[None]).astype(np.float32)
        if embedding.size != EMBEDDING_SIZE:
            raise CheckpointError(
                f"{self._model.path.name} in {self._model.path.parent} gives {embedding.size} numbers, "
                f"not {EMBEDDING_SIZE}: it is another model; download it again"
            )
        return torch.from_numpy(embedding)
