"""Runs of a text that arrives while speech is made of it."""

from __future__ import annotations

from collections.abc import Sequence

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.lm_stage.run import Run
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import TextInterleaver


class TextIn:
    """Turns an interleaver's sequence into successive runs; plain Python, owned by one slot.

    Args:
        interleaver: nothing has been taken from it yet.
        vocabulary: the interleaver's.
        room: speech tokens that the stages after this one can take; None: any number.
        capacity: positions of the slot that the runs will be fed to; None: any number.
    """

    def __init__(
        self,
        interleaver: TextInterleaver,
        vocabulary: Vocabulary,
        room: int | None = None,
        capacity: int | None = None,
    ) -> None:
        self._interleaver, self._vocabulary = interleaver, vocabulary
        self._room, self._capacity = room, capacity
        self._positions = self._spoken = self._sampled = 0
        self._run: Run | None = None
        self._cut = False
        """The run ends where a limit wants it, not where the interleaver does."""
        self._refusal: str | None = None

    @property
    def done(self) -> bool:
        """All of the text was spoken: no run will come."""
        return self._interleaver.done

    def push(self, ids: Sequence[int]) -> None:
        """More text tokens have arrived."""
        self._interleaver.push(ids)

    def close(self) -> None:
        """No more text will come."""
        self._interleaver.close()

    def next_run(self) -> Run | None:
        """What to feed next; None while a run is in progress, while text is awaited, and when done.

        Raises:
            InvalidRequest: the text goes on after as many speech tokens as there is room for, or past the slot's
                positions. All tokens that were accepted before stand.
        """
        if self._run is not None or self.done:
            return None
        if self._refusal is None and self._room is not None and self._spoken >= self._room:
            self._refusal = _too_long(self._room, "speech tokens")
        rows = None if self._refusal else self._interleaver.next_rows()
        limits = [] if rows is None else self._limits(len(rows))
        if self._refusal:
            raise InvalidRequest(self._refusal)
        if rows is None:
            return None
        due = self._interleaver.ids_until_control()
        forced_at = min(limits if due is None else (*limits, due))
        self._cut = due is None or forced_at < due
        control = self._interleaver.allows()
        self._run, self._sampled = Run(tuple(rows), control, forced_at, control[0]), 0
        self._positions += len(rows)
        return self._run

    def accept(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Ids that were sampled, in order, the run's control id included  →  the speech tokens among them."""
        speech = []
        for one in ids:
            if one < self._vocabulary.num_speech_tokens:
                self._interleaver.accept(one)
                self._positions += 1
                self._spoken += 1
                self._sampled += 1
                speech.append(one)
            else:
                self._end_run(one)
        return tuple(speech)

    def _end_run(self, control: int) -> None:
        assert self._run is not None, f"{control} ends no run"
        if self._cut and self._sampled >= self._run.forced_at:
            spoken_out = self._room is not None and self._spoken >= self._room
            limit, what = (self._room, "speech tokens") if spoken_out else (self._capacity, "positions")
            self._refusal = _too_long(limit, what)
        elif not self.done:
            self._interleaver.accept(control)
        self._run = None

    def _limits(self, rows: int) -> list[int]:
        """Ids that a run may sample for the stages after this one and for the slot."""
        limits = []
        if self._room is not None:
            limits.append(self._room - self._spoken)
        if self._capacity is not None:
            limits.append(self._capacity - self._positions - rows - 1)
            if limits[-1] < 1:
                self._refusal = _too_long(self._capacity, "positions")
        return limits


def _too_long(limit: int | None, what: str) -> str:
    return f"text: a stream holds {limit} {what} at most; send the rest in a new stream"
