"""A folder that appears complete or not at all, never in the place of something else; files written in parts."""

from __future__ import annotations

import errno
import math
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.files import fresh_folder
from vivavoce_export import merged_lm
from vivavoce_export.files import TensorFile, blank, cast, check_target, row_blocks
from vivavoce_export.merged_lm import MappedWeights


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def fill(target: Path, content: str) -> None:
    with fresh_folder(target) as folder:
        (folder / "mark").write_text(content)


def test_absent_and_empty_targets_are_taken(tmp_path: Path, source: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "deep" / "absent", tmp_path / "empty"):
        check_target(target, source, force=False, mark="mark")
        fill(target, "new")
        assert [path.name for path in target.iterdir()] == ["mark"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty", "source"]


def test_an_earlier_export_is_replaced_by_force_alone(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "out"
    fill(target, "old")
    (target / "left").write_text("over")
    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        check_target(target, source, force=False, mark="mark")
    check_target(target, source, force=True, mark="mark")
    fill(target, "new")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"mark": "new"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("letters", "back: .* holds no mark, so it is not an earlier export"),
        ("letters/dear.txt", "is not a folder"),
        ("source", "the model's folder overlap"),
        ("source/inside", "the model's folder overlap"),
        (".", "the model's folder overlap"),
        ("a/b/c", "the current folder lies in"),
        ("a", "the current folder lies in"),
    ],
)
def test_force_spares_what_is_no_export(
    tmp_path: Path, source: Path, target: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("letters", "a/b/c"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "letters" / "dear.txt").write_text("you")
    for folder in (tmp_path, source):
        (folder / "mark").write_text("")
    monkeypatch.chdir(tmp_path / "a" / "b" / "c")
    with pytest.raises(InvalidRequest, match=message):
        check_target(tmp_path / target, source, force=True, mark="mark", field="back")


def test_a_link_keeps_pointing_and_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    fill(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    fill(tmp_path / "link", "new")
    with pytest.raises(TypeError):
        fill(tmp_path / "real", 5)  # type: ignore[arg-type]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "mark").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.integers(1, 40), min_size=1, max_size=4), width=st.integers(1, 9))
def test_tensors_are_written_in_blocks_of_any_number(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], width: int
) -> None:
    tensors = {f"t{index}": torch.randn(count, width) for index, count in enumerate(rows)} | {"v": torch.randn(7)}
    path = tmp_path_factory.mktemp("file") / "t.safetensors"
    specs = {name: blank(tuple(tensor.shape), torch.bfloat16) for name, tensor in tensors.items()}
    with pytest.MonkeyPatch.context() as patch, closing(TensorFile(path, specs)) as file:
        patch.setattr("vivavoce_export.files.BLOCK_VALUES", 16)
        for name, tensor in tensors.items():
            for block in row_blocks(len(tensor), tensor[0].numel()):
                file.write(name, tensor[block].bfloat16(), row=block.start)
    assert file.num_bytes == path.stat().st_size
    written = load_file(path)
    assert all(torch.equal(written[name], tensor.bfloat16()) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("value", "message"),
    [(1e6, "x has values that float16 cannot hold; choose bfloat16"), (math.nan, "x has values that are not finite")],
)
def test_values_that_the_dtype_cannot_hold_are_refused(value: float, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        cast(torch.tensor([value]), torch.float16, "x")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank0.safetensors"
    file = TensorFile(path, {"x": blank((4,), torch.float32)})

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call, work in (("pwrite", lambda: file.write("x", torch.ones(4))), ("fsync", file.close)):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(OSError, match="No space left") as refused:
                work()
        assert refused.value.filename == str(path)


def test_a_mapped_file_is_opened_anew_and_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_lm, "_READ_BEFORE_REOPENING", 1000)
    opened: list[Path] = []
    read_tensors = merged_lm.read_tensors

    def counted(path: Path) -> dict[str, Tensor]:
        opened.append(path)
        return read_tensors(path)

    monkeypatch.setattr(merged_lm, "read_tensors", counted)
    tensors = {str(number): torch.randn(10, 20) for number in range(5)} | {"scale": torch.tensor(3.0)}
    save_file(tensors, tmp_path / "weights.safetensors")
    weights = MappedWeights(tmp_path / "weights.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(weights.read(name), tensor)
        if tensor.dim():
            assert torch.equal(weights.read(name, slice(2, 5)), tensor[2:5])
        weights.read(name).zero_()  # a copy: the file stays as it is
        assert torch.equal(weights.read(name), tensor)
    assert len(opened) > 5
    with pytest.raises(CheckpointError, match=r"^model: y is in none of weights\.safetensors"):
        weights.read("y")
