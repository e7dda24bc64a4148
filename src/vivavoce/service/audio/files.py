"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from vivavoce.errors import InvalidRequest


def write_whole(target: str | Path, content: bytes) -> None:
    """Write `content` beside `target` and rename it, so that there is never half a file.

    Devices and pipes are written directly; a link stays a link.

    Raises:
        InvalidRequest: the folder of the path is missing, the path is a folder, or it cannot be written.
    """
    try:
        _write(Path(target), content)
    except OSError as error:
        raise InvalidRequest(
            f"output: {str(target)!r} cannot be written ({error.strerror}); choose another path"
        ) from None


def _write(path: Path, content: bytes) -> None:
    if path.is_dir():
        raise InvalidRequest(f"output: {str(path)!r} is a folder; add a file name such as speech.wav")
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = path.resolve()  # so that a link stays a link
    if not path.parent.is_dir():
        raise InvalidRequest(f"output: folder {str(path.parent)!r} does not exist; create it or choose another path")
    beside = path.with_name(f".{path.name[:32]}.{secrets.token_hex(6)}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
