"""Files and folders: replaced in one step, safe from strangers, locked between processes."""

from __future__ import annotations

import errno
import math
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def untrusted(path: Path, *, any_owner: bool = False) -> str | None:
    """Why strangers can change the file or folder, and the way out; None: they cannot. OSError: it is not there.

    Strangers are all users, and without `any_owner` an owner who is neither root nor this process' user. A group is
    none: who lets it write has chosen it.
    """
    found, user = path.stat(), os.geteuid()
    if found.st_mode & stat.S_IWOTH:
        return f"may be written by everyone (mode {stat.S_IMODE(found.st_mode):o}); chmod o-w it"
    if not any_owner and found.st_uid not in (0, user):
        return f"belongs to user {found.st_uid}, but user {user} runs this; chown it to {user}"
    return None


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] | None = None, timeout_s: float = math.inf) -> Iterator[None]:
    """Hold the lock of a folder, or of a file that is made if it is missing; one thread of one process at a time.

    on_wait: called before waiting for another holder; what it raises ends the attempt. A lock file must stay where it
    is: a removed one could be locked twice.

    Raises:
        OSError: the path is a link, or cannot be opened. TimeoutError: somebody else still holds the lock.
    """
    import fcntl  # POSIX only, while `replacing` works everywhere

    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path.name} is a link; remove it")
    kind = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor, until = os.open(path, kind | os.O_NOFOLLOW, 0o600), time.monotonic() + timeout_s
    try:
        while True:
            with suppress(BlockingIOError):  # a wait inside of the call could not be given up
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if on_wait is not None:
                on_wait()
                on_wait = None
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has held {path.name} for {timeout_s:g} s")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
