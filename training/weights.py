"""Trained parts ↔ files in the official layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.names import NameTable
from vivavoce.checkpoint.weights import find_part, fold_weight_norm, load_into, read_tensors


def save_part(path: Path, state: Mapping[str, Tensor], names: NameTable) -> None:
    """Write weights under their official names in 16 bit (float16: at these sizes no weight overflows)."""
    official = {names.to_official(own): tensor.half().contiguous() for own, tensor in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        torch.save(official, file)
    temporary.replace(path)


def load_part(module: nn.Module, folder: Path, part: str, names: NameTable) -> None:
    """Give a module the weights of a checkpoint's part; errors as in `vivavoce.checkpoint.weights`."""
    path = find_part(folder, part)
    state = read_tensors(path)
    load_into(module, fold_weight_norm(state) if part == "hift" else state, names, path.name, torch.float32)
