"""Reads `.pt` files of `torch.save` safely, as data: tensors, plain values, and dicts, lists and tuples of them.

A pickle is a program. This module interprets only the few instructions that make such values, and refuses all others.
So a file cannot import or call anything, or use much more memory than its size. Since torch 1.6, a `.pt` file is a zip
file that contains the pickle and the uncompressed bytes of tensors
(https://docs.pytorch.org/docs/stable/notes/serialization.html).
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vivavoce.checkpoint.folder import refuse_pointer
from vivavoce.errors import CheckpointError

MAX_BYTES = 4_000_000
"""Maximum size of the pickle and of the zip directory, which contain the tensors' names; published files have 50 kB."""
MAX_DIMS = 8
MAX_TIMES = 4
"""Maximum size of all tensors together, relative to the file's size; above 1, because tied weights share bytes."""

_DTYPES = {
    **{"Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16, "Double": torch.float64},
    **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8},
    **{"Byte": torch.uint8, "Bool": torch.bool},
}
_MAKES: Mapping[str, Callable[[], Any]] = {
    **{"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple},
    **{"NONE": lambda: None, "NEWFALSE": lambda: False, "NEWTRUE": lambda: True},
}
_LITERALS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "GLOBAL"})
"""Instructions that push their argument; GLOBAL pushes the name of an import as text, and imports nothing."""
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2, "TUPLE": 0, "APPENDS": 0, "SETITEMS": 0}


def read_torch_file(path: Path) -> Any:
    """Read a file; its tensors are memory-mapped. Raises CheckpointError if the file is missing, corrupt, older than
    torch 1.6, or not plain data."""
    refuse_pointer(path)
    try:
        with _SmallReads(path) as file:
            return _Reader(path, file).read()
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: is missing in {path.parent}; check the path") from None
    except Exception as error:  # malicious bytes can cause any error
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise CheckpointError(
            f"{path.name}: is corrupt or holds more than tensors ({reason}); nothing of it was run, make or download "
            "it again"
        ) from None


class _SmallReads(io.FileIO):
    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `MAX_BYTES`, else raise ValueError: `zipfile` reads a zip directory of any size at once."""
        limit = MAX_BYTES + 1
        data = super().read(limit if size is None or size < 0 else min(size, limit)) or b""
        if len(data) == limit:
            raise ValueError(f"its names take more than {MAX_BYTES} bytes, which is the limit")
        return data


class _Storage(NamedTuple):
    dtype: torch.dtype
    content: torch.UntypedStorage


class _Reader:
    def __init__(self, path: Path, file: io.FileIO) -> None:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its contents are compressed")
        self._file, self._num_bytes = file, path.stat().st_size
        self._members = {member.filename.partition("/")[2]: member for member in members}
        self._mapped = torch.UntypedStorage.from_file(str(path), False, self._num_bytes)
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._bytes_left = MAX_TIMES * self._num_bytes

    def read(self) -> Any:
        if "byteorder" in self._members and self._bytes("byteorder") != b"little":
            raise ValueError("its byte order is not little endian")
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[Any, Any] = {}
        pickled = self._bytes("data.pkl")
        if b"ds_version" in pickled:
            raise ValueError("it is a training state of DeepSpeed, whose zero_to_fp32.py makes weights")
        for opcode, argument, _ in pickletools.genops(pickled):
            name = opcode.name
            if name in _LITERALS:
                stack.append(argument)
            elif name in _MAKES:
                stack.append(_MAKES[name]())
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
                if isinstance(stack[-1], dict | list):
                    raise ValueError("a container in two places")
            elif name == "MARK":
                marks.append(len(stack))
            elif name in _TAKES:
                start = max(len(stack) - _TAKES[name], 0) if _TAKES[name] else marks.pop()
                items, stack[start:] = stack[start:], []
                stack.append(tuple(items)) if "TUPLE" in name else self._fill(stack[-1], items)
            elif name == "BINPERSID":
                stack.append(self._storage(*_few(stack.pop())))
            elif name == "REDUCE":
                arguments = _few(stack.pop())
                stack.append(self._call(stack.pop(), *arguments))
            elif name == "BUILD":
                stack.pop()  # attributes of an ordered dict
            elif name == "STOP":
                break
            elif name != "PROTO":
                raise ValueError(f"instruction {name}")
        return stack.pop()

    def _storage(self, _: str, kind: str, key: str, *__: Any) -> _Storage:
        name = "data/" + key
        if name not in self._storages:
            self._storages[name] = self._mapped[self._span(name)]
        return _Storage(_DTYPES[kind.removeprefix("torch ").removesuffix("Storage")], self._storages[name])

    def _call(self, function: str, *arguments: Any) -> Any:
        if function == "torch._utils _rebuild_tensor_v2":
            return self._tensor(*arguments)
        if function == "torch._utils _rebuild_parameter" and isinstance(arguments[0], Tensor):
            return arguments[0]
        if function == "collections OrderedDict" and not arguments:
            return {}
        raise ValueError(f"it calls {function if isinstance(function, str) else 'a value'}")

    def _tensor(self, stored: _Storage, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
        numbers = (offset, *_few(size), *_few(stride))
        if len(size) != len(stride) or any(type(one) is not int or one < 0 for one in numbers):
            raise ValueError("a tensor without a shape")
        num_values, item = math.prod(size), stored.dtype.itemsize
        end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if num_values else 0
        if max(num_values, end) * item > stored.content.nbytes():
            raise ValueError("a tensor with more values than are stored")
        return torch.empty(0, dtype=stored.dtype).set_(stored.content, offset, size, stride)

    def _fill(self, container: Any, items: list[Any]) -> None:
        self._bytes_left -= sum(item.nbytes for item in items if isinstance(item, Tensor))
        if self._bytes_left < 0:
            raise ValueError(f"tensors of more than {MAX_TIMES} times the file's bytes")
        if type(container) is list:
            container.extend(items)
        elif type(container) is dict and all(type(key) is str for key in items[::2]):  # nested tuples hash for years
            container.update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError("a name that is not text")

    def _bytes(self, name: str) -> bytes:
        span = self._span(name)
        self._file.seek(span.start)
        return self._file.read(span.stop - span.start)

    def _span(self, name: str) -> slice:
        """Return the range of a member's bytes, which start after its header of 30 bytes, a name, and extra fields."""
        member = self._members[name]
        self._file.seek(member.header_offset)
        start = member.header_offset + 30 + sum(struct.unpack_from("<HH", self._file.read(30), 26))
        if start + member.file_size > self._num_bytes:
            raise ValueError(f"{name} ends after the file")
        return slice(start, start + member.file_size)


def _few(values: Any) -> tuple[Any, ...]:
    """Return `values`, a short tuple; refuse a long one, which a file could repeat a million times, or nest so that
    printing or hashing takes years."""
    if type(values) is not tuple or len(values) > MAX_DIMS:
        raise ValueError("a tensor without a shape")
    return values
