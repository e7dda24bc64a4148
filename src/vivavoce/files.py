"""Files and folders that are replaced in one step, and locks between processes."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, private: bool = False, sync: bool = False) -> Iterator[BinaryIO]:
    """Open a new file beside `path` that takes its place when the block ends; after an error nothing is left of it.

    private: only the file's owner may read it (mode 0600). sync: the content survives a power cut.

    Raises:
        OSError: the place cannot be written; the file before stays.
    """
    new = path.with_name(f".{path.name[:32]}.{secrets.token_hex(6)}.part")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(new, flags, 0o600 if private else 0o666), "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes | str, *, private: bool = False, sync: bool = False) -> None:
    """Write a whole file (text as UTF-8) or nothing; see `replacing`."""
    with replacing(path, private=private, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """An empty folder that replaces `target` and all that is in it when the block ends without an error."""
    place = target.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as workshop:
        new, old = Path(workshop) / "new", Path(workshop) / "old"
        new.mkdir()
        yield new
        # Two renames, as no single one exchanges folders everywhere.
        if place.exists():
            os.replace(place, old)
        try:
            os.replace(new, place)
        except BaseException:
            if old.exists():
                os.replace(old, place)
            raise


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a folder, or of a file that is made if it is missing; one thread of one process at a time.

    on_wait: called before waiting for another holder; what it raises ends the attempt. A lock file must stay where it
    is: a removed one could be locked twice.

    Raises:
        OSError: the path cannot be opened.
    """
    import fcntl  # POSIX only, while `replacing` works everywhere

    descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
