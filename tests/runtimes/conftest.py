"""Folders with exported estimators, each made once by the command that users have."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CPU
from vivavoce.models.build import Models, build_models
from vivavoce_export.network_files import export_part, part_of

ONNX_MISSING = importlib.util.find_spec("onnxscript") is None

FolderOf = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def records(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where exports of this session are remembered."""
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("VIVAVOCE_HOME", str(home))
    return home / "exports"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, babble: Path, babble_v3: Path) -> FolderOf:
    """Kind and generation → a copy of the folder with the estimator's file, and of "jit+encoder" with both files."""
    folders: dict[tuple[str, str], Path] = {}

    def folder_of(kind: str, generation: str) -> Path:
        if (kind, generation) == ("jit+encoder", "v3"):
            pytest.skip("CosyVoice3 has no encoder of its own")
        if kind == "onnx" and ONNX_MISSING:
            pytest.skip("the package onnxscript is not here: pip install 'vivavoce[onnx]'")
        if (kind, generation) not in folders:
            folder = tmp_path_factory.mktemp("exported") / f"{kind}-{generation}"
            shutil.copytree(babble if generation == "v2" else babble_v3, folder)
            models, (kind_of_file, *encoder) = build_models(folder, CPU), kind.split("+")
            for part in ("estimator", *encoder):
                export_part(part_of(models, part), kind_of_file, folder)
            folders[kind, generation] = folder
        return folders[kind, generation]

    return folder_of


@pytest.fixture
def models_of(exported: FolderOf) -> Callable[[str, str], Models]:
    """Kind and generation → the models of such a folder."""
    return lambda kind, generation: build_models(exported(kind, generation), CPU)
