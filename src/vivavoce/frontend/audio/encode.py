"""Encodes finished speech into an audio file, or a stream of speech chunk by chunk."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path, PurePath

from vivavoce.errors import InvalidRequest, check_kind
from vivavoce.files import replace_file
from vivavoce.frontend.audio import encoders
from vivavoce.frontend.audio.encoders import Encoder, Resampler
from vivavoce.frontend.audio.samples import Samples
from vivavoce.frontend.audio.tag import AudioTag

SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Output sample rates in hertz."""
MIN_BITRATE, MAX_BITRATE = 16_000, 160_000
"""Allowed bits per second below 32 kHz, for mono speech; MP3 allows at most 160 kbit/s there."""
MAX_BITRATE_ABOVE = 320_000
"""Maximum bits per second for sample rates of 32 kHz and more."""


class AudioFormat(str, Enum):
    """A codec with its container. The value is the name in requests (`response_format`)."""

    MP3 = "mp3"
    OPUS = "opus"  # in Ogg (RFC 7845)
    AAC = "aac"  # AAC-LC in ADTS frames
    FLAC = "flac"  # native (RFC 9639)
    WAV = "wav"
    PCM = "pcm"  # 16-bit little-endian integers without a header
    ULAW = "ulaw"  # G.711 without a header: one byte a sample
    ALAW = "alaw"


_ENCODERS: dict[AudioFormat, type[Encoder]] = {
    AudioFormat.MP3: encoders.Mp3Encoder,
    AudioFormat.OPUS: encoders.OggOpusEncoder,
    AudioFormat.AAC: encoders.AdtsEncoder,
    AudioFormat.FLAC: encoders.FlacEncoder,
    AudioFormat.WAV: encoders.WavEncoder,
    AudioFormat.PCM: Encoder,
    AudioFormat.ULAW: encoders.UlawEncoder,
    AudioFormat.ALAW: encoders.AlawEncoder,
}
_BARE = {AudioFormat.PCM: "pcm", AudioFormat.ULAW: "PCMU", AudioFormat.ALAW: "PCMA"}
"""Formats without a header, and their media subtypes."""


@dataclass(frozen=True)
class OutputFormat:
    """Format of the audio that a listener receives. Raises InvalidRequest if its sample rate or bitrate is not allowed.

    sample_rate: hertz, one of `SAMPLE_RATES`; None means the speech's own rate, but 8000 for ulaw and alaw, as
    telephones need. bitrate: bits per second; None means the codec's default. gain: factor that multiplies all samples.
    """

    codec: AudioFormat
    sample_rate: int | None = None
    bitrate: int | None = None
    gain: float = 1.0

    def __post_init__(self) -> None:
        codec, rate, bitrate = self.codec.value, self.sample_rate, self.bitrate
        if rate is not None and not (isinstance(rate, int) and rate in SAMPLE_RATES):
            known = ", ".join(map(str, SAMPLE_RATES))
            raise InvalidRequest(f"sample_rate: {rate!r} Hz is not supported; choose one of {known}")
        if bitrate is None:
            return
        if _ENCODERS[self.codec].default_bitrate is None:
            raise InvalidRequest(f"bitrate: {codec} has no bitrate; leave {bitrate} out")
        largest = MAX_BITRATE if rate is None or rate < 32_000 else MAX_BITRATE_ABOVE
        if not MIN_BITRATE <= bitrate <= largest:
            raise InvalidRequest(
                f"bitrate: {bitrate} bit/s is outside of {MIN_BITRATE} … {largest}; leave it out for the default"
            )

    def rate_of(self, speech_rate: int) -> int:
        """Return the output's sample rate in hertz; speech_rate: the sample rate of the speech."""
        if self.sample_rate is None and self.codec in (AudioFormat.ULAW, AudioFormat.ALAW):
            return 8_000
        return self.sample_rate or speech_rate

    def content_type(self, speech_rate: int) -> str:
        """Return the HTTP Content-Type of mono audio; it has the sample rate only for formats without a header."""
        if self.codec in _BARE:
            return f"audio/{_BARE[self.codec]}; rate={self.rate_of(speech_rate)}; channels=1"
        return "audio/" + {AudioFormat.MP3: "mpeg", AudioFormat.OPUS: "ogg"}.get(self.codec, self.codec.value)

    def open(self, speech_rate: int, tag: AudioTag | None = None) -> Encoder:
        rate = self.rate_of(speech_rate)
        encoder = _ENCODERS[self.codec](rate, self.bitrate, tag)
        encoder.gain = self.gain
        if rate != speech_rate:
            encoder.resampler = Resampler(speech_rate, rate)
        return encoder


_THREADS = ThreadPoolExecutor(4, thread_name_prefix="encoder")
"""Four threads that encode for all streams. They run in parallel, because FFmpeg releases the GIL."""


async def encode(encoder: Encoder, samples: Samples | None) -> bytes:
    """Encode samples [n], or finish the file if `samples` is None. Slow encoders such as mp3 run in a thread."""
    work = encoder.finish if samples is None else partial(encoder.encode, samples)
    return work() if encoder.is_instant else await asyncio.get_running_loop().run_in_executor(_THREADS, work)


_SUFFIXES = {f".{format.value}": format for format in AudioFormat} | {
    ".oga": AudioFormat.OPUS,
    ".ogg": AudioFormat.OPUS,
    ".raw": AudioFormat.PCM,
}


def parse_format(name: str, sample_rate: int | None = None, field: str = "response_format") -> OutputFormat:
    """Return the output format of this name and sample rate. Raises InvalidRequest if one of them is unknown."""
    try:
        return OutputFormat(AudioFormat(name), sample_rate)
    except ValueError:
        known = ", ".join(format.value for format in AudioFormat)
        raise InvalidRequest(f"{field}: {name!r} is unknown; choose one of {known}") from None


def format_of(path: str | os.PathLike[str]) -> AudioFormat:
    """Return the format for the suffix of `path` in any letter case; WAV if it has no suffix, such as a device.

    Raises InvalidRequest if the suffix names no supported format, or `path` is not a path."""
    check_kind("output", path, str | os.PathLike, "give the name of a file, such as speech.wav")
    suffix = PurePath(path).suffix.lower()
    if suffix and suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise InvalidRequest(f"output: {suffix!r} cannot be written; end the name with one of {known}")
    return _SUFFIXES.get(suffix, AudioFormat.WAV)


def open_encoder(
    format: AudioFormat,
    sample_rate: int,
    *,
    to_rate: int | None = None,
    bitrate: int | None = None,
    tag: AudioTag | None = None,
) -> Encoder:
    """Open an encoder for mono speech at `sample_rate` (hertz). to_rate: resample the speech to this rate first.

    All formats encode the 16-bit samples of `to_int16`. In the table, `delay` is the audio at 24 kHz that an encoder
    may hold back; `lead` is the number of additional samples that a decoder produces before the first sample.

    ======  =====================  ================  ========  =============  ====================
    format  codec                  bitrate           delay     lead           no samples at all
    ======  =====================  ================  ========  =============  ====================
    pcm     16-bit integers        --                0         0              nothing
    wav     16-bit integers        --                0         0              a header: empty file
    flac    blocks of 20 ms        --                20 ms     0              a header: empty file
    opus    packets of 20 ms       48 kbit/s (VBR)   26.5 ms   0 (cut off)    nothing
    mp3     frames of 576 samples  64 kbit/s (CBR)   94 ms     1105 samples   nothing
    aac     frames of 1024         64 kbit/s (VBR)   128 ms    1024 samples   nothing
    ulaw    8 bits at 8 kHz        --                11 ms     0              nothing
    alaw    8 bits at 8 kHz        --                11 ms     0              nothing
    ======  =====================  ================  ========  =============  ====================

    MP3 and ADTS files cannot mark the first and last sample, so players play the lead and up to two frames of silence
    at the end. Opus, MP3 and AAC support only certain rates: other speech is resampled to the next higher rate, which
    adds 1 ms of delay; shorter audio may give an empty file. `to_rate` adds 6 to 11 ms of delay. An open FLAC encoder
    takes 6.5 MB of memory, the others less than 0.5 MB. A tag is written before the audio: in a LIST chunk (wav), in
    Vorbis comments (flac, opus) or in ID3 (mp3, aac); the other formats cannot store a tag.

    Raises:
        InvalidRequest: a rate not in `SAMPLE_RATES`, a bitrate outside 16000–160000 bit/s (320000 from 32 kHz on), or a
            bitrate for a format without one.
        MissingDependency: this build of PyAV lacks the codec.
    """
    return OutputFormat(format, to_rate, bitrate).open(sample_rate, tag)


def encode_whole(
    format: AudioFormat, samples: Samples, sample_rate: int, to_rate: int | None = None, tag: AudioTag | None = None
) -> bytes:
    """Return the bytes of a whole file, with its length in the header. Raises as `open_encoder` and `Encoder.encode`.

    samples: [n] float32 at `sample_rate` (hertz). to_rate: the sample rate in the file, if it differs."""
    with closing(open_encoder(format, sample_rate, to_rate=to_rate, tag=tag)) as encoder:
        content = encoder.encode(samples) + encoder.finish()
        header = encoder.whole_header()
        return header + content[len(header) :]


def write_audio(
    target: str | Path, samples: Samples, sample_rate: int, to_rate: int | None = None, tag: AudioTag | None = None
) -> None:
    """Write mono `samples` [n], float32, at `sample_rate` (hertz) to a file. to_rate: the sample rate in the file.

    The path's suffix chooses the format (see `format_of`). A regular file is replaced atomically, also if `target` is a
    symbolic link to the file; devices and pipes are written directly.

    Raises:
        InvalidRequest: the rate or suffix is unknown, the folder is missing, or the path is a folder or not writable.
        MissingDependency: this build of PyAV lacks the codec.
        ValueError: samples have a shape other than [n], or contain NaN.
    """
    content = encode_whole(format_of(target), samples, sample_rate, to_rate, tag)
    path = Path(target)
    try:
        if path.is_dir():
            raise InvalidRequest(f"output: {str(path)!r} is a folder; add a file name such as speech.wav")
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        path = path.resolve()
        if not path.parent.is_dir():
            raise InvalidRequest(
                f"output: folder {str(path.parent)!r} does not exist; create it or choose another path"
            )
        replace_file(path, content)
    except OSError as error:
        raise InvalidRequest(
            f"output: {str(target)!r} cannot be written ({error.strerror}); choose another path"
        ) from None
