"""What tells one content of a user's file from another, for the inputs of a stage."""

from __future__ import annotations

from pathlib import Path


def file_facts(path: Path | None) -> list[str | int] | None:
    """The file's absolute path, size in bytes and time of its last change in ns; None: no file is given.

    Raises:
        OSError: the file cannot be found.
    """
    if path is None:
        return None
    found = path.stat()
    # A list, as JSON reads it back: notes are compared with what is found now.
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]
