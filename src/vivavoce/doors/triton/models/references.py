"""Batches of reference recordings: each read and checked, then worked on side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from vivavoce.doors.triton import wire
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.models.features.whisper_mel import SAMPLE_RATE
from vivavoce.service.audio.checks import check_reference
from vivavoce.service.audio.types import Audio

WAVE, LENGTH = "reference_wav", "reference_wav_len"


def read_reference(backend: Any, request: Any, *, padded: bool) -> Tensor:
    """The recording of a request: [n] float32 at 16 kHz in [−1, 1], a copy.

    padded: its true length is in `reference_wav_len`.

    Raises:
        InvalidRequest: no recording, a length that is not of it, or a number that is not finite.
        InvalidAudio: too short, too long, silent or out of scale.
    """
    samples = wire.floats(backend, request, WAVE)
    if samples is None:
        raise InvalidAudio(f"{WAVE}: is missing; send a recording of 16 kHz in [-1, 1]")
    if padded:
        samples = samples[: _length(backend, request, len(samples))]
    check_reference(Audio(samples, SAMPLE_RATE), field=WAVE)
    return torch.from_numpy(samples.copy())


class SideBySide:
    """Answers batches on threads, a recording on each: ONNX Runtime lets others run meanwhile.

    The encoders' ONNX files take one recording at a time (their batch dimension is 1), and so each gives what it gives
    alone.

    Args:
        read: request → recording; runs on the caller's thread.
        respond: recording → response.
    """

    def __init__(self, backend: Any, read: Callable[[Any], Tensor], respond: Callable[[Tensor], Any]) -> None:
        self._backend, self._read, self._respond = backend, read, respond
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="vivavoce-reference")

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """One response each, in order; whoever is refused harms no other."""
        return list(self._threads.map(self._finish, [self._begin(request) for request in requests]))

    def close(self) -> None:
        """Finish what runs; no batch may come after it."""
        self._threads.shutdown()

    def _begin(self, request: Any) -> Tensor | Exception:
        try:
            return self._read(request)
        except Exception as error:
            return error

    def _finish(self, recording: Tensor | Exception) -> Any:
        if isinstance(recording, Exception):
            return wire.refusal(self._backend, recording)
        try:
            return self._respond(recording)
        except Exception as error:
            return wire.refusal(self._backend, error)


def _length(backend: Any, request: Any, most: int) -> int:
    given = wire.whole_numbers(backend, request, LENGTH)
    if given is None or len(given) != 1:
        raise InvalidRequest(f"{LENGTH}: {len(given or ())} numbers; send one, the samples that {WAVE} holds")
    if not 1 <= given[0] <= most:
        raise InvalidRequest(f"{LENGTH}: {given[0]} of the {most} samples in {WAVE}; send a number in 1 … {most}")
    return given[0]
