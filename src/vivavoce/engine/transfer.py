"""Small tensors from host to device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy that a CUDA device makes in its own time: from pinned memory, so that the host goes on."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def copy_into(target: Tensor, values: Tensor) -> None:
    """Overwrite a tensor that stays where it is; as `to_device`, the host goes on."""
    target.copy_(values.pin_memory() if target.device.type == "cuda" else values, non_blocking=True)
