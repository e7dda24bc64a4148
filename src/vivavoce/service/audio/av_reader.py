"""Opens what libsndfile does not read (m4a, aac, webm, amr, wma, …) with FFmpeg's libraries, through PyAV."""

from __future__ import annotations

import io
from collections.abc import Generator
from typing import Any

from vivavoce.service.audio.track import BrokenTrackError, Track, mix_to_mono
from vivavoce.service.audio.types import Samples

_FORMATS = "aac,ac3,aiff,amr,ape,asf,avi,caf,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
"""Containers that hold their own bytes. Playlists (concat, hls, dash) must stay out: they make FFmpeg open
other files and addresses, so that an upload could read this machine's disk."""

_TRUSTED_LENGTHS = ("mov", "matroska")
"""Containers that store their length; FFmpeg guesses that of the others from the bit rate."""


def open_av(data: bytes) -> Track | None:
    """Open the first audio track of `data`; None if FFmpeg finds no format or no audio in it."""
    import av

    try:
        container: Any = av.open(
            io.BytesIO(data), metadata_errors="replace", container_options={"format_whitelist": _FORMATS}
        )
    except av.FFmpegError:
        return None
    stream = next(iter(container.streams.audio), None)
    if stream is None or stream.codec_context is None or not stream.rate:  # no context: a codec unknown here
        container.close()
        return None
    return Track(stream.rate, _promised_samples(container, stream), _blocks(container, stream))


def _promised_samples(container: Any, stream: Any) -> int | None:
    if not container.format.name.startswith(_TRUSTED_LENGTHS):
        return None
    if stream.duration is not None:
        return round(stream.duration * stream.time_base * stream.rate)
    # The container's length is that of its longest track, so it speaks for the audio only if that is alone.
    if container.duration is not None and len(container.streams) == 1:
        return round(container.duration * stream.rate / 1_000_000)
    return None


def _blocks(container: Any, stream: Any) -> Generator[Samples, None, None]:
    import av

    to_float: Any = av.AudioResampler(format="fltp", rate=stream.rate)
    with container:
        try:
            for frame in container.decode(stream):
                for planar in to_float.resample(frame):
                    yield mix_to_mono(planar.to_ndarray(), axis=0)
        except av.FFmpegError as error:
            raise BrokenTrackError(error.strerror) from None
        except ValueError as error:  # channels or format change on the way
            raise BrokenTrackError(str(error)) from None
