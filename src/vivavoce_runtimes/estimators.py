"""Runs the flow's velocity estimator in ONNX Runtime, TorchScript or AOTInductor; `tensorrt.py` runs it in TensorRT.

Inputs and output have the names and shapes of CosyVoice's official exports.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vivavoce.errors import CheckpointError, MissingDependency
from vivavoce.models.encoders import open_onnx
from vivavoce.models.flow.unet import VelocityContext
from vivavoce.models.layers import Memory
from vivavoce_runtimes.files import check_code
from vivavoce_runtimes.onnx_writer import optional_input


class EstimatorInputs(NamedTuple):
    """Inputs of an estimator, named and ordered as in the official exports: all rows with their conditions, then all
    rows without them. x, mu, cond: [rows, bins, frames]. mask: [rows, 1, frames], 1 for frames and 0 for padding. spks:
    [rows, bins]. These five have one dtype. t: [rows] float32 (16 bits would distort its sinusoids). attention_ends:
    [rows, frames] int32, the number of a row's first frames that each frame sees; only our exports have this input.
    """

    x: Tensor
    mask: Tensor
    mu: Tensor
    t: Tensor
    spks: Tensor
    cond: Tensor
    attention_ends: Tensor


OFFICIAL_INPUTS, ENDS = EstimatorInputs._fields[:-1], EstimatorInputs._fields[-1]
OUTPUT = "estimator_out"
OPTIONAL_ENDS = optional_input(ENDS, np.full((1, 1), 1 << 30, np.int32))
"""Bytes at the end of our ONNX files that give `attention_ends` a default: every frame sees its whole row.
`tensorrt.py` removes them, because TensorRT would treat an input with a default as a constant."""


@dataclass(eq=False)
class EstimatorRunner:
    """Runs an exported estimator. run: takes contiguous tensors by name; the result may have any shape and dtype.
    dtypes: the file's inputs in order, with dtypes. most_rows: maximum rows before guidance doubles them, or None.
    """

    run: Callable[[dict[str, Tensor]], Tensor]
    dtypes: Mapping[str, torch.dtype]
    most_rows: int | None = None

    def __call__(self, inputs: EstimatorInputs) -> Tensor:
        """Return the velocity, [rows, bins, frames], with device and dtype of `x`; padding has arbitrary values."""
        tensors, x = inputs._asdict(), inputs.x
        cast = {name: tensors[name].to(dtype).contiguous() for name, dtype in self.dtypes.items()}
        return self.run(cast).view(x.shape).to(x.device, x.dtype)


class ExportedEstimator:
    """Replaces `UNet` or `DiT` for rows without cached state; out: the last layer of the replaced network."""

    def __init__(self, out: nn.Linear | nn.Conv1d, run: EstimatorRunner) -> None:
        self.out, self.run = out, run

    @property
    def most_rows(self) -> int | None:
        return self.run.most_rows

    def time_biases(self, t: Tensor) -> Tensor:
        """Reshape the times from [steps] to [1, steps, 1, 1]; the exported network computes their embeddings."""
        return t[None, :, None, None]

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        """Return the velocity of whole rows. In the additive mask, each frame sees the first keys of its row."""
        if context.memory is not None:
            raise ValueError("an exported estimator takes only rows without cached state")
        rows, frames = features.shape[:2]
        x, mu, speaker, condition = (part.transpose(1, 2) for part in features.chunk(4, dim=-1))
        if context.mask is None:
            ends = torch.full((rows, frames), frames, device=features.device, dtype=torch.int32)
        else:
            ends = (context.mask[:, 0] == 0).sum(dim=-1, dtype=torch.int32).expand(rows, frames)
        # The last frame sees the whole row, and padding has the last frame's mask.
        own = torch.arange(frames, device=features.device) < ends[:, -1:]
        t = context.biases.flatten().float().expand(rows)
        inputs = EstimatorInputs(x, own[:, None].to(x.dtype), mu, t, speaker[..., 0], condition, ends)
        return self.run(inputs).transpose(1, 2)


_DTYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}


def onnx_estimator(path: Path, device: torch.device) -> EstimatorRunner:
    """Open an ONNX file. On a CPU, each row is computed alone, so that other rows do not change its bits.
    CheckpointError: the file is not an estimator; MissingDependency: the installed onnxruntime has no CUDA.
    """
    import onnxruntime

    on_cuda = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    if not set(on_cuda) <= set(onnxruntime.get_available_providers()):
        raise MissingDependency(
            "flow_backend: this onnxruntime knows no CUDA; pip install onnxruntime-gpu in its place, or use "
            "--device cpu"
        )
    providers, remedy = [*on_cuda, "CPUExecutionProvider"], "export it again"
    threads = torch.get_num_threads()
    model = open_onnx(path, num_inputs=len(OFFICIAL_INPUTS), providers=providers, threads=threads, remedy=remedy)
    inputs = model.session.get_inputs()
    names, kinds = tuple(one.name for one in inputs), {one.type for one in inputs}
    if names != OFFICIAL_INPUTS or not kinds <= set(_DTYPES):
        raise CheckpointError(
            f"{path.name} in {path.parent} takes {', '.join(names)} of {', '.join(sorted(kinds))}, an estimator "
            f"takes {', '.join(OFFICIAL_INPUTS)} of floats: it is another model; {remedy}"
        )
    dtypes = {one.name: _DTYPES[one.type] for one in inputs}
    if ENDS in {one.name for one in model.session.get_overridable_initializers()}:
        dtypes[ENDS] = torch.int32

    def run(tensors: dict[str, Tensor]) -> Tensor:
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return torch.from_numpy(model.run(*(arrays.pop(name) for name in OFFICIAL_INPUTS), **arrays))

    # Official files have a fixed batch of two: one row with its conditions, and the same row without them.
    return EstimatorRunner(run, dtypes, None if on_cuda and isinstance(inputs[0].shape[0], str) else 1)


def torch_estimator(function: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> EstimatorRunner:
    """Return an estimator that calls what `open_script` or `open_package` opened, with `EstimatorInputs` in a dtype."""
    dtypes = dict.fromkeys(EstimatorInputs._fields, dtype) | {"t": torch.float32, ENDS: torch.int32}
    return EstimatorRunner(lambda given: function(*given.values()), dtypes, 1 if device.type == "cpu" else None)


def open_script(path: Path, device: torch.device, *, trusted: bool) -> Any:
    """Open a TorchScript file; CheckpointError: it cannot be loaded, or `check_code` refuses it."""
    return _opened(path, trusted, lambda: torch.jit.load(path, map_location=device).eval())


def open_package(path: Path, device: torch.device, *, trusted: bool) -> Any:

    def load() -> Any:
        from torch._inductor import aoti_load_package

        return aoti_load_package(str(path))

    return _opened(path, trusted, load)


def _opened(path: Path, trusted: bool, load: Callable[[], Any]) -> Any:
    check_code(path, trusted)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch deprecates TorchScript
            return load()
    except Exception as error:  # torch's errors have no common base class
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path.name} in {path.parent} cannot be loaded ({reason}); export it again") from error


class ScriptEncoder:
    """Runs CosyVoice2's flow encoder from a TorchScript file, which is our export or an official one.

    Replaces `TokenEncoder` for one row at a time, without cached state. dtype: the file's dtype. In an official file, a
    token sees the whole row, or the row up to its chunk's end. CheckpointError: the file cannot be loaded or run.
    """

    def __init__(self, path: Path, network: Any, dtype: torch.dtype, *, trusted: bool) -> None:
        self._network, self._dtype = network, dtype
        self._own_dtype, device = network.mu_projection.weight.dtype, network.mu_projection.weight.device
        self._script = open_script(path, device, trusted=trusted)
        self._exact = hasattr(self._script, "encode")
        tokens = torch.zeros(1, 4, network.config.input_size, device=device, dtype=self._own_dtype)
        try:
            self.encode(tokens, torch.tensor([4], device=device), 4, (None, None))
        except Exception as error:  # TorchScript's errors have no common base class
            raise CheckpointError(
                f"{path.name} in {path.parent} does not run here ({' '.join(str(error).split())[-200:]}); export it "
                "again, on this device"
            ) from error

    def encode(
        self,
        x: Tensor,
        lengths: Tensor,
        size: int,
        masks: tuple[Tensor | None, Tensor | None],
        keys: int | None = None,
        past: Tensor | None = None,
        memory: tuple[Memory, Memory] | None = None,
        lookahead_ends: Tensor | None = None,
    ) -> Tensor:
        if memory is not None or len(x) != 1:
            raise ValueError("an exported encoder takes one row at a time, without cached state")
        x, ahead, mask = x.to(self._dtype), self._network.config.lookahead, masks[0]
        if self._exact:
            x = pad(x, (0, 0, 0, size + ahead - x.shape[1]))
            ends = torch.full((1, size), size, device=x.device) if mask is None else mask[:, 0].sum(-1).expand(1, size)
            heard = lengths[:, None].expand(1, size) if lookahead_ends is None else lookahead_ends
            h = self._script.encode(x, lengths, ends.to(torch.int32), heard)
        else:
            # Official files take the whole lookahead or none.
            context = x[:, size : size + ahead]
            more = (context,) if context.shape[1] == ahead and int(lengths[0]) == size + ahead else ()
            chunked = mask is not None and mask.shape[2] > 1
            h, _ = self._script(x[:, :size], lengths.clamp(max=size), *more, streaming=chunked)
        return self._network.mu_projection(h.to(self._own_dtype))
