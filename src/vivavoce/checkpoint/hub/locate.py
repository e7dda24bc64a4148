"""Where models lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from vivavoce.checkpoint.folder import SUPPORTED
from vivavoce.checkpoint.hub.record import read_record
from vivavoce.checkpoint.hub.registry import KNOWN_MODELS, KnownModel, known_model
from vivavoce.errors import DownloadError, ModelNotFound, UnsupportedModel

HOME_VARIABLE = "VIVAVOCE_HOME"


def models_home() -> Path:
    """The folder of downloaded models: `$VIVAVOCE_HOME/models`, else one in the user's cache."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser() / "models"
    from platformdirs import user_cache_path

    return user_cache_path("vivavoce", appauthor=False) / "models"


def model_folder(model: KnownModel) -> Path:
    """Where `model` is downloaded to unless another folder is named."""
    return models_home() / model.name


def find_model(name_or_path: str | Path) -> Path:
    """The folder of a model: the given folder, or where a known name was downloaded to; no network.

    Raises:
        ModelNotFound: neither a folder nor a known name; the message lists the models that run.
        UnsupportedModel: a known name of a generation that this version cannot run.
        DownloadError: a known name that was not downloaded to its end; the message has the line to type.
    """
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    model = _runnable_model(str(name_or_path))
    folder = model_folder(model)
    record = read_record(folder)
    if record is not None and record.is_whole(folder):
        return folder
    raise DownloadError(
        f"model: {model.name} is not complete in {folder}; type `vivavoce download {model.name}`, or give the "
        "path of a folder that holds it"
    )


def _runnable_model(name: str) -> KnownModel:
    runnable = ", ".join(model.name for model in KNOWN_MODELS.values() if model.generation in SUPPORTED)
    try:
        model = known_model(name)
    except ModelNotFound:
        raise ModelNotFound(
            f"model: {name!r} is neither a folder nor a known model; give a folder or one of {runnable}"
        ) from None
    if model.generation not in SUPPORTED:
        raise UnsupportedModel(
            f"model: {model.name} is of generation {model.generation.value}; this version runs "
            f"{', '.join(generation.value for generation in SUPPORTED)} only, use {runnable}"
        )
    return model
