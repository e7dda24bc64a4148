"""Writes speech as a file in the format that its name stands for."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from vivavoce.service.audio.encode import open_encoder
from vivavoce.service.audio.files import write_whole
from vivavoce.service.audio.formats import AudioFormat, format_of
from vivavoce.service.audio.types import Samples


def write_audio(path: str | Path, samples: Samples, sample_rate: int) -> None:
    """Write mono `samples` [n], float32, at `sample_rate` (hertz); the whole file or none.

    The suffix chooses the format: .mp3, .opus, .aac, .flac, .wav, .pcm and more; see `formats.format_of`.

    Raises:
        InvalidRequest: the folder of the path is missing, the path is a folder, or it cannot be written.
        MissingDependency: this build of PyAV lacks the codec.
        ValueError: samples are not [n], or NaN.
    """
    write_whole(path, encode_whole(format_of(path), samples, sample_rate))


def encode_whole(format: AudioFormat, samples: Samples, sample_rate: int) -> bytes:
    """The bytes of a whole file, whose header tells the length.

    Raises:
        MissingDependency: this build of PyAV lacks the codec.
        ValueError: samples are not [n], or NaN.
    """
    with closing(open_encoder(format, sample_rate)) as encoder:
        content = encoder.encode(samples) + encoder.finish()
        header = encoder.whole_header()
        return header + content[len(header) :]
