"""Opens what libsndfile reads: wav, flac, mp3, ogg (Vorbis, Opus), aiff, caf and more."""

from __future__ import annotations

import io
from collections.abc import Generator

import soundfile

from vivavoce.service.audio.headers import mp3_has_index, share_present
from vivavoce.service.audio.track import BrokenTrackError, Track, mix_to_mono
from vivavoce.service.audio.types import Samples

_MALFORMED = 3
"""SF_ERR_MALFORMED_FILE: libsndfile knows the format and finds it damaged."""

_BLOCK_VALUES = 1 << 18
_LONGEST = 1 << 48
"""Header lengths above this stand for "unknown" (libsndfile's SF_COUNT_MAX)."""


class _SeekableBytes(io.BytesIO):
    """Bytes in which a seek before the start stays where it is.

    libsndfile tries such seeks in damaged files, and an exception inside its callback is printed to stderr.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move as io.BytesIO does, but never fail."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def open_soundfile(data: bytes) -> Track | None:
    """Open `data`; None if libsndfile does not know the format, or knows it not well enough.

    Raises:
        BrokenTrackError: libsndfile knows the format, but the file is damaged.
    """
    try:
        file = soundfile.SoundFile(_SeekableBytes(data))
    except soundfile.LibsndfileError as error:
        if error.code == _MALFORMED:
            raise BrokenTrackError(error.error_string) from None
        return None
    if file.format == "FLAC" and file.frames > _LONGEST:
        file.close()  # soundfile seeks after each block, which libFLAC refuses in a stream of unknown length
        return None
    return Track(file.samplerate, _promised_samples(file, data), _blocks(file))


def _promised_samples(file: soundfile.SoundFile, data: bytes) -> int | None:
    if file.frames > _LONGEST:
        return None
    if file.subtype.startswith("MPEG") and not mp3_has_index(data):
        return None
    return round(file.frames / share_present(data))


def _blocks(file: soundfile.SoundFile) -> Generator[Samples, None, None]:
    block_frames = max(1, _BLOCK_VALUES // file.channels)
    with file:
        while True:
            try:
                block = file.read(block_frames, dtype="float32", always_2d=True)
            except soundfile.SoundFileError as error:
                raise BrokenTrackError(str(error)) from None
            if not len(block):
                return
            yield mix_to_mono(block, axis=1)
