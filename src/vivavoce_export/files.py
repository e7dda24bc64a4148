"""Checks of an export's target folder, and safetensors files that do not need to fit into memory.

The writer of the safetensors library needs all tensors of a file in memory at once. The file format is the length of a
JSON header in 8 bytes, the header, then the tensors' bytes, little endian
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8"}
_ALIGNMENT = 8
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
AUTO = "auto"
BLOCK_VALUES = 4 << 20


def check_target(target: Path, source: Path, *, force: bool, mark: str, field: str = "out") -> None:
    """Refuse an unsafe target folder. It must be absent or empty, and outside of `source`.

    force: also allow an earlier export, which is a folder with the file `mark`; field: option named in errors.
    """
    resolved, origin, here = target.resolve(), source.resolve(), Path.cwd()
    if resolved == origin or resolved in origin.parents or origin in resolved.parents:
        raise InvalidRequest(f"{field}: {target} and the model's folder overlap; choose a separate folder")
    if resolved == here or resolved in here.parents:
        raise InvalidRequest(f"{field}: the current folder lies in {target}, which would be replaced; name another")
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InvalidRequest(f"{field}: {target} is not a folder; choose another place")
    if not any(target.iterdir()):
        return
    if not force:
        raise InvalidRequest(f"{field}: {target} is not empty; add --force to replace it, or choose another place")
    if not (target / mark).is_file():
        raise InvalidRequest(f"{field}: {target} holds no {mark}, so it is not an earlier export; choose another place")


def check_dtype(name: str) -> None:
    if name != AUTO and name not in DTYPES:
        raise InvalidRequest(f"dtype: {name!r} is unknown; use {AUTO} or one of {', '.join(DTYPES)}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """If the block raises an OSError without a file name, set its file name to `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def blank(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Make a tensor with a shape and dtype but no values, which specifies a tensor of a `TensorFile`."""
    return torch.empty(shape, dtype=dtype, device="meta")


class TensorFile:
    """A safetensors file that several threads write to. Unwritten parts are zero. An OSError names the file."""

    def __init__(self, path: Path, specs: Mapping[str, Tensor]) -> None:
        self._path, self._specs = path, specs
        header, self._start, self.num_bytes = _layout(specs)
        with naming(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            os.ftruncate(self._descriptor, self.num_bytes)
            os.pwrite(self._descriptor, header, 0)

    def write(self, name: str, tensor: Tensor, row: int = 0) -> None:
        """Write a tensor, or some of its rows starting at `row`. ValueError: they do not fit the specification."""
        spec = self._specs[name]
        within = tensor.dim() > 0 and tensor.shape[1:] == spec.shape[1:] and row + len(tensor) <= len(spec)
        if tensor.dtype != spec.dtype or not (within or tensor.shape == spec.shape):
            raise ValueError(f"{name}: {list(tensor.shape)} {tensor.dtype} at row {row} does not fit into {spec}")
        offset = self._start[name] + row * math.prod(spec.shape[1:]) * spec.itemsize
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        with naming(self._path):
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written

    def close(self) -> None:
        with naming(self._path):
            try:
                os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)


def matches(path: Path, specs: Mapping[str, Tensor]) -> bool:
    """Return whether the file has the header and the length that these specs give. Tensors are not read."""
    header, _, num_bytes = _layout(specs)
    with path.open("rb") as file:
        return file.read(len(header)) == header and path.stat().st_size == num_bytes


def row_blocks(num_rows: int, width: int) -> list[slice]:
    """Split the rows of a table with `width` columns into blocks of at most about `BLOCK_VALUES` values."""
    step = max(1, BLOCK_VALUES // max(1, width))
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def cast(tensor: Tensor, dtype: torch.dtype, name: str, way_out: str = "choose bfloat16 or float32") -> Tensor:
    """Convert the tensor to `dtype`. CheckpointError with `name` and `way_out` for values that `dtype` cannot hold."""
    narrow = tensor.to(dtype)
    if tensor.is_meta or bool(narrow.isfinite().all()):
        return narrow
    why = f"has values that {str(dtype).removeprefix('torch.')} cannot hold; {way_out}"
    if not bool(tensor.isfinite().all()):
        why = "has values that are not finite numbers; download the model again"
    raise CheckpointError(f"model: {name} {why}")


def _layout(specs: Mapping[str, Tensor]) -> tuple[bytes, dict[str, int], int]:
    """Return the file's header, the offset of each tensor's first byte in the file, and the file's size in bytes."""
    # Transformers refuses a file whose metadata does not say which framework saved it.
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start: dict[str, int] = {}
    end = 0
    # Order by falling element size, as the safetensors library does, so that every tensor is aligned to its dtype.
    for name, spec in sorted(specs.items(), key=lambda item: (-item[1].itemsize, item[0])):
        start[name], end = end, end + spec.nbytes
        entries[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + at for name, at in start.items()}, len(header) + end
