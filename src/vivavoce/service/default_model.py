"""The model that speaks when none is named."""

from __future__ import annotations

import os
from pathlib import Path

from vivavoce.checkpoint.babble import make_babble_checkpoint
from vivavoce.checkpoint.hub.locate import HOME_VARIABLE, find_model, models_home
from vivavoce.errors import CheckpointError

DEFAULT_MODEL = "babble"
"""Its name for users; a folder of that name comes first, as for every model."""
BABBLE = "babble-1"
"""Folder of the made checkpoint; the number moves with its layout."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: one that is given or known by name, or the default one, made at first use.

    The default is a small randomly initialised checkpoint: it runs everything that a real one does, and babbles.

    Raises:
        ModelNotFound, UnsupportedModel, DownloadError: see `find_model`.
        CheckpointError: the default model is damaged, or there is no place to make it.
    """
    if model is not None and (str(model) != DEFAULT_MODEL or Path(model).is_dir()):
        return find_model(model)
    folder = models_home() / BABBLE
    try:
        return make_babble_checkpoint(folder)
    except CheckpointError as error:
        if os.path.lexists(folder):
            raise CheckpointError(
                f"model: {folder} is not the whole default model; remove it, and the next use makes it anew"
            ) from None
        reason = str(error).removeprefix("folder: ").rpartition("; ")[0]
        raise CheckpointError(
            f"model: {reason}; set {HOME_VARIABLE} to a place that can be written, or name a model"
        ) from None
