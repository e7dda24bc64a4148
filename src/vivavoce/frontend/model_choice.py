"""Find the folder of a model, a device and a dtype by the names that a user gives. A folder is found without torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import detect_generation
from vivavoce.checkpoint.known_models import HOME_VARIABLE, find_model, models_home
from vivavoce.errors import CheckpointError, InvalidRequest, ModelNotFound

if TYPE_CHECKING:
    import torch

MINI = Path(__file__).parents[1] / "data" / "mini"
"""The default model: a small demo inside the package. A folder of this name in the current folder comes first."""
UNTRAINED_MODEL = "babble"
"""A tiny model with random weights, to try everything that does not need speech."""
BABBLE = "babble-1"
"""Name of the untrained model's folder, which is made at first use; the number changes with the folder's layout."""
_LARGE_BYTES = 1 << 29
"""A model is large if the file of its language model has more bytes."""
_DTYPES = ("float32", "bfloat16", "float16")


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: a path, a known name (errors as `find_model`), or one of the package's own models.

    CheckpointError: the program's own model is damaged, or cannot be made.
    """
    if not isinstance(model, str | os.PathLike | None):
        raise InvalidRequest(f"model: {model!r:.40} is of type {type(model).__name__}; give a name or a folder")
    if model == "":
        raise ModelNotFound("model: the name is empty; name a model or a folder, or leave it out")
    if model is None or (str(model) == "mini" and not Path(model).is_dir()):
        return MINI
    if str(model) != UNTRAINED_MODEL or Path(model).is_dir():
        return find_model(model)
    from vivavoce_bench.random_checkpoint import make_babble_checkpoint

    folder = models_home() / BABBLE
    try:
        return make_babble_checkpoint(folder)
    except CheckpointError as error:
        if os.path.lexists(folder):
            raise CheckpointError(
                f"model: {folder} is not the whole model {UNTRAINED_MODEL}; remove it, and the next use makes it anew"
            ) from None
        reason = str(error).removeprefix("folder: ").rpartition("; ")[0]
        raise CheckpointError(
            f"model: {reason}; set {HOME_VARIABLE} to a place that can be written, or name a model"
        ) from None


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto": a CUDA device if there is one, else the CPU. InvalidRequest: it is not there."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidRequest(f"device: {name!r} is unknown; use auto, cpu, cuda, cuda:N or mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise InvalidRequest(f"device: {name!r} is not there (`vivavoce doctor` lists what is); use auto or cpu")
    return device


def choose_dtype(name: str, device: torch.device, folder: Path | None = None, llm: Path | None = None) -> torch.dtype:
    """The dtype of that name; InvalidRequest: it is unknown. llm: a language model in place of the folder's.

    "auto" is float16 on CUDA and float32 elsewhere. A large model in `folder` gets bfloat16 on a CPU that multiplies
    it, because reading weights takes most of its time; a small model would lose more time by conversions.
    """
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
    """The number of processes that read texts; None: 2 to 4 on CUDA, `on_cpu` elsewhere. InvalidRequest: not 0 … 64."""
    if asked is None:
        # Four processes read more text than one GPU speaks; with two, one is always free for short texts.
        return max(2, min(4, (os.cpu_count() or 1) // 4)) if device.type == "cuda" else on_cpu
    if not 0 <= asked <= 64:
        raise InvalidRequest(f"text_processes: {asked} is outside of 0 … 64; choose a few")
    return asked


def share_device(device: torch.device, engines: int, bounded: bool) -> None:
    """Limit this thread to its engine's share of a CPU's threads, so that other engines have theirs.

    bounded: each engine has a limit of memory. InvalidRequest: several engines share a GPU without such limits.
    """
    import torch

    if engines > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // engines))
    elif engines > 1 and not bounded:
        problem = f"engines: {engines} on one {device.type} device would each take all of its memory"
        raise InvalidRequest(f"{problem}; bound the memory of each, or give each a GPU of its own")
