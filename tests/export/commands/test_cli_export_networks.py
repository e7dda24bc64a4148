"""`vivavoce export jit|onnx|aoti|tensorrt`: files that the backends run, and refusals of one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.cli_harness import Run
from vivavoce_export import network_files

SCRIPT = "flow.decoder.estimator.fp32.cpu.zip"


@pytest.fixture
def folder(babble: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(babble, tmp_path / "model"))


def test_what_was_exported_speaks(run: Run, folder: Path, tmp_path: Path) -> None:
    exported = run(f"export jit --model {folder} --device cpu")
    assert (exported.code, exported.text) == (0, "")
    assert exported.err.startswith(f"{folder / SCRIPT}: ")
    assert "largest difference from PyTorch" in exported.err
    for backend in ("jit", "torch"):
        assert run(f"speak Hello. --model {folder} --flow-backend {backend} -o {tmp_path / backend}.wav").code == 0


def test_what_differs_is_not_kept(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_files, "_opened", lambda *_: lambda *given: torch.zeros_like(given[0]))
    before = sorted(folder.iterdir())
    line = run(f"export jit --model {folder} --device cpu").error
    assert f"{SCRIPT}: differs from PyTorch by 1 of the largest value at 1 × 4, allowed is 0.001; nothing was" in line
    assert sorted(folder.iterdir()) == before
    assert not (folder.parent / "home" / "exports").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("jit --parts estimator,lm", "parts: 'lm' cannot be exported as jit; use some of estimator"),
        ("onnx --parts all", "parts: 'all' cannot be exported as onnx; use some of estimator"),
        ("jit --dtype int8", "dtype: 'int8' is unknown; use fp32 or fp16"),
        ("jit --into nowhere", "out: nowhere is not a folder; create it, or leave --out out"),
        ("tensorrt", "device: 'cuda' is not present"),
    ],
)
def test_refusals(run: Run, folder: Path, arguments: str, says: str) -> None:
    assert says in run(f"export {arguments} --model {folder}").error


def test_cosyvoice_1_is_refused(run: Run, babble_v1: Path) -> None:
    assert "CosyVoice 1's networks are not exported" in run(f"export jit --model {babble_v1} --device cpu").error


def test_a_compiler_is_asked_for(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    line = run(f"export aoti --model {folder} --device cpu").error
    assert "AOTInductor needs a C++ compiler; install g++ or clang++" in line
