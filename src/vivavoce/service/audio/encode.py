"""Encodes speech while it is made: samples in, the bytes of one growing file out."""

from __future__ import annotations

from typing import Protocol

from vivavoce.errors import InvalidRequest
from vivavoce.service.audio.encode_plain import PlainEncoder
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.types import Samples

MIN_BITRATE, MAX_BITRATE = 16_000, 160_000
"""Bits per second for mono speech; 160 kbit/s is the most that MP3 allows at 24 kHz."""


class Encoder(Protocol):
    """One stream's encoder. The bytes of all `encode` calls and of `finish`, in order, are one valid file.

    How the samples are cut into calls changes nothing that can be heard. For one thread at a time.
    """

    def encode(self, samples: Samples) -> bytes:
        """Take mono samples [n], n >= 0, float32, ±1 full scale; return all bytes that can be made of them now.

        The file's header comes with the first bytes; those of wav and flac with the first call, samples or not.

        Raises:
            ValueError: samples are not [n], a sample is NaN, or the encoder is finished or closed.
        """

    def finish(self) -> bytes:
        """Return the rest of the file. Nothing can be encoded after it.

        Raises:
            ValueError: the encoder is finished or closed.
        """

    def whole_header(self) -> bytes:
        """What the first bytes of the file are to be once its length is known, after `finish`.

        For files that can be written to at their start (wav, flac); empty if there is nothing to put right.
        """

    def close(self) -> None:
        """Free the codec, finished or not. Closing twice is allowed."""


def open_encoder(format: AudioFormat, sample_rate: int, *, bitrate: int | None = None) -> Encoder:
    """Open an encoder of mono speech at `sample_rate` (hertz).

    All formats encode the 16-bit samples of `pcm.to_int16`. `delay` is the most samples that were given and
    cannot be decoded yet from the bytes so far, at 24 kHz; `lead` is what a decoder puts before the first sample.

    ======  =====================  ================  ========  =============  ====================
    format  codec                  bitrate           delay     lead           no samples at all
    ======  =====================  ================  ========  =============  ====================
    pcm     16-bit integers        --                0         0              nothing
    wav     16-bit integers        --                0         0              a header: empty file
    flac    blocks of 20 ms        --                20 ms     0              a header: empty file
    opus    packets of 20 ms       48 kbit/s (VBR)   26.5 ms   0 (cut off)    nothing
    mp3     frames of 576 samples  64 kbit/s (CBR)   94 ms     1105 samples   nothing
    aac     frames of 1024         64 kbit/s (VBR)   128 ms    1024 samples   nothing
    ======  =====================  ================  ========  =============  ====================

    MP3 and ADTS cannot say where the first and the last sample lie, so the lead, and up to two frames of silence
    at the end, are heard. Opus, MP3 and AAC know certain rates only: speech of another rate is resampled to the next
    higher one, which takes another millisecond; what is shorter than that may stay empty.
    An open FLAC encoder holds 6.5 MB, the others below 0.5 MB.

    Raises:
        InvalidRequest: a bitrate outside 16000–160000 bit/s, or one for a format that has none.
        MissingDependency: this build of PyAV lacks the codec.
    """
    if format in (AudioFormat.PCM, AudioFormat.WAV):
        _refuse_bitrate(format, bitrate)
        return PlainEncoder(sample_rate, with_header=format is AudioFormat.WAV)
    if format is AudioFormat.FLAC:
        _refuse_bitrate(format, bitrate)
    elif bitrate is not None and not MIN_BITRATE <= bitrate <= MAX_BITRATE:
        raise InvalidRequest(
            f"bitrate: {bitrate} bit/s is outside of {MIN_BITRATE} … {MAX_BITRATE}; leave it out for the default"
        )
    from vivavoce.service.audio.encode_av import open_av_encoder

    return open_av_encoder(format, sample_rate, bitrate)


def _refuse_bitrate(format: AudioFormat, bitrate: int | None) -> None:
    if bitrate is not None:
        raise InvalidRequest(f"bitrate: {format.value} is not compressed to one; leave {bitrate} out")
