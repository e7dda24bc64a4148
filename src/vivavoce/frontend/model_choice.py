"""Which model speaks, where it runs and in which precision: an operator's words → a folder and torch's values."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import detect_generation
from vivavoce.checkpoint.known_models import HOME_VARIABLE, find_model, models_home
from vivavoce.checkpoint.weights import find_part
from vivavoce.errors import CheckpointError, InvalidRequest, ModelNotFound

MINI = Path(__file__).parents[1] / "data" / "mini"
"""The default: a small demo model inside the package; a folder of that name comes first, as for every model."""
UNTRAINED_MODEL = "babble"
"""Random weights of a tiny size, to try everything that does not need speech."""
BABBLE = "babble-1"
"""Its folder among the downloaded models, made at first use; the number moves with its layout."""
_LARGE_BYTES = 1 << 29
"""A language model's file of more bytes is a large model."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: a path, a known name (errors as `find_model`), or one of the package's own models.

    CheckpointError: the program's own model is damaged, or cannot be made.
    """
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


def choose_dtype(name: str, device: torch.device, folder: Path | None = None) -> torch.dtype:
    """The dtype of that name; InvalidRequest: it is unknown.

    "auto" is float16 on CUDA, else float32; but bfloat16 for a large model in `folder`, where the processor multiplies
    such numbers: reading its weights is what takes time there, and a small model loses more by converting numbers.
    """
    if name == "auto":
        if device.type == "cuda":
            return torch.float16
        return torch.bfloat16 if device.type == "cpu" and _is_large(folder) and _has_bfloat16() else torch.float32
    if name not in _DTYPES:
        raise InvalidRequest(f"dtype: {name!r} is unknown; use auto or one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _is_large(folder: Path | None) -> bool:
    """Whether it holds a CosyVoice2 or 3 of the released size."""
    if folder is None or detect_generation(folder) is Generation.V1:
        return False
    return find_part(folder, "llm").stat().st_size > _LARGE_BYTES


def _has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16, as far as the system tells."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def count_text_processes(asked: int | None, device: torch.device, on_cpu: int = 2) -> int:
    """Processes that read texts out; None: two to four on CUDA, `on_cpu` elsewhere. InvalidRequest: too few or many."""
    if asked is None:
        # Four read more texts than one GPU speaks; of two, one is always there for short texts.
        return max(2, min(4, (os.cpu_count() or 1) // 4)) if device.type == "cuda" else on_cpu
    if not 0 <= asked <= 64:
        raise InvalidRequest(f"text_processes: {asked} is outside of 0 … 64; choose a few")
    return asked


def share_device(device: torch.device, engines: int, bounded: bool) -> None:
    """Leave the other engines on a device their part of it: of a CPU's threads, for what this thread begins.

    bounded: each has its own bound of memory. InvalidRequest: they are on a GPU and have none.
    """
    if engines > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // engines))
    elif engines > 1 and not bounded:
        problem = f"engines: {engines} on one {device.type} device would each take all of its memory"
        raise InvalidRequest(f"{problem}; bound the memory of each, or give each a GPU of its own")
