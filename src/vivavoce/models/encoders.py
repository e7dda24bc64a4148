"""Runs a checkpoint's speaker encoder (campplus.onnx) and speech tokenizer (speech_tokenizer_v*.onnx), with ONNX
Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.folder import refuse_pointer
from vivavoce.errors import CheckpointError, InvalidAudio
from vivavoce.models.features import SAMPLE_RATE, speaker_fbank, whisper_log_mel
from vivavoce.time_limit import time_limit

MAX_RUN_S = 60.0  # maximum run time in seconds for a recording, which has at most 30 s of speech
MAX_FIELDS = 10_000  # maximum number of top-level fields in an ONNX file; a published file has about ten
_ERRORS_ONLY = 3
_FUNCTIONS = 25


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An opened ONNX file. Several threads may run it at once."""

    path: Path
    session: Any
    remedy: str = "download it again"

    def run(self, *inputs: NDArray[Any], **more: NDArray[Any]) -> NDArray[Any]:
        """Run the model and return its first output, flattened. inputs: by position, because their names differ between
        published models; more: by name. Raises CheckpointError if the model fails or exceeds MAX_RUN_S."""
        import onnxruntime

        names, options = [value.name for value in self.session.get_inputs()], onnxruntime.RunOptions()
        try:
            with time_limit(MAX_RUN_S, lambda: setattr(options, "terminate", True)):
                outputs = self.session.run(None, dict(zip(names, inputs, strict=True)) | more, options)
        except Exception as error:  # ONNX Runtime's errors have no common base class
            why = f"takes more than {MAX_RUN_S:g} s" if options.terminate else f"fails ({_reason(error)})"
            raise CheckpointError(f"{self.path.name} in {self.path.parent} {why}; {self.remedy}") from error
        return np.asarray(outputs[0]).reshape(-1)


def open_onnx(
    path: str | Path,
    *,
    num_inputs: int,
    providers: Sequence[str] | None = None,
    threads: int = 1,
    remedy: str = OnnxModel.remedy,
) -> OnnxModel:
    """Open an ONNX file. providers: names of ONNX Runtime's providers, the preferred first; the default is the CPU.
    threads: with one thread, results are reproducible. remedy: advice in error messages. Raises CheckpointError if the
    file is missing, is not an ONNX model, or has not `num_inputs` inputs."""
    import onnxruntime

    path, options = Path(path), onnxruntime.SessionOptions()
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing in {path.parent}; {remedy}")
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Waiting threads must sleep: busy waiting takes processor time from other threads.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _ERRORS_ONLY
    check_onnx(path, remedy)
    try:
        session = onnxruntime.InferenceSession(str(path), options, list(providers or ["CPUExecutionProvider"]))
    except Exception as error:  # ONNX Runtime's errors have no common base class
        raise CheckpointError(
            f"{path.name} in {path.parent} is not a usable ONNX model ({_reason(error)}); {remedy}"
        ) from error
    found = len(session.get_inputs())
    if found != num_inputs:
        raise CheckpointError(
            f"{path.name} in {path.parent} takes {found} inputs, not {num_inputs}: it is another model; {remedy}"
        )
    return OnnxModel(path, session, remedy)


def check_onnx(path: Path, remedy: str = OnnxModel.remedy) -> None:
    """Raise CheckpointError if an ONNX file is damaged, has functions, or keeps tensors in other files."""
    refuse_pointer(path)
    try:
        _check_file(path)
    except Exception as error:  # also the errors of a truncated file
        raise CheckpointError(
            f"{path.name} in {path.parent} is not a usable ONNX model ({_reason(error)}); {remedy}"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_file(path: Path) -> None:
    """Raise ValueError if a model has functions, which can expand without limit, or keeps tensors in other files.

    Functions are fields of the outermost message (onnx/onnx.proto). A tensor in another file has an entry with the key
    "location". The byte before the key is 8, its length as a varint, or 0, the end of a varint with redundant bytes."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        at = num_fields = 0
        while at < len(data):
            key, at = _varint(data, at)
            field, wire_type = (key & 0xFFFF_FFFF) >> 3, key & 7
            num_fields += 1
            if field == _FUNCTIONS or num_fields > MAX_FIELDS or wire_type not in (0, 2):
                raise ValueError("it has functions of its own, or more than a model's fields")
            number, at = _varint(data, at)
            at += number if wire_type == 2 else 0
        if data.find(b"\x08location") >= 0 or data.find(b"\0location") >= 0:
            raise ValueError("it keeps tensors in other files, which are not read")


def _varint(data: mmap, at: int) -> tuple[int, int]:
    """Decode the varint (7 bits per byte) at index `at`; also return the index after it."""
    number = shift = 0
    while data[at] > 0x7F and shift < 63:
        number, at, shift = number | (data[at] & 0x7F) << shift, at + 1, shift + 7
    return number | data[at] << shift, at + 1


Encoder = TypeVar("Encoder", bound="OnnxEncoder")


class OnnxEncoder:
    num_inputs: ClassVar[int]

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    @classmethod
    def from_file(cls: type[Encoder], path: str | Path, *, providers: Sequence[str] | None = None) -> Encoder:
        return cls(open_onnx(path, num_inputs=cls.num_inputs, providers=providers))


EMBEDDING_SIZE = 192


class SpeakerEncoder(OnnxEncoder):
    num_inputs = 1

    def __call__(self, samples: Tensor) -> Tensor:
        """samples: [n] float32 at 16 kHz → embedding [192] float32 on the CPU, not normalised. Raises InvalidAudio if
        the samples are shorter than 25 ms."""
        embedding = self._model.run(speaker_fbank(samples).cpu().numpy()[None]).astype(np.float32)
        if embedding.size != EMBEDDING_SIZE:
            raise CheckpointError(
                f"{self._model.path.name} in {self._model.path.parent} gives {embedding.size} numbers, "
                f"not {EMBEDDING_SIZE}: it is another model; download it again"
            )
        return torch.from_numpy(embedding)


MAX_SECONDS = 30  # longest speech in the tokenizer's training; the official code has the same limit


class SpeechTokenizer(OnnxEncoder):
    num_inputs = 2

    def __call__(self, samples: Tensor) -> Tensor:
        """samples: [n] float32 at 16 kHz → speech tokens [num_tokens] int32 on the CPU. Raises InvalidAudio if the
        samples are longer than 30 s, or shorter than a frame."""
        if len(samples) > MAX_SECONDS * SAMPLE_RATE:
            raise InvalidAudio(
                f"audio: lasts {len(samples) / SAMPLE_RATE:.2f} s; the speech tokenizer takes "
                f"{MAX_SECONDS} s at most; cut it"
            )
        features = whisper_log_mel(samples).cpu().numpy()[None]
        num_frames = np.array([features.shape[2]], np.int32)
        return torch.from_numpy(self._model.run(features, num_frames).astype(np.int32))
