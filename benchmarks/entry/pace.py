"""Pieces of synthetic audio, and the time that is written into each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.chunk_policy import ChunkPolicy

RATE = 24_000
TOKEN = RATE // 25
LETTERS_PER_S = 15
"""Letters of a text that are spoken in a second."""
SENTENCE = "The harbour lay quiet, and the last boats came home before the storm. "
_DIGITS, _BASE = 4, 1 << 15
"""Number of samples that hold a time in microseconds, and the number of values of each sample (15 bits)."""


def text_of(seconds: float) -> str:
    """A text whose speech lasts this long."""
    letters = max(1, round(seconds * LETTERS_PER_S))
    return (SENTENCE * (letters // len(SENTENCE) + 1))[:letters]


def pieces(letters: int) -> list[int]:
    """Number of samples of each piece of a text's speech, which is cut as an engine cuts streams."""
    left, sizes, policy = max(1, letters * RATE // LETTERS_PER_S), list[int](), ChunkPolicy.low_latency()
    while left > 0:
        sizes.append(min(left, policy.next_hop(len(sizes), 0, 0, 0, 0.0) * TOKEN))
        left -= sizes[-1]
    if len(sizes) > 1 and sizes[-1] < TOKEN:  # too short to hold a time
        last = sizes.pop()
        sizes[-1] += last
    return sizes


def stamped(samples: NDArray[np.float32], at_s: float) -> NDArray[np.float32]:
    """A copy whose first samples hold `at_s`, a time of the machine's monotonic clock."""
    micros, marked = int(at_s * 1e6), samples.copy()
    for place in range(_DIGITS):
        marked[place] = micros % _BASE / 32768
        micros //= _BASE
    return marked


def read_stamp(audio: bytes) -> float:
    """The time that `stamped` wrote into the first samples of 16-bit audio."""
    digits = np.frombuffer(audio, "<i2", _DIGITS)
    return sum(int(digit) * _BASE**place for place, digit in enumerate(digits)) / 1e6


@dataclass
class Listening:
    """One speech as its listener receives it.

    first: seconds from the request to the first piece; pieces: (due time, arrival, seconds of audio) of each piece.
    """

    sizes: list[int]
    asked_s: float
    first: list[float] = field(default_factory=list)
    pieces: list[tuple[float, float, float]] = field(default_factory=list)
    _head: bytes = b""
    _got: int = 0
    _place: int = 0

    def take(self, audio: bytes, at_s: float) -> None:
        """Receive some audio; a piece arrives with its last byte."""
        while audio and self._place < len(self.sizes):
            left = 2 * self.sizes[self._place] - self._got
            part, audio = audio[:left], audio[left:]
            if len(self._head) < 2 * _DIGITS:
                self._head += part[: 2 * _DIGITS - len(self._head)]
            self._got += len(part)
            if len(part) == left:
                self.pieces.append((read_stamp(self._head), at_s, self.sizes[self._place] / RATE))
                if not self._place:
                    self.first.append(at_s - self.asked_s)
                self._head, self._got, self._place = b"", 0, self._place + 1

    @property
    def is_whole(self) -> bool:
        return self._place == len(self.sizes)
