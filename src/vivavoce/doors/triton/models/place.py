"""Where a model's files lie and where it computes, as the operator's parameters say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vivavoce.doors.triton import wire
from vivavoce.errors import ModelNotFound
from vivavoce.service.placement import choose_device

CPU_PROVIDER = "CPUExecutionProvider"


def given_parameters(args: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of config.pbtxt, from what Triton's `initialize` is given."""
    return wire.parameters(json.loads(args["model_config"]))


def model_folder(parameters: Mapping[str, str]) -> Path:
    """The folder that `model_dir` names, in the official layout.

    Raises:
        ModelNotFound: there is none.
    """
    given = parameters.get("model_dir", "")
    folder = Path(given).expanduser()
    if not given or not folder.is_dir():
        raise ModelNotFound(f"model_dir: {given!r} is no folder; fill the template with the folder of the model")
    return folder


def model_device(parameters: Mapping[str, str]) -> torch.device:
    """The device that `device` names; without it the best one that is there.

    Raises:
        InvalidRequest: it is unknown, or not there.
    """
    return choose_device(parameters.get("device") or "auto")


def onnx_providers(device: torch.device, *, tensorrt: bool = False) -> list[str]:
    """ONNX Runtime's execution providers for a device, best first; what is not installed is left out.

    They are opened by name, which means the first GPU: models on any other one have their ONNX files on the CPU.

    tensorrt: put TensorRT first where its libraries are installed, too.
    """
    if device.type != "cuda" or device.index:
        return [CPU_PROVIDER]
    import onnxruntime

    wanted = ["CUDAExecutionProvider"]
    if tensorrt and find_spec("tensorrt") is not None:
        wanted.insert(0, "TensorrtExecutionProvider")
    present = onnxruntime.get_available_providers()
    return [*(name for name in wanted if name in present), CPU_PROVIDER]
