"""Files that only their user reads, written whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"
_NEW = ".new"
"""Written before it takes a file's place. Voices have no leading dot, so neither is ever taken for one."""


@contextmanager
def writing_alone(folder: Path, within: Path | None = None) -> Iterator[None]:
    """One writer at a time in the folder, in whatever thread or process: each opens the lock file anew.

    The folder is made, with mode 0700, as are those between it and `within`.
    """
    make_private(folder, folder if within is None else within)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def make_private(folder: Path, within: Path) -> None:
    """Make the folder `within`, and those from there down to `folder`, each with mode 0700 unless it is there."""
    if folder != within:
        make_private(folder.parent, within)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file (mode 0600) in one step that survives a power cut; for one writer in the folder at a time."""
    new = path.parent / _NEW
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
