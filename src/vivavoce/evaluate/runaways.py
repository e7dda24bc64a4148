"""Speech that did not end when its text did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from vivavoce.evaluate.utterance import Utterance

_TIMES = 2.0
_SLACK_S = 1.0
"""Short texts take longer per character; this much more than expected is never a runaway."""
_AT_LIMIT = 0.98


def runaway_reasons(
    utterances: Sequence[Utterance], longest_s: Callable[[str], float] | None = None
) -> list[str | None]:
    """Why each utterance counts as a runaway, or None.

    It lasts more than twice (and a second more than) what its characters take at the voice's median pace, or it has
    reached the length at which the model is stopped.

    Args:
        utterances: all of a run.
        longest_s: the seconds after which the model is stopped in a text, if that is known.
    """
    paces = defaultdict(list)
    for utterance in utterances:
        if utterance.sound.s_per_character is not None:
            paces[utterance.voice].append(utterance.sound.s_per_character)
    usual = {voice: median(values) for voice, values in paces.items()}
    return [_reason(utterance, usual.get(utterance.voice), longest_s) for utterance in utterances]


def _reason(utterance: Utterance, pace: float | None, longest_s: Callable[[str], float] | None) -> str | None:
    duration = utterance.sound.duration_s
    if longest_s is not None and duration >= _AT_LIMIT * longest_s(utterance.text):
        return "length limit"
    if pace is None or not utterance.sound.num_characters:
        return None
    expected = pace * utterance.sound.num_characters
    if duration > max(_TIMES * expected, expected + _SLACK_S):
        return f"{duration / expected:.1f} times the expected length"
    return None
