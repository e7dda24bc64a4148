"""A request's input tensors, independent of the way they travel."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce.clients.triton.model import ServedModel
from vivavoce.clients.triton.utterance import Manner, Utterance
from vivavoce.errors import InvalidRequest

Samples = NDArray[np.float32]

_NUMBERS = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}


@dataclass(frozen=True, eq=False)
class Tensor:
    """One input. values: numbers [n], or one text."""

    name: str
    datatype: Literal["FP32", "INT32", "INT64", "BYTES"]
    values: NDArray[Any] | str
    batched: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """[n], or [1, n] where the model batches."""
        size = 1 if isinstance(self.values, str) else len(self.values)
        return (1, size) if self.batched else (size,)

    def raw(self) -> bytes:
        """Little-endian numbers, or the text's length in 4 bytes and its UTF-8."""
        if isinstance(self.values, str):
            encoded = self.values.encode("utf-8")
            return struct.pack("<I", len(encoded)) + encoded
        return self.values.astype(_NUMBERS[self.datatype]).tobytes()

    def plain(self) -> list[Any]:
        """For JSON."""
        return [self.values] if isinstance(self.values, str) else list(self.values.tolist())


def request_tensors(
    utterance: Utterance, manner: Manner, model: ServedModel, reference: Samples | None
) -> Sequence[Tensor]:
    """The inputs of one request.

    Args:
        utterance: the text, and what the reference says.
        manner: the rest.
        model: who is asked.
        reference: [n] float32 in ±1, mono at 16 kHz; None: neither it nor its text is sent.

    Raises:
        InvalidRequest: the model has no such input.
    """
    batched = model.batched
    tensors = [Tensor("target_text", "BYTES", utterance.text, batched)]
    if reference is not None:
        tensors += [
            Tensor("reference_wav", "FP32", reference, batched),
            Tensor("reference_wav_len", "INT32", np.array([len(reference)], np.int32), batched),
            Tensor("reference_text", "BYTES", utterance.reference_text, batched),
        ]
    if manner.voice is not None:
        tensors.append(Tensor("voice", "BYTES", manner.voice, batched))
    if manner.instruct_text is not None:
        tensors.append(Tensor("instruct_text", "BYTES", manner.instruct_text, batched))
    if manner.seed is not None:
        tensors.append(Tensor("seed", "INT64", np.array([manner.seed], np.int64), batched))
    if manner.speed is not None:
        tensors.append(Tensor("speed", "FP32", np.array([manner.speed], np.float32), batched))
    for tensor in tensors:
        if tensor.name not in model.inputs:
            raise InvalidRequest(
                f"{tensor.name}: the model {model.name!r} takes {', '.join(sorted(model.inputs))}; leave it out, or "
                "ask a model that takes it"
            )
    return tensors
