"""Names of exported files in a model's folder; a file for one kind of device has the device in its name."""

from __future__ import annotations

from pathlib import Path

import torch

ESTIMATOR, ENCODER, VOCODER, LM = "flow.decoder.estimator", "flow.encoder", "hift.decode", "llm.decode"
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16}


def file_name(part: str, precision: str, kind: str, device: torch.device) -> str:
    """kind: onnx, jit or aoti."""
    if kind == "onnx":
        return f"{part}.{precision}.onnx"
    if part == ENCODER:  # the official name
        return f"{part}.{precision}.zip"
    return f"{part}.{precision}.{device.type}.{'zip' if kind == 'jit' else 'pt2'}"


def find_export(
    folder: Path, part: str, kind: str, device: torch.device, dtype: torch.dtype
) -> tuple[Path, torch.dtype] | None:
    """The file in the network's precision, otherwise in float32, and its dtype; None: both are missing."""
    for precision in ["fp16", "fp32"] if dtype == torch.float16 else ["fp32"]:
        if (path := folder / file_name(part, precision, kind, device)).is_file():
            return path, PRECISIONS[precision]
    return None
