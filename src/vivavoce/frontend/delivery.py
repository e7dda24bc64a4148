"""Estimates how well a text was spoken, from the language model's attention and from the audio."""

from __future__ import annotations

from collections.abc import Sequence

from vivavoce.engine.guard import UNSPOKEN_SHARE
from vivavoce.engine.handle import RequestResult
from vivavoce.frontend.speech import Delivery, FinishReason
from vivavoce.frontend.text.text_input import readable
from vivavoce.frontend.word_times import SegmentTimer
from vivavoce_textnorm import excerpt

NAMED = 5
"""Maximum number of words that a warning names."""


def delivery_of(
    text: str, timers: Sequence[SegmentTimer], result: RequestResult, pace: float | None
) -> Delivery | None:
    """Estimate how well a text was spoken. Return None if attention was not tracked or the request has failed.

    timers: for each segment, a timer that has taken all of the segment's audio. pace: usual number of speech tokens per
    text token, or None if unknown."""
    followed = [
        (timer, attended, tokens)
        for timer, attended, tokens in zip(timers, result.attended, result.tokens, strict=False)
        if timer.words and attended is not None
    ]
    if not followed or result.error is not None:
        return None
    missing = tuple(
        readable(text[word.start : word.end])
        for timer, attended, _ in followed
        for word in timer.words
        if not timer.visits(word)
        and sum(attended[word.first : word.last]) < UNSPOKEN_SHARE * (pace or 0.0) * (word.last - word.first)
    )
    count = sum(len(timer.words) for timer, _, _ in followed)
    length = None
    if pace:
        length = sum(len(tokens) for _, _, tokens in followed) / (pace * sum(len(one) for _, one, _ in followed))
    return Delivery(
        round(1 - len(missing) / count, 4),
        missing,
        tuple(fault for fault, mended in result.faults if not mended),
        tuple(fault for fault, mended in result.faults if mended),
        round(max((timer.pause_s for timer in timers), default=0.0), 3),
        None if length is None else round(length, 3),
    )


def warnings_about(delivery: Delivery | None) -> tuple[str, ...]:
    """Return a warning of one line for each possible fault of the speech."""
    if delivery is None:
        return ()
    found = []
    if delivery.missing:
        named = ", ".join(excerpt(one) for one in delivery.missing[:NAMED])
        more = f" and {len(delivery.missing) - NAMED} more" if len(delivery.missing) > NAMED else ""
        found.append(f"speech: these words seem not to be spoken: {named}{more}; ask again with another seed")
    if delivery.faults:
        faults = ", ".join(dict.fromkeys(delivery.faults))
        found.append(f"speech: a part differs from the text ({faults}), and was not repaired; ask with another seed")
    return tuple(found)


def reason_of(cut: bool, delivery: Delivery | None) -> FinishReason:
    """Return the finish reason of speech that did not fail; cut: whether a segment reached its limit of tokens."""
    if cut:
        return FinishReason.LENGTH
    return FinishReason.INCOMPLETE if delivery is not None and delivery.missing else FinishReason.STOP
