"""What an earlier conversion left: believed only if it is undamaged, and never in the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trtllm_goldens import DATA

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.hf.tensor_file import write_tensors
from vivavoce.export.trtllm.convert import convert
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.rank_file import RankFile, TensorSpec
from vivavoce.export.trtllm.reread import Reread
from vivavoce.export.trtllm.source import Source, open_hugging_face
from vivavoce.export.trtllm.workshop import workshop_for

OPTIONS = ConvertOptions(pp=2)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A tiny model with a bias of its head."""
    folder = tmp_path / "hf"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((DATA / "a_h64" / "hf" / name).read_bytes())
    np.save(folder / "embedding_bias.npy", np.arange(101, dtype=np.float32))
    return open_hugging_face(folder)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"lm_head.weight", b"lm_head.height"))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("config.json", Path.unlink),
        ("config.json", cut),
        ("rank0.safetensors", Path.unlink),
        ("rank1.safetensors", cut),
        ("rank1.safetensors", other_header),
        ("embedding_bias.npy", Path.unlink),
        ("embedding_bias.npy", cut),
    ],
)
def test_a_damaged_checkpoint_is_not_done(
    source: Source, tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    convert(source, out, OPTIONS)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    damage(out / file)
    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        convert(source, out, OPTIONS)
    assert not convert(source, out, OPTIONS, force=True).was_there
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    assert convert(source, out, OPTIONS).was_there


def test_force_converts_again_whatever_is_there(source: Source, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(source, out, OPTIONS)
    rank = out / "rank0.safetensors"
    whole = rank.read_bytes()
    rank.write_bytes(whole[:-4] + b"\xff" * 4)  # damage that no size tells
    assert not convert(source, out, OPTIONS, force=True).was_there
    assert rank.read_bytes() == whole


def test_a_checkpoint_with_a_damaged_bias_is_refused(source: Source, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(source, out, OPTIONS)
    np.save(out / "embedding_bias.npy", np.zeros(7, np.float32))
    with pytest.raises(CheckpointError, match=r"embedding_bias\.npy: is \[7\] instead of \[101\]"):
        Reread(out)
    cut(out / "embedding_bias.npy")
    with pytest.raises(CheckpointError, match=r"embedding_bias\.npy: cannot be read"):
        Reread(out)


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError), workshop_for(tmp_path / "out", "plan"):
        raise CheckpointError("a value")
    with pytest.raises(InvalidRequest), workshop_for(tmp_path / "out", "plan"):
        raise InvalidRequest("no room")
    assert not list(tmp_path.iterdir())
    with workshop_for(tmp_path / "out", "plan") as workshop:
        workshop.note(["layer 1"])
    with pytest.raises(InvalidRequest), workshop_for(tmp_path / "out", "plan"):
        raise InvalidRequest("no room")
    with workshop_for(tmp_path / "out", "plan") as workshop:  # once there is room, it goes on
        assert workshop.done == {"layer 1"}


def test_a_line_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    with workshop_for(tmp_path / "out", "plan") as workshop:
        workshop.note(["layer 3", "layer 12"])
        journal = workshop.folder / "done"
        journal.write_bytes(journal.read_bytes()[:-2])
    with workshop_for(tmp_path / "out", "plan") as workshop:
        assert workshop.done == {"layer 3"}
        workshop.note(["layer 2"])
    with workshop_for(tmp_path / "out", "plan") as workshop:
        assert workshop.done == {"layer 3", "layer 2"}


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs, path = {"x": TensorSpec((4,), torch.float32)}, tmp_path / "rank0.safetensors"
    file = RankFile(path, specs)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call, work in (("pwrite", lambda: file.write("x", torch.ones(4))), ("fsync", file.flush)):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(OSError, match="No space left") as refused:
                work()
        assert refused.value.filename == str(path)
    file.write("x", torch.ones(4))
    file.close()
    assert torch.equal(load_file(path)["x"], torch.ones(4))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_while_tensors_are_written() -> None:
    with pytest.raises(OSError, match="No space left") as refused:
        write_tensors(Path("/dev/full"), {"x": (1 << 16,)}, torch.float32, lambda *_: torch.zeros(1 << 16))
    assert refused.value.filename == "/dev/full"
