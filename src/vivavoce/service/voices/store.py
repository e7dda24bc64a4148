"""Voices on disk: one private safetensors file per voice in one folder."""

from __future__ import annotations

import fcntl
import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vivavoce.checkpoint.hub.locate import HOME_VARIABLE
from vivavoce.errors import VoiceExists, VoiceStoreError
from vivavoce.service.voices.names import check_voice_name, is_voice_name, same_but_for_case, unknown_voice
from vivavoce.service.voices.voice import Voice
from vivavoce.service.voices.voice_file import MAX_VOICE_BYTES, decode_voice, encode_voice, read_metadata

SUFFIX = ".safetensors"

_LOCK = ".lock"
_NEW = ".new"
"""Written before it takes a voice's place. Voices have no leading dot, so neither file is ever taken for one."""


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

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, voice: Voice, *, replace: bool = False) -> None:
        """Store the voice under its name; in place of another of that name if `replace`.

        Raises:
            InvalidRequest: not a possible name, or a voice out of the bounds in `bounds.py`.
            VoiceExists: the name is taken, or, even with `replace`, differs from a taken one in case only.
        """
        name = check_voice_name(voice.name)
        data = encode_voice(voice.named(name))
        with self._reporting("written"), self._writing_alone():
            self._replace_file(self._path_for(name, replace), data)

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

    def names(self) -> list[str]:
        """The names of all voices, sorted; files that hold something else are left out."""
        return list(self)

    def __iter__(self) -> Iterator[str]:
        """The names one by one; a file is opened when its name's turn comes."""
        with self._reporting("read"):
            files = sorted(self._files().items())
        return (name for name, file in files if is_voice_name(name) and _is_voice_file(self._folder / file))

    def __contains__(self, name: object) -> bool:
        """Whether there is a file for that name, as `load` would read it."""
        if not isinstance(name, str) or not is_voice_name(name):
            return False
        with self._reporting("read"):
            return self._find(check_voice_name(name)) is not None

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
                raise VoiceExists(f"voice: {name!r} is stored already; choose another name, or replace it")
            return self._folder / files[name]
        twin = next((taken for taken in files if same_but_for_case(taken, name)), None)
        if twin is not None:
            raise VoiceExists(f"voice: {name!r} differs from the stored {twin!r} in case only; choose another name")
        return self._folder / f"{name}{SUFFIX}"

    def _replace_file(self, path: Path, data: bytes) -> None:
        new = self._folder / _NEW
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)

    @contextmanager
    def _writing_alone(self) -> Iterator[None]:
        """One writer at a time, in whatever thread or process: each opens the lock file anew."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise VoiceStoreError(
                f"voice store: {str(self._folder)!r} cannot be {action} ({error.strerror}); "
                "check the folder, its permissions and the space left"
            ) from None


def _is_voice_file(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return read_metadata(file) is not None
    except OSError:  # gone by now, or not ours to read
        return False
