"""Finds, on a CPU, what a CUDA graph could not capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vivavoce_training.loop import Optimizer

WAITING = {
    "aten::_local_scalar_dense",  # .item(), float(), branches on values
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::lift_fresh",  # torch.tensor(...): copied from the host
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}
"""These wait where an index is boolean."""


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        masked = name in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        if name in WAITING or masked:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def uncapturable(body: Callable[[int], object], variant: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operators of a step, forwards and backwards, that wait for the device or bring something to it.

    The optimizer's own are left out: on a GPU it computes otherwise than here.
    """

    def gradients_only(self: Optimizer, loss: torch.Tensor) -> None:
        torch.autograd.grad(loss, self.parameters, allow_unused=True)

    with monkeypatch.context() as patched, _Recorder() as recorder:
        patched.setattr(Optimizer, "update", gradients_only)
        body(variant)
    return recorder.found
