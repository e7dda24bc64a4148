"""The models that the program brings along: the one that speaks when none is named, and one that babbles."""

from __future__ import annotations

import os
from pathlib import Path

from vivavoce.checkpoint.babble import make_babble_checkpoint
from vivavoce.checkpoint.hub.locate import HOME_VARIABLE, find_model, models_home
from vivavoce.errors import CheckpointError

DEFAULT_MODEL = "mini"
"""A small demo model inside the package; a folder of that name comes first, as for every model."""
MINI = Path(__file__).parents[1] / "data" / "mini"
UNTRAINED_MODEL = "babble"
"""Random weights of a tiny size, to try everything that does not need speech."""
BABBLE = "babble-1"
"""Its folder among the downloaded models, made at first use; the number moves with its layout."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: one that is given or known by name, or one of the program's own.

    Raises:
        ModelNotFound, UnsupportedModel, DownloadError: see `find_model`.
        CheckpointError: the program's own model is damaged, or there is no place to make it.
    """
    if model is None:
        return MINI
    if Path(model).is_dir():
        return find_model(model)
    own = {DEFAULT_MODEL: lambda: MINI, UNTRAINED_MODEL: _babble}.get(str(model))
    return own() if own else find_model(model)


def _babble() -> Path:
    folder = models_home() / BABBLE
    try:
        return make_babble_checkpoint(folder)
    except CheckpointError as error:
        if os.path.lexists(folder):
            raise CheckpointError(
                f"model: {folder} is not the whole model {UNTRAINED_MODEL}; remove it, and the next use makes it anew"
            ) from None
        reason = str(error).removeprefix("folder: ").rpartition("; ")[0]
        raise CheckpointError(
            f"model: {reason}; set {HOME_VARIABLE} to a place that can be written, or name a model"
        ) from None
