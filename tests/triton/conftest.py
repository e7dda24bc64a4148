"""The random model's merged vocabulary and language model, and the server: made once, and kept inside .venv."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import DownloadError, MissingDependency
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_export.hf_folder import export_hf
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.server import ServerInstallation, find_installation


@pytest.fixture(scope="session")
def tokenizer(babble: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(babble / BACKBONE)


@pytest.fixture(scope="session")
def vocabulary(tokenizer: TextTokenizer) -> MergedVocabulary:
    return MergedVocabulary(len(tokenizer), 6_561, Generation.V2)


@pytest.fixture(scope="session")
def merged(babble: Path, tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_hf(babble, tmp_path_factory.mktemp("hf") / "merged", tokenizer.to_json()).folder


@pytest.fixture(scope="session")
def installation() -> ServerInstallation:
    """A server that can be started; where it cannot be had, the test is skipped with the reason."""
    folder = os.environ.get("VIVAVOCE_TRITON_ENV") or Path(__file__).parents[2] / ".venv" / "triton"
    try:
        return find_installation(Path(folder))
    except (DownloadError, MissingDependency) as error:
        pytest.skip(str(error))
