"""Where audio goes: a file or standard output; found out to be writable before any model loads."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vivavoce.doors.cli.console import is_terminal
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vivavoce.service.audio.formats import AudioFormat
    from vivavoce.service.synthesizer import Speech

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    """The value of `--out`."""

    target: str

    @property
    def label(self) -> str:
        """What reports call it."""
        return "stdout" if self.target == STDOUT else self.target

    def check(self) -> None:
        """Refuse a place that cannot be written; what lies there is not touched.

        Raises:
            InvalidRequest: a folder, a place without permission, or a terminal.
        """
        if self.target != STDOUT:
            with self._explaining():
                check_writable(Path(self.target))
        elif sys.stdout is None or is_terminal(sys.stdout):
            raise InvalidRequest(
                "output: stdout is neither a file nor a pipe; "
                "add `| ffplay -nodisp -autoexit -`, or name a file with --out"
            )

    @property
    def format(self) -> AudioFormat:
        """What the file's suffix stands for; WAV for every other name, and for standard output."""
        from vivavoce.service.audio.formats import format_of

        return format_of(self.target)

    def write(self, speech: Speech) -> None:
        """Write a finished speech; InvalidRequest if the place cannot be written after all."""
        from vivavoce.service.audio.encode_file import encode_whole, write_audio

        if self.target != STDOUT:
            write_audio(self.target, speech.samples, speech.sample_rate)
            return
        with self._explaining():
            sys.stdout.buffer.write(encode_whole(self.format, speech.samples, speech.sample_rate))
            sys.stdout.buffer.flush()

    @contextmanager
    def stream(self, sample_rate: int) -> Iterator[Callable[[NDArray[np.float32]], None]]:
        """Yield what takes samples [n], encodes them and passes them on at once.

        A file is whole in the end, with its length in the header, even if the speech is broken off.
        """
        from vivavoce.service.audio.encode import open_encoder

        with closing(open_encoder(self.format, sample_rate)) as encoder, self._opened() as file:

            def put(data: bytes) -> None:
                with self._explaining():
                    file.write(data)
                    file.flush()

            try:
                yield lambda samples: put(encoder.encode(samples))
            finally:
                put(encoder.finish())
                header = encoder.whole_header()
                if header and self.target != STDOUT and file.seekable():
                    with self._explaining():  # seeking writes what a full disk did not take before
                        file.seek(0)
                    put(header)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.target == STDOUT:
            yield sys.stdout.buffer
            return
        with self._explaining():
            file = open(self.target, "wb")  # noqa: SIM115  (an error of the opening is explained, others are not)
        try:
            yield file
        finally:
            with self._explaining():  # so does closing
                file.close()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InvalidRequest(
                f"output: {self.label!r} cannot be written ({error.strerror}); choose another place"
            ) from None


def check_writable(path: Path, *, field: str = "output") -> None:
    """Try whether a file can be written at `path`, without touching what is there; errors name `field`.

    Raises:
        InvalidRequest: the path is a folder, its folder does not exist, or the file is write-protected.
        OSError: the system refuses.
    """
    if path.is_dir():
        raise InvalidRequest(f"{field}: {str(path)!r} is a folder; add a file name")
    if path.exists() and not os.access(path, os.W_OK):
        raise InvalidRequest(f"{field}: {str(path)!r} is write-protected; choose another path")
    if path.exists() and not path.is_file():
        return  # a device or a pipe: opening it could wait for a reader
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InvalidRequest(f"{field}: folder {str(folder)!r} does not exist; create it or choose another path")
    # Permissions do not tell everything (read-only mounts, quotas, the superuser): only a file does.
    probe = folder / f".{secrets.token_hex(8)}.part"
    probe.touch(exist_ok=False)
    probe.unlink()
