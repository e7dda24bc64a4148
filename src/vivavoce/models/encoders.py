"""A checkpoint's speaker encoder (campplus.onnx) and speech tokenizer (speech_tokenizer_v*.onnx), in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidAudio
from vivavoce.models.features import SAMPLE_RATE, speaker_fbank, whisper_log_mel

_ERRORS_ONLY = 3


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """One opened file. May be run by several threads at once."""

    path: Path
    session: Any

    def run(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Feed `inputs` by position, as names differ between releases; the first output, flattened."""
        names = [value.name for value in self.session.get_inputs()]
        outputs = self.session.run(None, dict(zip(names, inputs, strict=True)))
        return np.asarray(outputs[0]).reshape(-1)


def open_onnx(path: str | Path, *, num_inputs: int, providers: Sequence[str] | None = None) -> OnnxModel:
    """Open the ONNX file at `path`, which must take `num_inputs` inputs, in one thread per run.

    So sums are always taken in the same order, and voices are extracted side by side. providers: ONNX Runtime's, best
    first; the CPU if None. CheckpointError: missing, not an ONNX model, or one of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing in {path.parent}; download the checkpoint again")
    session = _open_session(path, list(providers or ["CPUExecutionProvider"]))
    found = len(session.get_inputs())
    if found != num_inputs:
        raise CheckpointError(
            f"{path.name} in {path.parent} takes {found} inputs, not {num_inputs}: it is another model; "
            "download it again"
        )
    return OnnxModel(path, session)


def _open_session(path: Path, providers: list[str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(str(path), sess_options=options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors share no other base
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path.name} in {path.parent} is not a usable ONNX model ({reason}); download it again"
        ) from error


Encoder = TypeVar("Encoder", bound="OnnxEncoder")


class OnnxEncoder:
    """What a model of the checkpoint makes of speech."""

    num_inputs: ClassVar[int]

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    @classmethod
    def from_file(cls: type[Encoder], path: str | Path, *, providers: Sequence[str] | None = None) -> Encoder:
        """Open the ONNX file; arguments and errors as in `open_onnx`."""
        return cls(open_onnx(path, num_inputs=cls.num_inputs, providers=providers))


EMBEDDING_SIZE = 192


class SpeakerEncoder(OnnxEncoder):
    """Turns speech into the vector that stands for its speaker's voice."""

    num_inputs = 1

    def __call__(self, samples: Tensor) -> Tensor:
        """Embedding [192], float32 on the CPU, not normalised, of `samples` [n], float32 at 16 kHz.

        InvalidAudio: shorter than one frame of 25 ms; CheckpointError: the model gives another size.
        """
        embedding = self._model.run(speaker_fbank(samples).numpy()[None]).astype(np.float32)
        if embedding.size != EMBEDDING_SIZE:
            raise CheckpointError(
                f"{self._model.path.name} in {self._model.path.parent} gives {embedding.size} numbers, "
                f"not {EMBEDDING_SIZE}: it is another model; download it again"
            )
        return torch.from_numpy(embedding)


MAX_SECONDS = 30
"""What the tokenizer was trained on; the official code accepts no more."""


class SpeechTokenizer(OnnxEncoder):
    """Turns speech into the tokens that the language model continues and the flow renders."""

    num_inputs = 2

    def __call__(self, samples: Tensor) -> Tensor:
        """Tokens [num_tokens], int32 on the CPU, of `samples` [n], float32 at 16 kHz.

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
