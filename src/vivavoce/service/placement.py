"""Where a model runs and in which precision: an operator's words → torch's."""

from __future__ import annotations

import os

import torch

from vivavoce.errors import InvalidRequest

_MOST_TEXT_PROCESSES, _MOST_ASKED_PROCESSES = 4, 64
"""Unasked, they read more texts than one GPU speaks."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto": a CUDA device if there is one, else the CPU.

    Raises:
        InvalidRequest: no such device is known, or it is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidRequest(f"device: {name!r} is unknown; use auto, cpu, cuda, cuda:N or mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise InvalidRequest(f"device: {name!r} is not there (`vivavoce doctor` lists what is); use auto or cpu")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name; "auto": float16 on CUDA, else float32.

    Raises:
        InvalidRequest: the name is unknown.
    """
    if name == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise InvalidRequest(f"dtype: {name!r} is unknown; use auto or one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def count_text_processes(asked: int | None, device: torch.device) -> int:
    """Processes that read texts out; None: up to four on CUDA, none elsewhere.

    Raises:
        InvalidRequest: fewer than none, or far too many.
    """
    if asked is None:
        return min(_MOST_TEXT_PROCESSES, (os.cpu_count() or 1) // 4) if device.type == "cuda" else 0
    if not 0 <= asked <= _MOST_ASKED_PROCESSES:
        raise InvalidRequest(f"text_processes: {asked} is outside of 0 … {_MOST_ASKED_PROCESSES}; choose a few")
    return asked
