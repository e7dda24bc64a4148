"""Names the exported files in a model's folder, and checks files that contain code before they are loaded.

The name of a file that runs on one kind of device contains that device. TorchScript, compiled packages and TensorRT's
engines are programs: loading one runs it with all rights of this process, so only known files are loaded. `vivavoce
export` records the SHA-256 of each file that it writes in the user's own folder, beside the downloaded models; a model
folder cannot add to this record.
"""

from __future__ import annotations

from pathlib import Path

import torch

from vivavoce.checkpoint.folder import sha256_of
from vivavoce.checkpoint.known_models import models_home
from vivavoce.errors import CheckpointError

ESTIMATOR, ENCODER, VOCODER, LM = "flow.decoder.estimator", "flow.encoder", "hift.decode", "llm.decode"
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16}


def file_name(part: str, precision: str, kind: str, device: torch.device) -> str:
    """Return the file name of an exported network; part: such as `ESTIMATOR`; kind: onnx, jit or aoti."""
    if kind == "onnx":
        return f"{part}.{precision}.onnx"
    if part == ENCODER:  # the official name
        return f"{part}.{precision}.zip"
    return f"{part}.{precision}.{device.type}.{'zip' if kind == 'jit' else 'pt2'}"


def find_export(
    folder: Path, part: str, kind: str, device: torch.device, dtype: torch.dtype
) -> tuple[Path, torch.dtype] | None:
    """Return the file in the network's precision, or else in float32, and its dtype; None if both are missing."""
    for precision in ["fp16", "fp32"] if dtype == torch.float16 else ["fp32"]:
        if (path := folder / file_name(part, precision, kind, device)).is_file():
            return path, PRECISIONS[precision]
    return None


def remember_code(path: Path) -> None:
    record = _record(path)
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record.touch(mode=0o600)


def check_code(path: Path, trusted: bool) -> None:
    """Refuse, with CheckpointError, a file that was not made here, unless the user trusts the folder's code."""
    if not trusted and not _record(path).is_file():
        raise CheckpointError(
            f"{path.name} in {path.parent} holds code, which was not exported on this machine and would run with your "
            "rights; make your own with `vivavoce export`, or say --trust-model-code if you trust its maker"
        )


def _record(path: Path) -> Path:
    return models_home().parent / "exports" / sha256_of(path)
