"""Attacks on the watermark: changes of speech, such as compression, a telephone, changes of speed, noise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from fractions import Fraction

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.encode import AudioFormat, encode_whole, open_encoder

Samples = NDArray[np.float32]
Attack = Callable[[Samples, int, np.random.Generator], tuple[Samples, int]]
"""(samples [n], sample rate in Hz, random generator) → (samples, sample rate in Hz)."""


def unchanged(samples: Samples, rate: int, chance: np.random.Generator) -> tuple[Samples, int]:
    """Leave the speech as it is."""
    return samples, rate


def compressed(format: AudioFormat, bitrate: int) -> Attack:
    """Encode and decode; bitrate: bits per second."""

    def attack(samples: Samples, rate: int, chance: np.random.Generator) -> tuple[Samples, int]:
        with closing(open_encoder(format, rate, bitrate=bitrate)) as encoder:
            audio = decode_audio(encoder.encode(samples) + encoder.finish())
        return audio.samples, audio.sample_rate

    return attack


def telephone(samples: Samples, rate: int, chance: np.random.Generator) -> tuple[Samples, int]:
    """Encode and decode as a telephone does: µ-law at 8 kHz (G.711)."""
    code = ~np.frombuffer(encode_whole(AudioFormat.ULAW, samples, rate), np.uint8)
    sizes = ((((code & 15).astype(np.int32) << 3) + 132) << ((code >> 4) & 7).astype(np.int32)) - 132
    return (np.where(code & 128, -sizes, sizes) / 32768).astype(np.float32), 8_000


def resampled(speed: float) -> Attack:
    """Play the speech faster or slower, which changes the pitch, too."""
    return lambda samples, rate, chance: (soxr.resample(samples, rate * speed, rate), rate)


def stretched(speed: float) -> Attack:
    """Change the tempo by FFmpeg's `atempo`, which keeps the pitch."""

    def attack(samples: Samples, rate: int, chance: np.random.Generator) -> tuple[Samples, int]:
        graph = av.filter.Graph()
        source = graph.add_abuffer(format="flt", sample_rate=rate, layout="mono", time_base=Fraction(1, rate))
        graph.link_nodes(source, graph.add("atempo", str(speed)), graph.add("abuffersink")).configure()
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None]), format="flt", layout="mono")
        frame.sample_rate = rate
        graph.push(frame)
        graph.push(None)
        blocks = []
        while True:
            try:
                blocks.append(graph.pull().to_ndarray()[0])
            except (EOFError, av.BlockingIOError):
                return np.concatenate(blocks), rate

    return attack


def quieter(samples: Samples, rate: int, chance: np.random.Generator) -> tuple[Samples, int]:
    """Lower the volume by 0 to 20 dB."""
    return samples * np.float32(10 ** (-chance.uniform(0, 20) / 20)), rate


def noisy(snr_db: float) -> Attack:
    """Add white noise this far below the speech."""

    def attack(samples: Samples, rate: int, chance: np.random.Generator) -> tuple[Samples, int]:
        level = np.sqrt(np.mean(np.square(samples))) * 10 ** (-snr_db / 20)
        return (samples + level * chance.standard_normal(len(samples))).astype(np.float32), rate

    return attack


ATTACKS: dict[str, Attack] = {
    "none": unchanged,
    "mp3 64 kbit/s": compressed(AudioFormat.MP3, 64_000),
    "opus 24 kbit/s": compressed(AudioFormat.OPUS, 24_000),
    "µ-law 8 kHz": telephone,
    "speed +5 %": resampled(1.05),
    "speed −5 %": resampled(0.95),
    "tempo +5 %": stretched(1.05),
    "tempo −5 %": stretched(0.95),
    "volume": quieter,
    "noise 30 dB": noisy(30),
}
"""Attacks that the mark must survive."""
HARDER: dict[str, Attack] = {
    "noise 20 dB": noisy(20),
    "opus 16 kbit/s": compressed(AudioFormat.OPUS, 16_000),
    "aac 32 kbit/s": compressed(AudioFormat.AAC, 32_000),
}
"""Stronger attacks, which show the mark's limits."""
