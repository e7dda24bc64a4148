"""Estimators that torch itself runs: TorchScript, and packages of AOTInductor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.checkpoint.code_files import check_code
from vivavoce.errors import CheckpointError
from vivavoce.models.exported.estimator import EstimatorInputs


class TorchEstimator:
    """An `EstimatorRunner` of a function of `EstimatorInputs`; on a CPU each row is computed by itself.

    dtype: that the function takes.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> None:
        self._function, self._dtype = function, dtype
        self.most_rows = 1 if device.type == "cpu" else None

    def __call__(self, given: EstimatorInputs) -> Tensor:
        """See `EstimatorRunner`."""
        cast = EstimatorInputs(*(one.to(self._dtype) for one in given))._replace(
            t=given.t, attention_ends=given.attention_ends
        )
        # A package reads memory in the order that it was compiled for.
        return self._function(*(one.contiguous() for one in cast)).to(given.x.dtype)


def open_script(path: Path, device: torch.device, *, trusted: bool) -> Any:
    """A TorchScript file; CheckpointError: its code is not to be run, see `check_code`, or it is none."""
    return _opened(path, trusted, lambda: torch.jit.load(path, map_location=device).eval())


def open_package(path: Path, device: torch.device, *, trusted: bool) -> Any:
    """A package of AOTInductor, for the device that it was made for; errors as of `open_script`."""

    def load() -> Any:
        from torch._inductor import aoti_load_package

        return aoti_load_package(str(path))

    return _opened(path, trusted, load)


def _opened(path: Path, trusted: bool, load: Callable[[], Any]) -> Any:
    check_code(path, trusted)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript's: the official files have no other form
            return load()
    except Exception as error:  # torch's errors share no other base
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path.name} in {path.parent} cannot be loaded ({reason}); export it again") from error
