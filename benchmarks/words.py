"""Measures how far the times of words are from a forced alignment of the same audio.

    python -m benchmarks.words [--model NAME] [--voice NAME …] [--limit NUMBER] [--stream] [--json FILE]

Pocketsphinx (`pip install 'vivavoce[eval]'`) aligns phones on a grid of 10 ms, which gives the start of each word. It
knows the English words of its dictionary. Sentences with other words, or that it cannot align, are left out.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vivavoce
from vivavoce_bench.hardware import machine
from vivavoce_bench.measure import tell

SENTENCES = Path(__file__).parent / "sentences/held_out.txt"
Samples = NDArray[np.float32]


class Aligner:
    """Forced alignment with pocketsphinx's English models."""

    def __init__(self, rate: int) -> None:
        from pocketsphinx import Decoder

        self._decoder = Decoder(lm=None, samprate=rate, nfft=1024, loglevel="FATAL", bestpath=False)

    def knows(self, words: list[str]) -> bool:
        return all(self._decoder.lookup_word(word) for word in words)

    def begins(self, samples: Samples, words: list[str]) -> list[float] | None:
        """Seconds at which each word begins; None: the aligner finds no path."""
        pcm = (np.clip(samples, -1, 1) * 32_000).astype("<i2").tobytes()
        try:
            self._decoder.set_align_text(" ".join(words))
            self._hear(pcm)
            self._decoder.set_alignment()
            self._hear(pcm)
            found = [one for one in self._decoder.get_alignment() if not one.name.startswith("<")]
        except RuntimeError:
            return None
        return [one.start / 100 for one in found] if len(found) == len(words) else None

    def _hear(self, pcm: bytes) -> None:
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()


def measure(engine: vivavoce.Vivavoce, voices: list[str], limit: int, stream: bool) -> dict[str, Any]:
    aligner, errors, estimated, sentences = Aligner(engine.sample_rate), list[float](), 0, 0
    lines = [line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip()]
    audio_s, began = 0.0, time.perf_counter()
    for number, line in enumerate(lines[:limit]):
        words = [re.sub(r"[^a-z']", "", word) for word in line.lower().split()]
        if not all(words) or not aligner.knows(words):
            continue
        voice = voices[number % len(voices)]
        if stream:
            chunks = engine.stream(line, voice, word_times=True, seed=number)
            samples, told = np.concatenate([chunk.samples for chunk in chunks]), chunks.words
        else:
            speech = engine.speak(line, voice, word_times=True, seed=number)
            samples, told = speech.samples, speech.words
        begins = aligner.begins(samples, words)
        if begins is None or len(told) != len(words):
            continue
        sentences, audio_s = sentences + 1, audio_s + len(samples) / engine.sample_rate
        estimated += any(word.estimated for word in told)
        errors += [word.start_s - begin for word, begin in zip(told, begins, strict=True)]
    found = np.array(errors)
    return {
        "sentences": sentences,
        "words": len(found),
        "estimated": estimated,
        "median_abs_ms": round(1000 * float(np.median(abs(found))), 1),
        "p95_abs_ms": round(1000 * float(np.quantile(abs(found), 0.95)), 1),
        "median_ms": round(1000 * float(np.median(found)), 1),
        "audio_s": round(audio_s, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--voice", nargs="+")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with vivavoce.load(asked.model) as engine:
        voices = asked.voice or engine.voices()
        found = {"model": engine.card.name, "voices": voices, "stream": asked.stream, **machine(engine.device)}
        found |= measure(engine, voices, asked.limit, asked.stream)
        heads = engine.engine.text_heads
        found |= {"heads": heads.heads if heads else (), "lag": heads.lag if heads else None}
    tell(found, asked.json)


if __name__ == "__main__":
    main()
