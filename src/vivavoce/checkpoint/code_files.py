"""Files that hold code: who loads one runs it with all rights of the program, so not every one is loaded.

TorchScript, compiled packages and TensorRT's engines are programs. One that `vivavoce export` made here is remembered
by its SHA-256 in the user's own folder, beside the downloaded models, where no model's maker can write.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from vivavoce.checkpoint.known_models import models_home
from vivavoce.errors import CheckpointError


def remember_code(path: Path) -> None:
    """Remember a file that was made here; OSError: the user's folder cannot be written."""
    record = _record(path)
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record.touch(mode=0o600)


def check_code(path: Path, trusted: bool) -> None:
    """Refuse, with CheckpointError, a file that was not made here, unless the user trusts the folder's code."""
    if not trusted and not _record(path).is_file():
        raise CheckpointError(
            f"{path.name} in {path.parent} holds code, which was not exported on this machine and would run with your "
            "rights; make your own with `vivavoce export`, or say --trust-model-code if you trust its maker"
        )


def _record(path: Path) -> Path:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            digest.update(piece)
    return models_home().parent / "exports" / digest.hexdigest()
