"""Files that hold code: loading one runs it with all rights of the program, so only known files are loaded.

TorchScript, compiled packages and TensorRT's engines are programs. The SHA-256 of a file that `vivavoce export` wrote
on this machine is recorded in the user's own folder, beside the downloaded models; a model folder cannot add to it.
"""

from __future__ import annotations

from pathlib import Path

from vivavoce.checkpoint.folder import sha256_of
from vivavoce.checkpoint.known_models import models_home
from vivavoce.errors import CheckpointError


def remember_code(path: Path) -> None:
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
    return models_home().parent / "exports" / sha256_of(path)
