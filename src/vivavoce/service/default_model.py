"""The model that speaks when none is named."""

from __future__ import annotations

from pathlib import Path

from vivavoce.checkpoint.babble import make_babble_checkpoint
from vivavoce.checkpoint.hub.locate import find_model, models_home

BABBLE = "babble-1"
"""Folder of the made checkpoint; the number moves with its layout."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: one that is given or known by name, or the default one, made at first use.

    The default is a small randomly initialised checkpoint: it runs everything that a real one does, and babbles.

    Raises:
        ModelNotFound, DownloadError: see `find_model`.
    """
    if model is not None:
        return find_model(model)
    folder = models_home() / BABBLE
    return folder if folder.is_dir() else make_babble_checkpoint(folder)
