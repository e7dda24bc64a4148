"""`.pt` files: everything that torch writes of tensors comes back, and no stranger's file grows or is run."""

from __future__ import annotations

import collections
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vivavoce.checkpoint.torch_file import read_torch_file
from vivavoce.errors import CheckpointError


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32)
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in (*dtypes, torch.int64, torch.uint8)}
    table = torch.randn(5, 4)
    tensors |= {"bool": torch.tensor([True, False]), "transposed": table.T, "part": table[1:3, ::2]}
    tensors |= {"empty": torch.zeros(0, 80), "single": torch.tensor(3.5), "parameter": torch.nn.Parameter(table)}
    plain = {
        "epoch": 3,
        "negative": -5,
        "large": 1 << 70,
        "rate": 0.1,
        "none": None,
        "yes": [True, False],
        "pair": (1,),
    }
    ordered = torch.nn.Linear(3, 2).state_dict()
    torch.save({**tensors, **plain, "module": ordered, "one": {"a": [1]}}, tmp_path / "all.pt")
    found = read_torch_file(tmp_path / "all.pt")
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert {name: found[name] for name in plain} == plain
    assert found["one"] == {"a": [1]}
    assert list(found["module"]) == list(ordered)
    assert all(torch.equal(found["module"][name], tensor) for name, tensor in ordered.items())


def test_tensors_that_share_their_bytes_still_do(tmp_path: Path) -> None:
    table = torch.randn(1000, 4)
    torch.save({"input": table, "output": table}, tmp_path / "tied.pt")
    found = read_torch_file(tmp_path / "tied.pt")
    assert found["input"].data_ptr() == found["output"].data_ptr()


class Call:
    """Is called when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


def tensor(offset: Any, size: Any, stride: Any) -> Call:
    """A tensor of any shape over four stored numbers."""
    rebuild = torch._utils._rebuild_tensor_v2
    return Call(rebuild, torch.zeros(4)._typed_storage(), offset, size, stride, False, collections.OrderedDict())


def parameters(content: Any, number: int) -> list[Call]:
    """The same parameter many times, by the same arguments, which the file has once."""
    calls = [Call(torch._utils._rebuild_parameter) for _ in range(number)]
    made = torch._utils._rebuild_parameter, (content, False, collections.OrderedDict())
    for call in calls:
        call.made = made
    return calls


def of(content: Any, **options: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path, **options)


def with_pickle(content: bytes, compression: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/data/0", bytes(16))
            archive.writestr("archive/version", b"3")

    return write


def with_large_directory(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(70):
            entry = zipfile.ZipInfo(f"archive/data/{number}")
            entry.comment = bytes(65_000)
            archive.writestr(entry, b"")


def with_large_storage(path: Path) -> None:
    """The directory says a terabyte of a storage of 16 bytes."""
    torch.save({"a": torch.zeros(4)}, path)
    data = path.read_bytes()
    entry = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    while b"/data/0" not in data[entry : entry + 80]:
        entry = data.index(b"PK\1\2", entry + 1)
    path.write_bytes(data[: entry + 20] + struct.pack("<II", 1 << 31, 1 << 31) + data[entry + 28 :])


SHARED, SPEAKER = torch.zeros(100_000), {"embedding": torch.zeros(1, 192)}
# Each pair holds the one before it twice: to hash or to print it takes 2^60 steps.
TREE = b")" + b"q\0h\0\x86" * 60
PARAMETERS = b"ctorch._utils\n_rebuild_parameter\nq\1" + b"h\1h\0R" * 300_000 + b"."
# A list of 10,000 pairs, of which 10,000 ordered dicts are made.
COPIES = pickle.dumps([(str(number), number) for number in range(10_000)], 2)[:-1]
COPIES += b"r\0\0\1\0" + (b"ccollections\nOrderedDict\nj\0\0\1\0\x85R") * 10_000 + b"."
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "bytes": (of({"a": Call(bytearray, 8_000_000_000)}), "it calls __builtin__ bytearray"),
    "bytes8": (with_pickle(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x."), "expected 1099511627776 bytes"),
    "long": (with_pickle(b"\x80\x02\x8b" + struct.pack("<i", 1_000) + b"x" * 1_000 + b"."), "instruction LONG4"),
    "text": (with_pickle(b"\x80\x02X" + struct.pack("<I", 0xFFFF_FFFF) + b"x."), "expected 4294967295 bytes"),
    "copies": (with_pickle(COPIES), "a container in two places"),
    "calls a tree": (with_pickle(b"\x80\x02" + TREE + b")R."), "it calls a value"),
    "stores a tree": (with_pickle(b"\x80\x02(NX\0\0\0\0" + TREE + b"tQ."), "can only concatenate str"),
    "sizes": (of({"a": tensor(0, torch.zeros(9), (1,))}), "without a shape"),
    "again and again": (with_pickle(b"\x80\x02(" + b")" * 300_000 + b"tq\0" + PARAMETERS), "without a shape"),
    "deep": (with_pickle(b"\x80\x02}" + TREE + b"K\1s."), "a name that is not text"),
    "numbers": (of({3: torch.zeros(1)}), "a name that is not text"),
    "compressed": (with_pickle(bytes(200_000_000), zipfile.ZIP_DEFLATED), "contents are compressed"),
    "large": (with_pickle(bytes(4_000_001)), "more than 4000000 bytes"),
    "directory": (with_large_directory, "more than 4000000 bytes"),
    "storage": (with_large_storage, "data/0 ends after the file"),
    "expanded": (of({"a": torch.zeros(1).expand(1, 10**12)}), "more values than are stored"),
    "offset": (of({"a": tensor(1, (4,), (1,))}), "more values than are stored"),
    "stride": (of({"a": tensor(0, (2,), (4,))}), "more values than are stored"),
    "negative": (of({"a": tensor(3, (2,), (-1,))}), "without a shape"),
    "huge": (of({"a": tensor(0, (1 << 40, 1 << 40), (0, 0))}), "more values than are stored"),
    "dimensions": (of({"a": tensor(0, (1,) * 9, (0,) * 9)}), "without a shape"),
    "views": (of([SHARED.view(-1) for _ in range(5)]), "more than 4 times the file's bytes"),
    "again": (of([SHARED] * 5), "more than 4 times the file's bytes"),
    "parameters": (of(parameters(SHARED, 1_000)), "more than 4 times the file's bytes"),
    "speakers": (of(parameters(SPEAKER, 2)), "it calls torch._utils _rebuild_parameter"),
    "dict": (of([SPEAKER] * 2), "a container in two places"),
    "legacy": (of({"a": SHARED}, _use_new_zipfile_serialization=False), "not a zip file"),
    "code": (of({"a": Call(print, "called")}), "it calls __builtin__ print"),
    "import": (with_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."), "instruction SHORT_BINUNICODE"),
    "instance": (with_pickle(b"(S'id'\nios\nsystem\n."), "instruction STRING"),
    "extension": (with_pickle(b"\x80\x02\x82\x01."), "instruction EXT1"),
    "member": (
        with_pickle(b"\x80\x02(X\7\0\0\0storageX\x12\0\0\0torch FloatStorageX\7\0\0\0../../0X\3\0\0\0cpuK\4tQ."),
        "data/../../0",
    ),
}
READER = """
import json, resource, sys, time
from pathlib import Path
from vivavoce.checkpoint.torch_file import read_torch_file
from vivavoce.errors import CheckpointError
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    begin = time.process_time()
    try:
        read_torch_file(Path(path))
        said = ""
    except CheckpointError as error:
        said = str(error)
    print(json.dumps([Path(path).stem, said, time.process_time() - begin]))
"""


@pytest.mark.slow
def test_no_file_becomes_large_or_is_run(tmp_path: Path) -> None:
    """In a process that has one GB more than it needs for nothing."""
    for name, (write, _) in HOSTILE.items():
        write(tmp_path / f"{name}.pt")
    command = [sys.executable, "-c", READER, *map(str, sorted(tmp_path.glob("*.pt")))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(HOSTILE)
    for name, said, seconds in found:
        assert said.startswith(f"{name}.pt: is corrupt or holds more than tensors ("), name
        assert HOSTILE[name][1] in said
        assert "nothing of it was run" in said
        assert "\n" not in said
        assert len(said) < 250
        assert seconds < 10, name


def test_a_file_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^away\.pt: is missing in .*; check the path$"):
        read_torch_file(tmp_path / "away.pt")
