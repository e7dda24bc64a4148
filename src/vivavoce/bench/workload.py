"""The requests of a load: texts drawn from a list, voices in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vivavoce.bench.target import Utterance
from vivavoce.bench.texts import SENTENCES
from vivavoce.errors import InvalidRequest


@dataclass(frozen=True)
class Workload:
    """What may be said and by whom; the same seed draws the same requests."""

    texts: Sequence[str] = SENTENCES
    voices: Sequence[str | None] = (None,)
    """They speak in turn; None is the target's default."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidRequest("texts: there are none; give at least one")

    def utterances(self, count: int, purpose: str = "load") -> list[Utterance]:
        """`count` requests; those of another purpose (a warm-up) are drawn independently.

        The texts come in shuffled rounds, so that a load of any size holds about the list's own mix of lengths.
        """
        texts = self._rounds(random.Random(f"{purpose} {self.seed}"))
        return [
            Utterance(number, text, self.voices[number % len(self.voices)], self.seed + number)
            for number, text in zip(range(count), texts, strict=False)
        ]

    def _rounds(self, drawn: random.Random) -> Iterator[str]:
        while True:
            yield from drawn.sample(self.texts, len(self.texts))


def read_texts(path: Path) -> list[str]:
    """A UTF-8 file with one text per line; empty lines are left out.

    Raises:
        InvalidRequest: the file cannot be read, or holds no text.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"text_file: {str(path)!r} is not UTF-8 (position {error.start}); save it as UTF-8 text"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"text_file: {str(path)!r} cannot be read ({error.strerror}); check the path") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise InvalidRequest(f"text_file: {str(path)!r} holds no text; write one per line")
    return texts


def with_words(texts: Sequence[str], fewest: int, most: int) -> list[str]:
    """The texts of that many words.

    Raises:
        InvalidRequest: there are none.
    """
    kept = [text for text in texts if fewest <= len(text.split()) <= most]
    if not kept:
        counts = sorted(len(text.split()) for text in texts)
        raise InvalidRequest(
            f"words: no text has {fewest} to {most} words, they have {counts[0]} to {counts[-1]}; widen the range"
        )
    return kept
