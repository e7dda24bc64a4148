"""Opens an ONNX file of a checkpoint with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import CheckpointError

_ERRORS_ONLY = 3


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """One opened file. May be run by several threads at once."""

    path: Path
    session: Any

    def run(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Feed `inputs` by position, as names differ between releases; the first output, flattened."""
        names = [value.name for value in self.session.get_inputs()]
        outputs = self.session.run(None, dict(zip(names, inputs, strict=True)))
        return np.asarray(outputs[0]).reshape(-1)


def open_onnx(path: str | Path, *, num_inputs: int, providers: Sequence[str] | None = None) -> OnnxModel:
    """Open the ONNX file at `path`, which must take `num_inputs` inputs.

    One thread per run: sums are always taken in the same order, and voices are extracted side by side.

    Args:
        path: the file.
        num_inputs: how many inputs it is fed.
        providers: ONNX Runtime's execution providers, best first; the CPU if None.

    Raises:
        CheckpointError: missing, not an ONNX model, or one of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing in {path.parent}; download the checkpoint again")
    session = _open_session(path, list(providers or ["CPUExecutionProvider"]))
    found = len(session.get_inputs())
    if found != num_inputs:
        raise CheckpointError(
            f"{path.name} in {path.parent} takes {found} inputs, not {num_inputs}: it is another model; "
            "download it again"
        )
    return OnnxModel(path, session)


def _open_session(path: Path, providers: list[str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(str(path), sess_options=options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors share no other base
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path.name} in {path.parent} is not a usable ONNX model ({reason}); download it again"
        ) from error
