"""Copies of one namespace's voices on this machine's disk, for the time when their server is away."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from vivavoce.service.voices.names import folded
from vivavoce.service.voices.stores.private_files import replace_file, writing_alone
from vivavoce.service.voices.summary import StoredSummary
from vivavoce.service.voices.voice_file import MAX_VOICE_BYTES, read_file_summary, read_summary

SUFFIX = ".safetensors"

_INDEX = ".names"
_Result = TypeVar("_Result")


class LocalCopy:
    """A folder (mode 0700) of voices' bytes (mode 0600), and of an index: which names the server had.

    The files are called by the SHA-256 of the name without its case. Nothing here raises `OSError`: a disk that
    refuses takes nothing from a server that answers; `problem` says so. Safe between threads and processes.
    """

    def __init__(self, folder: Path | None, within: Path | None = None) -> None:
        """folder: None keeps nothing; within: a folder above, from which on all is private."""
        self._folder, self._within = folder, within
        self.problem: str | None = None
        """Why the last write failed."""

    def read(self, name: str) -> bytes | None:
        """The bytes of the voice; None if there is no copy."""

        def read(folder: Path) -> bytes:
            with (folder / _file(name)).open("rb") as file:
                return file.read(MAX_VOICE_BYTES + 1)

        return self._reading(read)

    def version(self, name: str) -> str | None:
        """Which content the copy has; None if there is none, or if it is of a name that differs in case."""

        def find(folder: Path) -> str | None:
            with (folder / _file(name)).open("rb") as file:
                found, summary = os.fstat(file.fileno()), read_summary(file)
            if summary is None or summary.name != name:
                return None
            return f"copy-{found.st_ino:x}-{found.st_ctime_ns:x}-{found.st_size:x}"

        return self._reading(find)

    def lists(self, name: str) -> bool:
        """Whether the server had the name when it last told all of them; there may be no copy of it."""

        def look(folder: Path) -> bool:
            return name in json.loads((folder / _INDEX).read_text(encoding="utf-8"))

        return self._reading(look) or False

    def summaries(self) -> list[StoredSummary] | None:
        """What there are copies of, sorted by name; None if the server has never told its names."""

        def look(folder: Path) -> list[StoredSummary] | None:
            if not (folder / _INDEX).exists():
                return None
            found = (read_file_summary(path) for path in folder.glob(f"*{SUFFIX}"))
            return sorted((summary for summary in found if summary is not None), key=lambda summary: summary.name)

        return self._reading(look)

    def put(self, name: str, data: bytes) -> None:
        """Keep a copy, in place of an earlier one."""
        self._writing(lambda folder: replace_file(folder / _file(name), data))

    def drop(self, name: str) -> None:
        """Keep no copy of the voice."""
        self._writing(lambda folder: (folder / _file(name)).unlink(missing_ok=True))

    def keep_only(self, names: Iterable[str]) -> None:
        """The server has these names and no others: copies of others are deleted."""
        listed = sorted(names)
        files = {_file(name) for name in listed}

        def write(folder: Path) -> None:
            for path in folder.glob(f"*{SUFFIX}"):
                if path.name not in files:
                    path.unlink(missing_ok=True)
            replace_file(folder / _INDEX, json.dumps(listed, ensure_ascii=False).encode())

        self._writing(write)

    def _reading(self, read: Callable[[Path], _Result]) -> _Result | None:
        try:
            return None if self._folder is None else read(self._folder)
        except (OSError, ValueError):
            return None

    def _writing(self, write: Callable[[Path], None]) -> None:
        if self._folder is None:
            return
        try:
            with writing_alone(self._folder, self._within):
                write(self._folder)
        except OSError as error:
            self.problem = f"the local copy in {str(self._folder)!r} cannot be written ({error.strerror})"
        else:
            self.problem = None


def _file(name: str) -> str:
    return hashlib.sha256(folded(name).encode()).hexdigest() + SUFFIX
