"""What a slot is asked to do: rows to read, then ids to sample until a control id; one run, or one after another."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import inf

from torch import Tensor

from vivavoce.checkpoint.config import MAX_SILENCE, ConformerLMConfig, LMConfig, Vocabulary
from vivavoce.engine.request import SegmentRequest, speech_prompt
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, TextInterleaver


@dataclass(frozen=True)
class DecodeRun:
    """One stretch of decoding in a slot: rows are fed, then ids are sampled until a control id.

    rows: appended at the slot's current position; allowed: control ids (those that are not speech) that may be
    sampled; forced_at: after this many ids of this run `forced`, a control id, comes next whatever the model says;
    min_tokens: before this many ids of this run the control ids `early_forbidden` are forbidden, allowed or not;
    speaker: [speaker size] float32, of the one row of a speaker.
    """

    rows: tuple[Row, ...]
    allowed: tuple[int, ...]
    forced_at: int
    forced: int
    min_tokens: int = 0
    early_forbidden: tuple[int, ...] = ()
    speaker: Tensor | None = None

    @property
    def positions(self) -> int:
        """Positions of a slot that it takes at most, the one that idle steps write to included."""
        return len(self.rows) + self.forced_at + 1


def check_positions(run: DecodeRun, taken: int, capacity: int) -> None:
    """Refuse with InvalidRequest a run that may need more positions than are left of `capacity` after those taken."""
    positions = run.positions + taken
    if positions > capacity:
        raise InvalidRequest(
            f"text: with its prompt it may need {positions} positions, a slot has {capacity}; use a shorter text or "
            "reference"
        )


def plain_run(
    config: LMConfig | ConformerLMConfig, request: SegmentRequest, *, official: bool, room: int | None
) -> DecodeRun:
    """The run of a text that is all there: [sos, speaker, prompt text, text, task, prompt speech], then speech.

    official: the official minimum-length rule, which forbids one of the stop ids only; room: speech tokens that the
    stages after this one can take, None: any number. InvalidRequest: it may need more positions than the model has.
    """
    vocabulary, voice, params = config.vocabulary, request.conditioning, request.sampling
    least = most = params.exact_tokens or 0
    if params.exact_tokens is None:
        least = max(0 if official else 1, int(params.min_ratio * len(request.text)))
        most = int(params.max_ratio * len(request.text))
    most = most if room is None else min(most, room)
    speaker = voice.lm_embedding if isinstance(config, ConformerLMConfig) else None
    rows = speech_prompt(vocabulary, voice.lm_text + request.text, voice.lm_prompt_tokens, speaker=speaker is not None)
    if len(rows) + most > config.max_positions:
        raise InvalidRequest(
            f"text: with its prompt it may need {len(rows) + most} positions, the model has {config.max_positions}; "
            "use a shorter text or reference"
        )
    stop_ids = tuple(vocabulary.stop_ids)
    # The official code forbids one stop id before the minimum, and any of them could end the speech early.
    early = (vocabulary.masked_before_minimum,) if official else stop_ids
    return DecodeRun(rows, stop_ids, most, vocabulary.eos, min(least, most), early, speaker)


def without_long_silence(ids: Sequence[int], silent: Container[int], run: int) -> tuple[list[int], int]:
    """Speech tokens as they are spoken: of silent ones in a row, those beyond `MAX_SILENCE` are left out.

    run: silent ones in a row before these, spoken or not; returned for those after.
    """
    spoken = []
    for one in ids:
        run = run + 1 if one in silent else 0
        if run <= MAX_SILENCE:
            spoken.append(one)
    return spoken, run


class StreamingPrompt:
    """Turns an interleaver's sequence, of which nothing has been taken yet, into successive runs of one slot.

    room: speech tokens that the stages after this one can take; capacity: positions of the slot; ∞: any number.
    """

    def __init__(
        self,
        interleaver: TextInterleaver,
        vocabulary: Vocabulary,
        room: float = inf,
        capacity: float = inf,
    ) -> None:
        self._interleaver, self._vocabulary = interleaver, vocabulary
        self._room, self._capacity = room, capacity
        self._positions = self._spoken = self._sampled = 0
        self._run: DecodeRun | None = None
        self._cut = False
        """The run ends where a limit wants it, not where the interleaver does."""
        self._refusal: str | None = None
        self.push, self.close = interleaver.push, interleaver.close

    @property
    def done(self) -> bool:
        """All of the text was spoken: no run will come."""
        return self._interleaver.done

    def next_run(self) -> DecodeRun | None:
        """What to feed next; None while a run is in progress, while text is awaited, and when done.

        InvalidRequest: the text goes on after as many speech tokens as there is room for, or past the slot's positions.
        All tokens that were accepted before stand.
        """
        if self._run is not None or self.done:
            return None
        if self._refusal is None and self._spoken >= self._room:
            self._refusal = _too_long(self._room, "speech tokens")
        rows = None if self._refusal else self._interleaver.next_rows()
        left = self._capacity - self._positions - len(rows or ()) - 1
        if rows is not None and left < 1:
            self._refusal = _too_long(self._capacity, "positions")
        if self._refusal:
            raise InvalidRequest(self._refusal)
        if rows is None:
            return None
        due = self._interleaver.ids_until_control()
        forced_at = min(self._room - self._spoken, left, inf if due is None else due)
        self._cut = due is None or forced_at < due
        control = self._interleaver.allows()
        self._run, self._sampled = DecodeRun(tuple(rows), control, int(forced_at), control[0]), 0
        self._positions += len(rows)
        return self._run

    def accept(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Ids that were sampled, in order, the run's control id included  →  the speech tokens among them."""
        speech = tuple(one for one in ids if one < self._vocabulary.num_speech_tokens)
        for one in ids:
            if one < self._vocabulary.num_speech_tokens:
                self._interleaver.accept(one)
                self._positions += 1
                self._spoken += 1
                self._sampled += 1
                continue
            assert self._run is not None, f"{one} ends no run"
            if self._cut and self._sampled >= self._run.forced_at:
                spoken_out = self._spoken >= self._room
                limit, what = (self._room, "speech tokens") if spoken_out else (self._capacity, "positions")
                self._refusal = _too_long(limit, what)
            elif not self.done:
                self._interleaver.accept(one)
            self._run = None
        return speech


def _too_long(limit: float, what: str) -> str:
    return f"text: a stream holds {limit} {what} at most; send the rest in a new stream"
