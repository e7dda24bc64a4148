"""Compare the words that PocketSphinx recognises in a recording with the recording's transcript."""

from __future__ import annotations

from vivavoce.errors import InvalidRequest
from vivavoce_bench.evaluate.error_rate import align, is_unspaced, words
from vivavoce_bench.evaluate.recogniser import PocketSphinx, as_floats, prepare
from vivavoce_bench.evaluate.speaking import Samples

MOST_ERRORS = 0.75
"""Maximum share of wrong words in the transcript of a recording; correct transcripts have at most half of it."""


def heard_otherwise(samples: Samples, sample_rate: int, transcript: str) -> tuple[str, str]:
    """Return the recognised words, and a warning if they differ too much from the transcript, else "".

    samples: [n] float32. InvalidRequest: the transcript is not in English. MissingDependency: PocketSphinx is missing.
    """
    if is_unspaced(transcript):
        raise InvalidRequest("listen: the recogniser knows English only; leave --listen out for this transcript")
    heard = PocketSphinx().transcribe(as_floats(prepare(samples, sample_rate)))
    said = words(transcript)
    if not said:
        return heard, ""
    edits = align(said, words(heard))
    if edits.errors <= MOST_ERRORS * edits.total:
        return heard, ""
    return heard, f"seems to contain other words than its transcript (heard: {heard[:200]!r}); correct the transcript"
