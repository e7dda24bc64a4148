"""A store of voices in a folder, with a private safetensors file for each voice."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace as changed
from pathlib import Path

from vivavoce.errors import VoiceStoreError
from vivavoce.files import locked, replace_file, untrusted
from vivavoce.frontend.voices.names import PUBLIC, VoiceSummary, folded, is_voice_name
from vivavoce.frontend.voices.stores import Quota, VoiceStore, namespace_id, taken_name
from vivavoce.frontend.voices.voice import MAX_VOICE_BYTES, Voice, decode_voice, read_summary

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"

OWNERS = "owners"
"""Name of the folder with a subfolder for each owner. No voice's file has this name: its name ends in `SUFFIX`."""

FAILURE_TOLD_S = 600.0
"""Seconds for which `state` reports a failed write, unless a later write succeeds."""

_LOCK = ".lock"
_NO_FAILURE = (-math.inf, "")


class FolderStore(VoiceStore):
    """A `VoiceStore` in a folder. A folder is made, with mode 0700, when its first voice is saved; files get mode 0600.

    Public voices lie in the folder itself, an owner's voices in `owners/<SHA-256 of the owner>`. The file
    `<name>.safetensors` contains the voice `<name>`; a renamed or copied file is a voice of its new name. Writes are
    atomic: a reader gets the whole old or new voice, and if two processes add the same name, one process gets
    `VoiceExists`. Symbolic links are read; replacing or removing a link leaves its target unchanged.

    Every method raises `VoiceStoreError` if the file system refuses access (no permission, disk full), if other users
    can change the folder, or if another process keeps the folder's lock. Clients see the error's message, so it does
    not name the folder; the log and the result of `state` name it.
    """

    def __init__(self, folder: Path, *, wait_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        """wait_s: maximum seconds to wait while another process writes into the folder."""
        self._root, self._wait_s, self._clock = folder, wait_s, clock
        self._failure = _NO_FAILURE  # time and reason of the last failed write, until a write succeeds

    def summaries(self, owner: str = PUBLIC) -> Iterator[VoiceSummary]:
        with self._reporting("read"):
            folder = self._folder(owner)
            files = sorted(_files(folder).items())
        for name, file in files:
            summary = _read_summary(folder / file) if is_voice_name(name) else None
            if summary is not None:
                yield changed(summary, name=name, public=owner == PUBLIC)

    def state(self) -> str:
        """Return "ok", or why voices cannot be read or stored. A missing folder is ok, because `save` makes it."""
        try:
            _files(self._folder(PUBLIC))
            disk = os.statvfs(self._root)
        except FileNotFoundError:
            return "ok"
        except OSError as error:
            return self._problem("read", error)
        if not os.access(self._root, os.W_OK | os.X_OK):
            return f"voice store: {str(self._root)!r} is read-only; voices can be neither added nor removed"
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < MAX_VOICE_BYTES:  # 0 blocks: sizes are unknown
            return f"voice store: {str(self._root)!r} has less than {MAX_VOICE_BYTES >> 20} MiB of disk left; make room"
        failed, problem = self._failure
        return problem if self._clock() < failed + FAILURE_TOLD_S else "ok"

    def _load(self, name: str, owner: str) -> Voice | None:
        with self._reporting("read"), suppress(FileNotFoundError):
            path = self._find(name, owner)
            return decode_voice(_read_content(path), f"voice: {name!r} in {path.name}")
        return None

    def _save(
        self, voice: Voice, content: bytes, owner: str, replace: bool, quota: Quota | None, expected: str | None = None
    ) -> bool:
        name = voice.name
        with self._reporting("written"):
            folder = self._folder(owner, make=True)
            with locked(folder / _LOCK, timeout_s=self._wait_s):
                files = _files(folder)
                before = files.pop(name, None)
                if expected is not None and (before is None or _content_version((folder / before).stat()) != expected):
                    return False
                if before is None:
                    for taken in files:
                        if folded(taken) == folded(name):
                            raise taken_name(name, taken)
                elif not replace:
                    raise taken_name(name)
                if quota is not None:
                    if before is None and len(files) + 1 > quota.voices:
                        raise quota.too_many()
                    if sum(_size(folder / file) for file in files.values()) + len(content) > quota.total_bytes:
                        raise quota.too_large()
                replace_file(folder / (before or f"{name}{SUFFIX}"), content, private=True, sync=True)
            self._failure = _NO_FAILURE
        return True

    def _remove(self, name: str, owner: str) -> bool:
        with self._reporting("changed"), suppress(FileNotFoundError):
            self._find(name, owner).unlink()
            self._failure = _NO_FAILURE
            return True
        return False

    def _version(self, name: str, owner: str) -> str | None:
        with self._reporting("read"), suppress(FileNotFoundError):
            return _content_version(self._find(name, owner).stat())
        return None

    def _folder(self, owner: str, *, make: bool = False) -> Path:
        folder = self._root if owner == PUBLIC else self._root / OWNERS / namespace_id(owner)
        return _safe(folder, self._root, make=make)

    def _find(self, name: str, owner: str) -> Path:
        """Return the path of a voice's file. Raises FileNotFoundError if it is missing, or is removed meanwhile."""
        folder = self._folder(owner)
        file = _files(folder).get(name)
        if file is None or not (folder / file).is_file():
            raise FileNotFoundError
        return folder / file

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = self._problem(action, error)
            log.warning("voice store: %(problem)s", {"problem": problem.removeprefix("voice store: ")})
            if action != "read":
                self._failure = self._clock(), problem
            raise VoiceStoreError(problem.replace(repr(str(self._root)), "the folder")) from None

    def _problem(self, action: str, error: OSError) -> str:
        return (
            f"voice store: {str(self._root)!r} cannot be {action} ({error.strerror}); "
            "check the folder, its permissions and the space left"
        )


def _safe(folder: Path, within: Path, *, make: bool = False) -> Path:
    """Return `folder`, created if `make`. Raises OSError if others can write to it or to a parent up to `within`."""
    if folder != within:
        _safe(folder.parent, within, make=make)
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.exists() and (problem := untrusted(folder)):
        raise PermissionError(errno.EPERM, f"{folder.name} {problem}")
    return folder


def _read_content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_VOICE_BYTES + 1)


def _read_summary(path: Path) -> VoiceSummary | None:
    with suppress(OSError):
        if path.is_file():  # opening a pipe would block
            with path.open("rb") as file:
                return read_summary(file)
    return None


def _content_version(found: os.stat_result) -> str:
    """Return a version string of inode, change time and size. It differs after each save: programs cannot set a change
    time."""
    return f"{found.st_ino:x}-{found.st_ctime_ns:x}-{found.st_size:x}"


def _files(folder: Path) -> dict[str, str]:
    """Return the voices in a folder, as a mapping from voice name to file name.

    Find a voice by this list, not by opening its name: a file system may ignore case, or store names in NFD."""
    with suppress(FileNotFoundError):
        files = sorted(file for file in os.listdir(folder) if file.endswith(SUFFIX))
        return {unicodedata.normalize("NFC", file.removesuffix(SUFFIX)): file for file in files}
    return {}


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # another process may remove the file, since `_remove` takes no lock
        return path.stat().st_size
    return 0
