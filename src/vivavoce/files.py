"""Files and folders: atomic replacement, checks of who can write them, locks between processes."""

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
    """Replace `path` when the block ends without an error. private: with mode 0600; sync: flush it to the disk."""
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
    with replacing(path, private=private, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` and its contents if the block ends without an error."""
    final = target.resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{final.name}.") as workshop:
        new, old = Path(workshop) / "new", Path(workshop) / "old"
        new.mkdir()
        yield new
        # Two renames, because not every system can exchange two folders in one step.
        if final.exists():
            os.replace(final, old)
        try:
            os.replace(new, final)
        except BaseException:
            if old.exists():
                os.replace(old, final)
            raise


def untrusted(path: Path, *, any_owner: bool = False) -> str | None:
    """Return why other users can change the file or folder, and how to prevent that; None if they cannot change it.

    Other users are all but root and this process' user; any_owner: any owner is accepted. Write permission for the
    group is accepted, because someone has to grant it on purpose. OSError: the file does not exist.
    """
    found, user = path.stat(), os.geteuid()
    if found.st_mode & stat.S_IWOTH:
        return f"may be written by everyone (mode {stat.S_IMODE(found.st_mode):o}); chmod o-w it"
    if not any_owner and found.st_uid not in (0, user):
        return f"belongs to user {found.st_uid}, but user {user} runs this; chown it to {user}"
    return None


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] | None = None, timeout_s: float = math.inf) -> Iterator[None]:
    """Hold the lock of a folder or a file (created if missing). Only one thread of all processes can hold it.

    on_wait: called once if another thread or process holds the lock, before waiting; its exception ends the attempt.
    Never remove a lock file: another process could then create and lock a second file of this name.

    Raises:
        OSError: the path is a link, or cannot be opened. TimeoutError: another process still holds the lock.
    """
    import fcntl  # exists only on POSIX systems

    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path.name} is a link; remove it")
    kind = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor, until = os.open(path, kind | os.O_NOFOLLOW, 0o600), time.monotonic() + timeout_s
    try:
        while True:
            with suppress(BlockingIOError):  # LOCK_NB, because a blocking call has no time limit
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
