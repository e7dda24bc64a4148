"""Weight files → tensors → modules: never code from a pickle, strict about every name and shape."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vivavoce.checkpoint.names import NameTable
from vivavoce.errors import CheckpointError

_TRAINING_COUNTERS = frozenset({"epoch", "step"})
_GAN_PREFIX = "generator."
_NEW_NORM = (".parametrizations.weight.original0", ".parametrizations.weight.original1")
_OLD_NORM = (".weight_g", ".weight_v")
_PARTS = ("llm", "flow", "hift")
_VARIANT = re.compile(rf"(?:{'|'.join(_PARTS)})\.([\w-]+)\.(?:pt|safetensors)")
_MAX_LISTED = 6


def find_part(folder: Path, part: str, variant: str | None = None) -> Path:
    """The weight file of `part` (llm, flow, hift).

    safetensors before .pt; with `variant` (such as "rl" or "cache") the file `part.variant.pt`, where there is one.

    Raises:
        CheckpointError: there is no such file.
    """
    stems = [f"{part}.{variant}", part] if variant else [part]
    for stem in stems:
        for suffix in (".safetensors", ".pt"):
            path = folder / (stem + suffix)
            if path.is_file():
                return path
    others = sorted(path.name for path in folder.glob(f"{part}.*.pt"))
    hint = f"; there is {', '.join(others)}: name it as the variant" if others else ""
    raise CheckpointError(f"model: {part}.pt is missing in {folder.name}{hint or '; download the whole folder'}")


def check_variant(folder: Path, variant: str | None) -> None:
    """Make sure that at least one part has the variant; the other parts take their plain files.

    Raises:
        CheckpointError: no part has it; the message lists the variants that are there.
    """
    if not variant:
        return
    found = {match[1] for path in folder.iterdir() if (match := _VARIANT.fullmatch(path.name))}
    if variant not in found:
        advice = f"take one of {', '.join(sorted(found))}, or none" if found else "the folder has none, leave it out"
        raise CheckpointError(f"variant: {variant!r} is not in {folder.name}; {advice}")


def read_pickle(path: Path) -> Any:
    """What `torch.save` wrote: tensors, plain values and containers of them, on the CPU; no code is run.

    Raises:
        CheckpointError: missing, corrupt, or holding anything else.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: is missing in {path.parent}; check the path") from None
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path.name}: is corrupt or holds more than tensors; nothing of it was run, make or download it again"
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{path.name}: cannot be read ({type(error).__name__}); make or download it again"
        ) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a `.pt` or `.safetensors` file, on the CPU, mapped where possible.

    Raises:
        CheckpointError: corrupt, or holds anything but named tensors.
    """
    if path.suffix == ".safetensors":
        try:
            state: Any = load_file(path)
        except (SafetensorError, OSError, ValueError):
            raise CheckpointError(f"{path.name}: is corrupt; make or download it again") from None
    else:
        state = read_pickle(path)
    if not isinstance(state, Mapping) or not state:
        raise CheckpointError(f"{path.name}: holds no named tensors; download the file again")
    tensors = {key: value for key, value in state.items() if key not in _TRAINING_COUNTERS}
    strange = [str(key) for key, value in tensors.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(f"{path.name}: holds more than tensors: {_listed(strange)}")
    return tensors


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace each (g, v) pair by weight = g · v / ‖v‖, the norm over all dimensions but the first.

    Both spellings of torch's weight norm are read, and the prefix of a whole GAN checkpoint is dropped
    (arXiv:1602.07868, equation 2).

    Raises:
        CheckpointError: g and v are no such pair.
    """
    folded = {key.replace(_GAN_PREFIX, ""): value for key, value in state.items()}
    for scale_name, direction_name in (_NEW_NORM, _OLD_NORM):
        for key in [key for key in folded if key.endswith(scale_name)]:
            stem = key.removesuffix(scale_name)
            if stem + direction_name in folded:
                scale, direction = folded.pop(key), folded.pop(stem + direction_name)
                folded[stem + ".weight"] = _weight(stem, scale, direction)
    return folded


def _weight(stem: str, scale: Tensor, direction: Tensor) -> Tensor:
    fits = direction.dim() > 1 and scale.shape == (direction.shape[0],) + (1,) * (direction.dim() - 1)
    if not (fits and scale.is_floating_point() and direction.is_floating_point()):
        raise CheckpointError(
            f"model: {stem}.weight is split into {list(scale.shape)} and {list(direction.shape)}, which is no weight "
            "norm; download the file again"
        )
    inner = tuple(range(1, direction.dim()))
    scale, direction = scale.float(), direction.float()  # a norm summed in 16 bit is off by what the weights can show
    return scale * direction / torch.linalg.vector_norm(direction, dim=inner, keepdim=True)


def load_into(module: nn.Module, state: Mapping[str, Tensor], names: NameTable, file: str, dtype: torch.dtype) -> None:
    """Give official tensors, copied as `dtype`, to `module`, which may have been built on the meta device.

    Raises:
        CheckpointError: one error that lists all missing, unexpected and wrongly shaped keys by official name.
    """
    wanted = {names.to_official(own): own for own in module.state_dict()}
    given = {key for key in state if key not in names.unused}
    problems = []
    if missing := sorted(set(wanted) - given):
        problems.append(f"{len(missing)} missing ({_listed(missing)})")
    if unexpected := sorted(given - set(wanted)):
        problems.append(f"{len(unexpected)} unexpected ({_listed(unexpected)})")
    targets = module.state_dict()
    misshapen = [
        f"{key} {list(state[key].shape)} instead of {list(targets[own].shape)}"
        for key, own in sorted(wanted.items())
        if key in given and state[key].shape != targets[own].shape
    ]
    if misshapen:
        problems.append(f"{len(misshapen)} of the wrong shape ({_listed(misshapen)})")
    if problems:
        raise CheckpointError(f"model: {file} does not fit its configuration: {'; '.join(problems)}")
    # Copied, not mapped: a file that is replaced while the program runs must not change the weights.
    copies = {own: state[key].to(dtype, copy=True) for key, own in wanted.items()}
    module.load_state_dict(copies, assign=True)


def _listed(items: Iterable[str]) -> str:
    items = list(items)
    more = len(items) - _MAX_LISTED
    return ", ".join(items[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
