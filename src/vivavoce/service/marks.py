"""Where each segment of a text is in its audio: counted in samples, so exact; nothing is guessed inside a segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from vivavoce.engine.request import AudioChunk
from vivavoce.service.text.spans import TextSegment


@dataclass(frozen=True)
class Mark:
    """A segment and its audio.

    text: what it speaks, as it was written: the characters start_character … end_character − 1 of the input; start_s,
    end_s: seconds from the beginning of the audio, the end of one being the start of the next; cut: its speech was
    ended for its length, so that words of it may be missing.
    """

    text: str
    start_character: int
    end_character: int
    start_s: float
    end_s: float
    cut: bool = False


def marks_of(
    segments: Sequence[TextSegment], samples: Sequence[int], sample_rate: int, cut: Sequence[bool] = ()
) -> tuple[Mark, ...]:
    """The marks of a text's first segments.

    samples: of each segment, in order; there are as many marks. cut: of each segment, () where it is not known yet.
    """
    times = [end / sample_rate for end in accumulate(samples, initial=0)]
    return tuple(
        Mark(segment.text, segment.start, segment.end, start_s, end_s, place < len(cut) and cut[place])
        for place, (segment, (start_s, end_s)) in enumerate(zip(segments, pairwise(times), strict=False))
    )


class StreamMarks:
    """Follows one stream: whoever brings its text tells the segments, whoever hears it the chunks; from any thread."""

    def __init__(self) -> None:
        self._segments: list[TextSegment] = []
        self._samples: list[int] = []

    def expect(self, segment: TextSegment) -> None:
        """The next segment, told before its audio is made."""
        self._segments.append(segment)

    def expect_more(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same pieces of a text that is one segment, which grows with each."""
        told = ""
        for piece in pieces:
            if isinstance(piece, str):  # what is no text is refused by whoever takes the pieces
                told += piece
                self._segments[:] = [TextSegment(told, told, 0)]
            yield piece

    def hear(self, chunk: AudioChunk) -> None:
        """The next chunk of its audio."""
        self._samples += [0] * (chunk.segment + 1 - len(self._samples))
        self._samples[chunk.segment] += len(chunk.samples)

    def marks(self, sample_rate: int, cut: Sequence[bool] = ()) -> tuple[Mark, ...]:
        """Of the segments up to the one that was heard last, whose end may still move; see `marks_of`."""
        return marks_of(self._segments, self._samples, sample_rate, cut)
