"""The guard: detects speech that departs from its text, and finds the speech token from which to sample again.

A fault needs two signs: the attention seems to stand still, go back, skip text or end early, and the strength of the
attention or the speech tokens confirm it. Texts of `SHORT_IDS` ids or fewer are judged only by their length, and by
attention that is nearly all on the prompt.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.lm_stage import DecodeRun
from vivavoce.engine.request import Fault
from vivavoce.engine.text_cursor import Floats, TextCursor
from vivavoce.models.lm.interleave import Row, RowKind

Path = NDArray[np.int64]
SHORT_IDS = 5
MOST_TRIES = 3
LOOK_EVERY = 8
"""Number of speech tokens between two checks of a sequence."""
STAND_TOKENS, STRAY_TOKENS, SILENT_TOKENS = 30, 8, 40
FARTHEST_IDS = 8
"""The longest step forward of the attention, in text ids, that counts as progress; longer jumps are ignored."""
STAND_PACE = 1.5
UNSPOKEN_SHARE, SURE_TOKENS = 0.25, 6
"""A word counts as skipped if the attention to it, in speech tokens, is below UNSPOKEN_SHARE of its usual number of
speech tokens, and more than SURE_TOKENS tokens follow."""
END_IDS, END_SHARE = 3, 0.5
"""Speech that ends before the last END_IDS text ids has ended early if the ids after its end get less than END_SHARE of
their usual speech tokens. The last id does not count: it is often punctuation."""
PART_IDS, LAST_PART_IDS, PART_SHARE = 4, 2, 0.2
"""PART_IDS successive text ids that include the first id of a word are skipped if they get less than PART_SHARE of
their usual speech tokens; once the speech has ended, LAST_PART_IDS ids suffice."""
STRAY_IDS = 2
"""Speech repeats text only if it passes at least this many text ids; in a silence the attention rests on one id."""
LEAK_TOKENS, LEAK_SHARE, LEAK_PACE, LEAK_IDS = 16, 0.1, 0.6, 4
"""The voice speaks the prompt's text if LEAK_TOKENS speech tokens in a row give this text more than LEAK_SHARE of their
attention, attend to LEAK_IDS of its ids, and pass the text to be spoken at less than LEAK_PACE of its usual pace."""
LEFT_SHARE = 0.75
"""Factor on `LEAK_SHARE` if a fault other than an early end was found in the text to be spoken."""
SHORT_LEAK_TOKENS, SHORT_LEAK_SHARE = 4, 0.8
"""In a text of SHORT_IDS ids or fewer, the voice speaks the prompt's text if SHORT_LEAK_TOKENS speech tokens in a row
give that text more than SHORT_LEAK_SHARE of their attention."""
LOOP_TOKENS, LOOP_TIMES, LONGEST_PERIOD = 24, 4, 25
LOST_SHARE, LOST_TOKENS, LAST_IDS = 0.3, 75, 2
"""After the last try, speech ends if the voice does not move on in its text for LOST_TOKENS speech tokens, or for
STAND_TOKENS at the last LAST_IDS text ids. A speech token that gives the prompt's text LOST_SHARE or more of its
attention does not count as moving on.
"""
_SEED_STEP = 7_919
_CUT_BEFORE = 2
"""A cut lies this many speech tokens before the next word begins, because neighbouring sounds overlap."""


@dataclass(frozen=True)
class FoundFault:
    """A fault that begins near the speech token `at`."""

    fault: Fault
    at: int


@dataclass(frozen=True)
class GuardedText:
    """A guarded text; ids: number of its ids; words: index of each word's first id; pace: speech tokens per id."""

    ids: int
    words: tuple[int, ...]
    pace: float = 4.0


def find_fault(
    cursor: TextCursor, tokens: Sequence[int], text: GuardedText, ended: bool, silent: Container[int] = ()
) -> FoundFault | None:
    """Return the fault in the speech so far, or None; ended: the model has ended it; silent: ids of silent tokens."""
    path = cursor.positions()[: len(tokens)]
    found = _fault_in_text(cursor, path, tokens, text, ended, silent)
    has_left = found is not None and found.fault is not Fault.EARLY_END
    if text.ids <= SHORT_IDS:
        leak = _first_run(np.array(cursor.astray) > SHORT_LEAK_SHARE, SHORT_LEAK_TOKENS)
    else:
        leak = _leak(cursor, path, text.pace, has_left)
    return found if leak is None else FoundFault(Fault.LEAK, leak)


def _fault_in_text(
    cursor: TextCursor, path: Path, tokens: Sequence[int], text: GuardedText, ended: bool, silent: Container[int]
) -> FoundFault | None:
    count, ids = len(tokens), text.ids
    if ids <= SHORT_IDS:
        return FoundFault(Fault.EARLY_END, 0) if ended and count < max(2, ids) else None
    attended = cursor.attended(ids)
    if not len(path):
        return FoundFault(Fault.EARLY_END, 0) if ended else None
    stood = count - int(np.searchsorted(path, path[-1]))
    period = loop_period(tokens)
    quiet = next((n for n, one in enumerate(reversed(tokens)) if one not in silent), count)
    if quiet >= SILENT_TOKENS and stood >= SILENT_TOKENS // 2:
        return FoundFault(Fault.SILENCE, count - quiet)
    if period and stood >= STAND_TOKENS // 2:
        return FoundFault(Fault.LOOPS, count - max(LOOP_TIMES * period, LOOP_TOKENS))
    if stood >= STAND_TOKENS and (period or count > STAND_PACE * text.pace * (path[-1] + 1)):
        return FoundFault(Fault.STANDS, count - stood)
    if (repeat := _repeat(cursor)) is not None:
        return FoundFault(Fault.REPEATS, repeat)
    skip = _skip(path, attended, text)
    if skip is None:
        skip = _part(path, attended, text, path[-1] - 2 - PART_IDS, PART_IDS, SURE_TOKENS)
    if skip is not None:
        return FoundFault(Fault.SKIPS, skip)
    if not ended:
        return None
    if path[-1] < ids - END_IDS and attended[path[-1] + 1 : -1].mean() < END_SHARE * text.pace:
        return FoundFault(Fault.EARLY_END, count)
    skip = _part(path, attended, text, ids - 1 - LAST_PART_IDS, LAST_PART_IDS, 0)
    return None if skip is None else FoundFault(Fault.SKIPS, skip)


def _first_run(true: NDArray[np.bool_], length: int) -> int | None:
    """Return the index of the first of `length` true values in a row, or None."""
    runs = np.convolve(true, np.ones(length), "valid") if len(true) >= length else np.zeros(0)
    return int(runs.argmax()) if (runs == length).any() else None


def _leak(cursor: TextCursor, path: Path, pace: float, has_left: bool) -> int | None:
    """Return the speech token at which the voice begins to speak the prompt's text (transcript, instruction), or None.

    has_left: another fault was found in the text to be spoken, so less attention to the prompt's text suffices.
    """
    if len(path) < LEAK_TOKENS:
        return None
    astray = np.convolve(cursor.astray[: len(path)], np.ones(LEAK_TOKENS) / LEAK_TOKENS, "valid")
    passed = path[LEAK_TOKENS - 1 :] - path[: 1 - LEAK_TOKENS]
    slow = passed < LEAK_PACE * LEAK_TOKENS / pace
    for start in np.flatnonzero(astray > LEAK_SHARE * LEFT_SHARE if has_left else (astray > LEAK_SHARE) & slow):
        window = slice(start, start + LEAK_TOKENS)
        looked_at = zip(cursor.prompt_ids[window], cursor.astray[window], strict=True)
        if len({one for one, share in looked_at if share > LEAK_SHARE}) >= LEAK_IDS:
            return int(start)
    return None


def _repeat(cursor: TextCursor) -> int | None:
    """Return the speech token at which the voice begins to repeat text: attention stays before its farthest id."""
    top = back = held = 0
    last, again = -1, set[int]()
    for place, at in enumerate(cursor.looked_at):
        if at < 0:
            continue
        held = held + 1 if at == last else 1
        last = at
        if held >= 2 and top < at <= top + FARTHEST_IDS:
            top = at
        if at >= top:
            back = 0
            again.clear()
            continue
        back += 1
        again.add(at)
        if back >= STRAY_TOKENS and len(again) >= STRAY_IDS:
            return place + 1 - back
    return None


def _skip(path: Path, attended: Floats, text: GuardedText) -> int | None:
    """Return the speech token at which the voice skips a word: it gets little attention, and the path passes it."""
    ends = (*text.words[1:], text.ids)
    for first, end in zip(text.words, ends, strict=True):
        if end > path[-1] - 1:
            return None
        behind = int(np.searchsorted(path, end))
        visited = behind - int(np.searchsorted(path, first))
        least = UNSPOKEN_SHARE * text.pace * (end - first)
        if not visited and attended[first:end].sum() < least and len(path) - behind > SURE_TOKENS:
            return behind
    return None


def _part(path: Path, attended: Floats, text: GuardedText, last: int, ids: int, sure: int) -> int | None:
    """Return the speech token at which the voice skips a part of the text, such as halves of two words.

    last: the last id with which a part may begin; ids: number of ids of a part; more than `sure` tokens follow it.
    """
    first = np.arange(1, last + 1)
    end = first + ids
    behind = np.searchsorted(path, end)
    visited = behind - np.searchsorted(path, first)
    spoken = np.concatenate(([0.0], np.cumsum(attended)))
    begun = np.searchsorted(text.words, end) > np.searchsorted(text.words, first)  # only punctuation may be silent
    least = PART_SHARE * text.pace * ids
    left_out = (np.maximum(spoken[end] - spoken[first], visited) < least) & begun & (len(path) - behind > sure)
    return int(behind[left_out.argmax()]) if left_out.any() else None


def loop_period(tokens: Sequence[int]) -> int:
    """Return the period, in tokens, with which the last tokens repeat `LOOP_TIMES` times or more; 0 if they do not."""
    last = np.array(tokens[-LOOP_TIMES * LONGEST_PERIOD :])
    for period in range(1, LONGEST_PERIOD + 1):
        needed = max(LOOP_TIMES * period, LOOP_TOKENS)
        if len(last) >= needed and np.array_equal(last[-needed:-period], last[-needed + period :]):
            return period
    return 0


def end_for(cursor: TextCursor, text: GuardedText) -> int | None:
    """Return how many speech tokens to keep if the voice no longer speaks its text, else None."""
    path, astray = cursor.positions(), np.array(cursor.astray)
    moves = np.flatnonzero((np.diff(path, prepend=-1) > 0) & (astray < LOST_SHARE))
    last = int(moves[-1]) if len(moves) else 0
    most = STAND_TOKENS if path[last] >= text.ids - LAST_IDS else LOST_TOKENS
    return min(len(path), last + 1 + int(2 * text.pace)) if len(path) - last > most else None


def cut_for(finding: FoundFault, cursor: TextCursor, lag: float, least: int) -> int:
    """Return how many speech tokens to keep: all up to the last text id before the fault begins, at least `least`."""
    begins = [int(token + lag) - _CUT_BEFORE for _, token in cursor.reached() if token + lag < finding.at - 1]
    return max(least, begins[-1] if begins else 0)


def run_again(run: DecodeRun, kept: Sequence[int], ids: int, fault: Fault) -> DecodeRun:
    """Return the run that continues after the kept speech tokens; ids: number of text ids to be spoken."""
    rows = (*run.rows, *(Row(RowKind.SPEECH, one) for one in kept))
    least = max(0, run.min_tokens - len(kept))
    if fault is Fault.EARLY_END:
        least = max(least, ids if ids <= SHORT_IDS else 4)
    return replace(run, rows=rows, forced_at=max(1, run.forced_at - len(kept)), min_tokens=least)


def another_seed(seed: int, attempt: int) -> int:
    """Return the seed of an attempt to sample a sequence; attempt 0 has the sequence's own seed, others new seeds."""
    return (seed + _SEED_STEP * attempt) % 2**63
