"""A model's identity: the same for copies, another for every change that voices depend on."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from vivavoce.checkpoint.fingerprint import fingerprint, sha256_of
from vivavoce.errors import CheckpointError

FILES = {
    "campplus.onnx": b"speaker encoder",
    "speech_tokenizer_v2.onnx": b"speech tokenizer",
    "cosyvoice2.yaml": b"fmax: 8000",
    "llm.pt": b"language model",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    return path


def test_it_is_short_stable_and_goes_with_the_contents(folder: Path, tmp_path: Path) -> None:
    first = fingerprint(folder)
    assert len(first) == 16
    int(first, 16)
    copy = shutil.copytree(folder, tmp_path / "another name")
    os.utime(copy / "campplus.onnx", (0, 0))
    assert fingerprint(copy) == first


def test_it_does_not_change_between_versions(folder: Path) -> None:
    assert fingerprint(folder) == "16d422b403ac62f8"


@pytest.mark.parametrize("name", ["campplus.onnx", "speech_tokenizer_v2.onnx", "cosyvoice2.yaml"])
def test_a_change_of_the_same_size_changes_it(folder: Path, name: str) -> None:
    before, stat = fingerprint(folder), (folder / name).stat()
    (folder / name).write_bytes(FILES[name].swapcase())
    os.utime(folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(folder) != before


def test_other_files_do_not_matter(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "llm.pt").write_bytes(b"fine-tuned")
    (folder / "speech_tokenizer_v2.batch.onnx").write_bytes(b"for training")
    assert fingerprint(folder) == before


def test_swapped_contents_are_another_model(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "campplus.onnx").write_bytes(FILES["speech_tokenizer_v2.onnx"])
    (folder / "speech_tokenizer_v2.onnx").write_bytes(FILES["campplus.onnx"])
    assert fingerprint(folder) != before


@pytest.mark.parametrize("name", ["campplus.onnx", "speech_tokenizer_v2.onnx", "cosyvoice2.yaml"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name.split("_")[0].split("2")[0]):
        fingerprint(folder)


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "campplus.onnx").unlink()
    (folder / "campplus.onnx").mkdir()
    with pytest.raises(CheckpointError, match=r"campplus\.onnx cannot be read"):
        fingerprint(folder)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_sha256_in_blocks_is_sha256(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert sha256_of(path) == hashlib.sha256(b"x" * size).hexdigest()
