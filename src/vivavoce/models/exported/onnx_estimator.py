"""An estimator of ONNX, ours or an official one, in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivavoce.errors import CheckpointError, MissingDependency
from vivavoce.models.encoders import available_providers, open_onnx
from vivavoce.models.exported.estimator import ENDS, OFFICIAL_INPUTS, EstimatorInputs

_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxEstimator:
    """An `EstimatorRunner`. Tensors pass through the host.

    On a CPU each row is computed by itself: so it is the same to the bit beside any other. CheckpointError: the file is
    no estimator; MissingDependency: the package has no CUDA.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        on_cuda = ["CUDAExecutionProvider"] if device.type == "cuda" else []
        if not set(on_cuda) <= set(available_providers()):
            raise MissingDependency(
                "flow_backend: this onnxruntime knows no CUDA; pip install onnxruntime-gpu in its place, or use "
                "--device cpu"
            )
        providers, remedy = [*on_cuda, "CPUExecutionProvider"], "export it again"
        model = open_onnx(
            path,
            num_inputs=len(OFFICIAL_INPUTS),
            providers=providers,
            threads=torch.get_num_threads(),
            remedy=remedy,
        )
        inputs = model.session.get_inputs()
        names, kinds = tuple(one.name for one in inputs), {one.type for one in inputs}
        if names != OFFICIAL_INPUTS or not kinds <= set(_NUMPY):
            raise CheckpointError(
                f"{path.name} in {path.parent} takes {', '.join(names)} of {', '.join(sorted(kinds))}, an estimator "
                f"takes {', '.join(OFFICIAL_INPUTS)} of floats: it is another model; {remedy}"
            )
        self._model, self._dtypes = model, [_NUMPY[one.type] for one in inputs]
        self._takes_ends = ENDS in {one.name for one in model.session.get_overridable_initializers()}
        # Official files have a batch of two.
        self.most_rows = None if on_cuda and isinstance(inputs[0].shape[0], str) else 1

    def __call__(self, given: EstimatorInputs) -> Tensor:
        """See `EstimatorRunner`."""
        *official, ends = (tensor.cpu().numpy() for tensor in given)
        arrays = (np.ascontiguousarray(one, dtype) for one, dtype in zip(official, self._dtypes, strict=True))
        more = {ENDS: np.ascontiguousarray(ends)} if self._takes_ends else {}
        velocity = torch.from_numpy(self._model.run(*arrays, **more))
        return velocity.view(given.x.shape).to(given.x.device, given.x.dtype)
