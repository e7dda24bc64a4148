"""Voices on disk: one private safetensors file per voice in one folder."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path

from vivavoce.checkpoint.hub.locate import HOME_VARIABLE
from vivavoce.errors import VoiceStoreError
from vivavoce.service.voices.names import (
    check_voice_name,
    differs_in_case_only,
    is_voice_name,
    same_but_for_case,
    taken_name,
    unknown_voice,
)
from vivavoce.service.voices.stores.private_files import replace_file, writing_alone
from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.summary import StoredSummary
from vivavoce.service.voices.voice import Voice
from vivavoce.service.voices.voice_file import MAX_VOICE_BYTES, decode_voice, encode_voice, read_file_summary

SUFFIX = ".safetensors"


def voices_home() -> Path:
    """The user's own folder of voices: `$VIVAVOCE_HOME/voices`, else one among the user's data."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser() / "voices"
    from platformdirs import user_data_path

    return user_data_path("vivavoce", appauthor=False) / "voices"


class VoiceStore:
    """The voices in one folder, which is made (mode 0700) when the first voice is saved.

    The file `<name>.safetensors` (mode 0600) holds the voice `<name>`: a renamed or copied file is a voice under its
    new name. Several threads and processes may use one folder: a reader finds a whole voice, the old or the new one,
    and of two writers of a new name one gets `VoiceExists`.

    What the file system refuses (no permission, disk full) is a `VoiceStoreError` in every method.
    """

    def __init__(self, folder: Path, *, within: Path | None = None) -> None:
        """within: a folder above; what has to be made between them is private, too."""
        self._folder, self._within = folder, within

    def save(self, voice: Voice, *, replace: bool = False, quota: Quota | None = None) -> None:
        """Store the voice under its name; in place of another of that name if `replace`.

        Raises:
            InvalidRequest: not a possible name, a voice out of the bounds in `bounds.py`, or a full quota.
            VoiceExists: the name is taken, or, even with `replace`, differs from a taken one in case only.
        """
        name = check_voice_name(voice.name)
        data = encode_voice(voice.named(name))
        with self._reporting("written"), writing_alone(self._folder, self._within):
            path = self._path_for(name, replace)
            if quota is not None:
                self._check_quota(quota, path, len(data))
            replace_file(path, data)

    def load(self, name: str) -> Voice:
        """Read a voice from its file.

        Raises:
            InvalidRequest: not a possible name.
            VoiceNotFound: no voice has the name; lists some that there are.
            VoiceStoreError: the file is damaged or no voice.
        """
        with self._reporting("read"):
            path = self._path_of(name)
            try:
                with path.open("rb") as file:
                    data = file.read(MAX_VOICE_BYTES + 1)
            except FileNotFoundError:  # removed by another thread or process just now
                raise unknown_voice(name, self) from None
        stored_as = unicodedata.normalize("NFC", path.name.removesuffix(SUFFIX))
        return decode_voice(data, f"voice: {stored_as!r} in {path.name}").named(stored_as)

    def remove(self, name: str) -> None:
        """Delete a voice's file.

        Raises:
            InvalidRequest: not a possible name.
            VoiceNotFound: no voice has the name.
        """
        with self._reporting("changed"):
            try:
                self._path_of(name).unlink()
            except FileNotFoundError:
                raise unknown_voice(name, self) from None

    def version(self, name: str) -> str | None:
        """Which content the voice's file has now; None if there is no such voice."""
        if not is_voice_name(name):
            return None
        with self._reporting("read"):
            path = self._find(check_voice_name(name))
            try:
                return None if path is None else _version(path.stat())
            except FileNotFoundError:
                return None

    def summaries(self) -> list[StoredSummary]:
        """All voices by name, sorted; of their files the headers are read."""
        return list(self._summaries())

    def names(self) -> list[str]:
        """The names of all voices, sorted; files that hold something else are left out."""
        return list(self)

    def __iter__(self) -> Iterator[str]:
        """The names one by one; a file is opened when its name's turn comes."""
        return (summary.name for summary in self._summaries())

    def __contains__(self, name: object) -> bool:
        """Whether there is a file for that name, as `load` would read it."""
        if not isinstance(name, str) or not is_voice_name(name):
            return False
        with self._reporting("read"):
            return self._find(check_voice_name(name)) is not None

    def state(self) -> str:
        """Tell "ok", or why voices cannot be read or kept; a folder that is not there yet will be made."""
        try:
            self._files()
        except OSError as error:
            return self._problem("read", error)
        if self._folder.exists() and not os.access(self._folder, os.W_OK | os.X_OK):
            return f"voice store: {str(self._folder)!r} is read-only; voices can be neither added nor removed"
        return "ok"

    def _summaries(self) -> Iterator[StoredSummary]:
        with self._reporting("read"):
            files = sorted(self._files().items())
        found = ((name, read_file_summary(self._folder / file)) for name, file in files if is_voice_name(name))
        return (changed(summary, name=name) for name, summary in found if summary is not None)

    def _check_quota(self, quota: Quota, path: Path, size: int) -> None:
        others = {name: file for name, file in self._files().items() if file != path.name}
        sizes = [_size(self._folder / file) for file in others.values()]
        quota.check(len(sizes) + 1, sum(sizes) + size, new=not path.exists())

    def _files(self) -> dict[str, str]:
        """The names of the files that are called like voices, by what they call the voice.

        They are read from the folder, not tried: a file system may fold case, or keep names in normal form D.
        """
        try:
            files = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        return {
            unicodedata.normalize("NFC", file.removesuffix(SUFFIX)): file
            for file in sorted(files)
            if file.endswith(SUFFIX)
        }

    def _find(self, name: str) -> Path | None:
        file = self._files().get(name)
        path = None if file is None else self._folder / file
        return path if path is not None and path.is_file() else None

    def _path_of(self, name: str) -> Path:
        path = self._find(check_voice_name(name))
        if path is None:
            raise unknown_voice(name, self)
        return path

    def _path_for(self, name: str, replace: bool) -> Path:
        files = self._files()
        if name in files:
            if not replace:
                raise taken_name(name)
            return self._folder / files[name]
        twin = next((taken for taken in files if same_but_for_case(taken, name)), None)
        if twin is not None:
            raise differs_in_case_only(name, twin)
        return self._folder / f"{name}{SUFFIX}"

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise VoiceStoreError(self._problem(action, error)) from None

    def _problem(self, action: str, error: OSError) -> str:
        return (
            f"voice store: {str(self._folder)!r} cannot be {action} ({error.strerror}); "
            "check the folder, its permissions and the space left"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removing takes no lock
        return 0


def _version(found: os.stat_result) -> str:
    """Every save makes a new file; the time of its last change cannot be set back."""
    return f"{found.st_ino:x}-{found.st_ctime_ns:x}-{found.st_size:x}"
