"""Finds a model's folder, a device and a dtype by the names that a user gives. `model_folder` does not import torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import detect_generation
from vivavoce.checkpoint.known_models import HOME_VARIABLE, find_model, models_home
from vivavoce.engine.request import check_number
from vivavoce.errors import CheckpointError, InvalidRequest, ModelNotFound, check_kind

if TYPE_CHECKING:
    import torch

MINI = Path(__file__).parents[1] / "data" / "mini"
"""Folder of the default model, a small demo in the package. The name "mini" means `./mini` if that folder exists."""
UNTRAINED_MODEL = "babble"
"""A tiny model with random weights, for tests that need no intelligible speech."""
BABBLE = "babble-1"
"""Folder name of the untrained model, which is made at its first use. The number changes with the folder's layout."""
_LARGE_BYTES = 1 << 29
"""A model is large if the file of its language model has more bytes than this."""
_DTYPES = ("float32", "bfloat16", "float16")


def is_packaged(model: str | Path) -> bool:
    """Return whether this is the name (in any case) of a model that comes with the package, and not of a folder."""
    return str(model).casefold() in ("mini", UNTRAINED_MODEL) and not Path(model).is_dir()


def model_folder(model: str | Path | None) -> Path:
    """Find a model's folder. model: a path, the name of a published or packaged model, or None for the default model.

    Raises the errors of `find_model`, and CheckpointError if the untrained model is damaged or cannot be made.
    """
    check_kind("model", model, str | os.PathLike | None, "give a name or a folder")
    if model == "":
        raise ModelNotFound("model: the name is empty; name a model or a folder, or leave it out")
    if model is None:
        return MINI
    if not is_packaged(model):
        return find_model(model)
    if str(model).casefold() == "mini":
        return MINI
    from vivavoce_bench.random_checkpoint import make_babble_checkpoint

    folder = models_home() / BABBLE
    try:
        return make_babble_checkpoint(folder)
    except CheckpointError as error:
        if os.path.lexists(folder):
            raise CheckpointError(
                f"model: {folder} is not the whole model {UNTRAINED_MODEL}; remove it, and the next use makes it again"
            ) from None
        reason = str(error).removeprefix("folder: ").rpartition("; ")[0]
        raise CheckpointError(
            f"model: {reason}; set {HOME_VARIABLE} to a folder that can be written, or name a model"
        ) from None


def choose_device(name: str) -> torch.device:
    """Return the device of this name; "auto" means CUDA if present, else CPU. Raises InvalidRequest for another one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InvalidRequest(f"device: {name!r} is unknown; use auto, cpu, cuda, cuda:N or mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise InvalidRequest(f"device: {name!r} is not present (`vivavoce doctor` lists the devices); use auto or cpu")
    return device


def choose_dtype(name: str, device: torch.device, folder: Path | None = None, llm: Path | None = None) -> torch.dtype:
    """Return the dtype of this name. Raises InvalidRequest if the name is unknown.

    "auto" is float16 on CUDA and float32 elsewhere, with one exception: a large model in `folder` gets bfloat16 on a
    CPU with bfloat16 instructions, because reading the weights takes most of the time there. For a small model,
    conversions would take more time than bfloat16 saves. llm: file of a language model that replaces the folder's."""
    import torch

    if name == "auto":
        if device.type == "cuda":
            return torch.float16
        return torch.bfloat16 if device.type == "cpu" and _is_large(folder, llm) and _has_bfloat16() else torch.float32
    if name not in _DTYPES:
        raise InvalidRequest(f"dtype: {name!r} is unknown; use auto or one of {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _is_large(folder: Path | None, llm: Path | None) -> bool:
    from vivavoce.checkpoint.weights import find_part

    if folder is None or detect_generation(folder) is Generation.V1:
        return False
    return (llm or find_part(folder, "llm")).stat().st_size > _LARGE_BYTES


def _has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def count_text_processes(asked: int | None, device: torch.device, on_cpu: int = 2) -> int:
    """Return the number of text processes: `asked` (0 … 64, else InvalidRequest); if None, 2 to 4 on CUDA, else
    `on_cpu`."""
    if asked is None:
        # Four processes normalise text faster than one GPU speaks it. With at least two, a short text need not wait.
        return max(2, min(4, (os.cpu_count() or 1) // 4)) if device.type == "cuda" else on_cpu
    check_number("text_processes", asked, 0, 64, whole=True)
    return asked


def share_device(device: torch.device, engines: int, bounded: bool) -> None:
    """Prepare this process for one of several engines on a device: on a CPU, limit torch to its share of the threads.

    bounded: each engine has a memory limit. Raises InvalidRequest if several engines share a GPU without memory limits.
    """
    import torch

    if engines > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // engines))
    elif engines > 1 and not bounded:
        problem = f"engines: {engines} on one {device.type} device would each take all of its memory"
        raise InvalidRequest(f"{problem}; limit the memory of each engine, or give each its own GPU")
