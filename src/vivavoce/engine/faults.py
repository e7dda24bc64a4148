"""What went wrong in a stage, and whose request it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vivavoce.engine.ticket import Track
from vivavoce.errors import OutOfMemory, StageFailed, VivavoceError

Fail = Callable[[Sequence[Track], Exception], None]
"""Ends the requests of these tracks with the error; their neighbours go on."""


def is_out_of_memory(error: Exception) -> bool:
    """The device or the host had no memory for a batch's tensors: a smaller batch may fit."""
    # On the CPU torch raises a plain RuntimeError from its allocator.
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def not_finite() -> StageFailed:
    """What a request ends with whose samples are no numbers. No network makes such of numbers, but overflow does."""
    return StageFailed(
        "engine: samples of this request came out as no numbers; with --dtype float32 nothing overflows, and if it is "
        "the same there, the voice or the model's weights are at fault"
    )


def explained(error: Exception) -> VivavoceError:
    """The error that a request ends with when a stage raised this one."""
    if isinstance(error, VivavoceError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory("memory: the device has too little for this request; use a shorter text or a larger device")
    return StageFailed(f"engine: a stage failed with {type(error).__name__}; the log has the details")
