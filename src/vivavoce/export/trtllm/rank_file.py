"""A safetensors file that is laid out first and filled in any order, from several threads, also after a break."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.export.named_errors import naming

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8"}
_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor will be."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class _Layout:
    """specs: in their order in the file; start: of each tensor's bytes; num_bytes: of the file."""

    specs: Mapping[str, TensorSpec]
    header: bytes
    start: Mapping[str, int]
    num_bytes: int


class RankFile:
    """The file of one GPU; what is never written is zero. An OSError of any method names the file."""

    def __init__(self, path: Path, specs: Mapping[str, TensorSpec]) -> None:
        """Create the file, or go on with one that was begun with the same specs."""
        self._path, self._layout = path, _laid_out(specs)
        with naming(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._descriptor, self.num_bytes)
            os.pwrite(self._descriptor, self._layout.header, 0)

    @property
    def num_bytes(self) -> int:
        """Of the file."""
        return self._layout.num_bytes

    def write(self, name: str, tensor: Tensor, row: int = 0) -> None:
        """Put a tensor, or some rows of it from `row` on, in its place.

        Raises:
            ValueError: it is not what was announced.
        """
        spec = self._layout.specs[name]
        within = tensor.shape == spec.shape or (
            tensor.shape[1:] == spec.shape[1:] and row + len(tensor) <= spec.shape[0]
        )
        if tensor.dtype != spec.dtype or not within:
            raise ValueError(f"{name}: {list(tensor.shape)} {tensor.dtype} at row {row} is not within {spec}")
        offset = self._layout.start[name] + row * math.prod(spec.shape[1:]) * spec.dtype.itemsize
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        with naming(self._path):
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        with naming(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        with naming(self._path):
            os.close(self._descriptor)


def fits(path: Path, specs: Mapping[str, TensorSpec]) -> bool:
    """Whether a file begins as one of these specs does, and is as long; no tensor is read."""
    layout = _laid_out(specs)
    with path.open("rb") as file:
        return file.read(len(layout.header)) == layout.header and path.stat().st_size == layout.num_bytes


def _laid_out(specs: Mapping[str, TensorSpec]) -> _Layout:
    # Wide dtypes first, as the format's own library orders them: every tensor is aligned to its dtype.
    ordered = dict(sorted(specs.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header = _header(ordered)
    start: dict[str, int] = {}
    end = len(header)
    for name, spec in ordered.items():
        start[name] = end
        end += spec.num_bytes
    return _Layout(ordered, header, start, end)


def _header(specs: Mapping[str, TensorSpec]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, spec in specs.items():
        end = start + spec.num_bytes
        entries[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
