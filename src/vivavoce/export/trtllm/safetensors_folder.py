"""The tensors of a folder's safetensors files, one or many, each read when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.export.merged_lm import ALL_ROWS

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_REMEDY = "make or download it again"


class SafetensorsFiles:
    """A reader of tensors; nothing of them stays in memory, and files are open only while they are read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `CheckpointError` if a file is missing or corrupt."""
        self._names = [path.name for path in paths]
        self._path_of: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        for path in paths:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                    self._path_of[name] = path
                    stored = file.get_slice(name)
                    self._shapes[name], self._dtypes[name] = tuple(stored.get_shape()), stored.get_dtype()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        return self._shapes

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name, as the format spells it: "F32", "BF16", "I8" …"""
        return self._dtypes

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """A tensor, or some rows of it.

        Raises:
            CheckpointError: no file has it.
        """
        if name not in self._path_of:
            raise CheckpointError(f"model: {name} is in none of {', '.join(self._names)}; {_REMEDY}")
        with _opened(self._path_of[name]) as file:
            tensor: Tensor = file.get_tensor(name) if rows == ALL_ROWS else file.get_slice(name)[rows]
            return tensor.clone()  # what safetensors gives may be a window on the file


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder.

    Raises:
        CheckpointError: there are none, or the index is no index.
    """
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    index = folder / _INDEX
    if not index.is_file():
        raise CheckpointError(f"model: {_WHOLE} is missing in {folder.name}; download the whole folder")
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / name for name in sorted({str(file) for file in files})]
    except (ValueError, LookupError, AttributeError, TypeError):
        raise CheckpointError(f"{_INDEX}: names no files; download it again") from None


def stored_dtype(reader: SafetensorsFiles, name: str) -> torch.dtype:
    """The dtype of a tensor."""
    return reader.read(name, slice(0, 1)).dtype


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: is missing in {path.parent.name}; download the whole folder") from None
    except (SafetensorError, OSError):
        raise CheckpointError(f"{path.name}: is corrupt; {_REMEDY}") from None
