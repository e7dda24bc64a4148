"""The models that are exported: babble merged on the fly, and as a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trtllm_goldens import DATA

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_export.hf_folder import Source, export_hf, open_official


@pytest.fixture(scope="module")
def source(babble: Path) -> Source:
    """Babble, merged on the fly."""
    return open_official(babble, len(TextTokenizer.from_folder(babble / BACKBONE)))


@pytest.fixture(scope="session")
def merged(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Babble as a Hugging Face folder, in its own float32."""
    folder = tmp_path_factory.mktemp("hf") / "merged"
    export_hf(babble, folder, TextTokenizer.from_folder(babble / BACKBONE).to_json())
    return folder


@pytest.fixture(scope="session")
def merged_v3(babble_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `merged`, of CosyVoice3."""
    folder = tmp_path_factory.mktemp("hf") / "merged-v3"
    export_hf(babble_v3, folder, TextTokenizer.from_folder(babble_v3 / BACKBONE).to_json())
    return folder


@pytest.fixture
def changed(merged: Path, tmp_path: Path) -> Path:
    """A copy of `merged`, to change."""
    return Path(shutil.copytree(merged, tmp_path / "changed"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Qwen2 folder without speech, to change."""
    return Path(shutil.copytree(DATA / "a_h64" / "hf", tmp_path / "hf", copy_function=shutil.copy))
