"""What is heard in a file that a client wrote: its rate, how long and loud it is, and whether the words are right."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import av
import numpy as np

from vivavoce_bench.evaluate import PocketSphinx, Recogniser, word_errors
from vivavoce_bench.evaluate.error_rate import words
from vivavoce_bench.evaluate.recogniser import as_floats, prepare

SENTENCES = (
    (Path(__file__).parents[3] / "benchmarks" / "sentences" / "held_out.txt").read_text(encoding="utf-8").splitlines()
)[:16]
"""What the recogniser knows."""
TEXT, VOICE = SENTENCES[4], "calm"
USUAL_S = 2.6
"""How long the small model speaks the text."""
LENGTHS = (0.6, 1.6)
"""Shares of that, from least to most: other seeds, silence of codecs."""
LEVELS = (0.01, 0.4)
"""Root mean squares of speech that is there and does not clip."""
MOST_WRONG_WORDS = 0.3
RAW = {".pcm": "s16le", ".ulaw": "mulaw", ".alaw": "alaw"}
"""Suffixes of audio without a header, with FFmpeg's names."""


@cache
def ears() -> Recogniser:
    return PocketSphinx().closed([words(sentence) for sentence in SENTENCES])


def read_audio(file: Path, rate: int | None) -> tuple[np.ndarray, int]:
    """Mono float32 samples and their rate; rate: of audio without a header."""
    raw = RAW.get(file.suffix)
    options = {} if raw is None else {"sample_rate": str(rate), "ch_layout": "mono"}
    with av.open(str(file), format=raw, options=options) as container:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        pieces = [part.to_ndarray().reshape(-1) for part in (*frames, *resampler.resample(None))]
        return np.concatenate(pieces), container.streams.audio[0].rate


def faults(file: Path, rate: int | None, speed: float, check_words: bool) -> tuple[str, str]:
    """What was heard, and what is wrong with it ("": nothing)."""
    try:
        samples, found = read_audio(file, rate)
    except Exception as error:
        return "", f"no audio of this format ({type(error).__name__}): {file.read_bytes()[:80]!r}"
    seconds, level = len(samples) / found, float(np.sqrt(np.mean(samples**2)))
    heard = f"{seconds:.2f} s, {found} Hz, level {level:.2f}"
    least, most = (share * USUAL_S / speed for share in LENGTHS)
    if rate is not None and found != rate:
        return heard, f"{rate} Hz were asked for"
    if check_words and not least <= seconds <= most:
        return heard, f"its length is not in {least:.1f} … {most:.1f} s"
    if not LEVELS[0] <= level <= LEVELS[1]:
        return heard, f"its level is not in {LEVELS[0]} … {LEVELS[1]}"
    if check_words:
        said = ears().transcribe(as_floats(prepare(samples, found)))
        wrong = word_errors([(TEXT, said)]).rate
        if wrong > MOST_WRONG_WORDS:
            return heard, f"{wrong:.0%} of the words are wrong: {said!r}"
    return heard, ""
