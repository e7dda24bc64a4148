"""A tuned checkpoint is the old one with its tuned parts, in one form only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file

from training.finetune.command import pack
from training.weights import load_part, save_part
from vivavoce.checkpoint.names import FLOW_NAMES
from vivavoce.checkpoint.weights import find_part, read_tensors
from vivavoce.models.build import Models, build_models
from vivavoce.models.flow.model import Flow


@pytest.fixture
def checkpoint(babble: Path, tmp_path: Path) -> Path:
    """Babble, its flow as safetensors too, and with what official folders hold besides."""
    folder = tmp_path / "old"
    shutil.copytree(babble, folder)
    save_file(read_tensors(folder / "flow.pt"), folder / "flow.safetensors")
    for other in ("flow.cache.pt", "flow.decoder.estimator.fp32.onnx", "flow.encoder.fp16.zip", "llm.rl.pt"):
        (folder / other).write_bytes(b"of the old weights")
    return folder


@pytest.fixture
def parts(models: Models, tmp_path: Path) -> Path:
    """A flow whose weights are all halved."""
    halved = {name: tensor / 2 for name, tensor in models.flow.state_dict().items()}
    save_part(tmp_path / "parts" / "flow.pt", halved, FLOW_NAMES)
    (tmp_path / "parts" / "flow.state.pt").write_bytes(b"to continue from")
    return tmp_path / "parts"


def test_tuned_parts_replace_all_forms_of_the_old_ones(checkpoint: Path, parts: Path, tmp_path: Path) -> None:
    pack(checkpoint, parts, tmp_path / "new")
    assert find_part(tmp_path / "new", "flow").read_bytes() == (parts / "flow.pt").read_bytes()
    left = {path.name for path in checkpoint.iterdir()} - {path.name for path in (tmp_path / "new").iterdir()}
    assert left == {"flow.safetensors", "flow.cache.pt", "flow.decoder.estimator.fp32.onnx", "flow.encoder.fp16.zip"}
    for same in ("llm.pt", "hift.pt", "llm.rl.pt", "spk2info.pt", "cosyvoice2.yaml", "CosyVoice-BlankEN/vocab.json"):
        assert (tmp_path / "new" / same).read_bytes() == (checkpoint / same).read_bytes()


def test_the_old_checkpoint_stays(checkpoint: Path, parts: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    pack(checkpoint, parts, tmp_path / "new")
    assert before == {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


def test_what_was_packed_is_what_runs(checkpoint: Path, parts: Path, models: Models, tmp_path: Path) -> None:
    pack(checkpoint, parts, tmp_path / "new")
    packed = build_models(tmp_path / "new", torch.device("cpu"))
    for name, tensor in models.flow.state_dict().items():
        torch.testing.assert_close(packed.flow.state_dict()[name], tensor / 2, rtol=1e-3, atol=1e-6)
    again = Flow(models.config.flow)
    load_part(again, tmp_path / "new", "flow", FLOW_NAMES)
    torch.testing.assert_close(again.state_dict(), packed.flow.state_dict())


def test_an_existing_folder_is_refused(checkpoint: Path, parts: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(typer.BadParameter, match="exists already; name a new folder"):
        pack(checkpoint, parts, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_parts_without_any_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"holds none of llm\.pt, flow\.pt, hift\.pt; train one first"):
        pack(checkpoint, tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()
