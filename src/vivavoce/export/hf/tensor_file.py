"""A safetensors file, written some rows at a time: its size is no matter of memory.

The format: the length of a JSON header as 8 bytes, the header, then the tensors' bytes, little endian, one after
another without gaps (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.export.named_errors import naming

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_BLOCK_ELEMENTS = 4 << 20
_ALIGNMENT = 8

ReadRows = Callable[[str, slice], Tensor]
"""(name, rows) → those rows of the tensor, on the CPU."""


def write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, read: ReadRows) -> int:
    """Write all tensors of `shapes` in their order, as `dtype`; returns the file's size in bytes.

    Raises:
        CheckpointError: a value is not finite, or too large for the dtype.
    """
    header = _header(shapes, dtype)
    with naming(path), path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name, shape in shapes.items():
            step = max(1, _BLOCK_ELEMENTS // max(1, math.prod(shape[1:])))
            for start in range(0, shape[0], step):
                block = _cast(read(name, slice(start, min(start + step, shape[0]))), dtype, name)
                file.write(block.view(torch.uint8).numpy().data)
        return file.tell()


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    # transformers refuses files that do not say which library's they are.
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGNMENT)


def _cast(block: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    cast = block.to(dtype).contiguous()
    # A finite sum has finite terms, and is found in a fraction of the time.
    if not (bool(torch.isfinite(cast.sum(dtype=torch.float32))) or bool(torch.isfinite(cast).all())):
        wanted = str(dtype).removeprefix("torch.")
        why = f"has values that {wanted} cannot hold; choose bfloat16 or float32"
        if not bool(torch.isfinite(block).all()):
            why = "has values that are no finite numbers; download the model again"
        raise CheckpointError(f"model: {name} {why}")
    return cast
