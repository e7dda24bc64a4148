"""What the token engine is asked: rows to read, and how speech tokens are to be drawn after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

from vivavoce.checkpoint.config import LMConfig, Vocabulary
from vivavoce.engine.lm_stage import Run
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, RowKind

MAX_TOKENS = 100_000
"""No slot is so long; what a slot does not hold is refused with its own numbers."""


@dataclass(frozen=True, eq=False)
class TokenRequest:
    """Speech tokens that follow a prompt. `None` means: as the checkpoint's yaml sets it.

    rows: the prompt; max_tokens: speech ends after so many, whatever the model says; min_tokens: and not before so
    many, or `max_tokens` where that is less; ends: control ids that may end it, None: every one of the model's, ():
    none, so that there are exactly `max_tokens`; top_p, top_k, win_size, tau_r: see `SamplingParams`; seed: of the
    draws.
    """

    rows: tuple[Row, ...]
    max_tokens: int
    min_tokens: int = 1
    ends: tuple[int, ...] | None = None
    top_p: float | None = None
    top_k: int | None = None
    win_size: int | None = None
    tau_r: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.rows:
            raise InvalidRequest("prompt: it has no rows; give at least one")
        _check_whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_whole("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        # One table holds the numbers of all that are read together: what is no int64 would spoil the neighbours' too.
        _check_whole("seed", self.seed, -(2**63), 2**63 - 1)
        self.sampling  # noqa: B018 (refuses what is out of its limits)

    @cached_property
    def sampling(self) -> SamplingParams:
        """As the language model's stage takes it."""
        return SamplingParams(top_p=self.top_p, top_k=self.top_k, win_size=self.win_size, tau_r=self.tau_r)


def speech_prompt(vocabulary: Vocabulary, text: Sequence[int], speech: Sequence[int] = ()) -> tuple[Row, ...]:
    """[sos, text, task, speech]: the rows of a text that is all there, with the speech tokens that come before.

    text: text ids, those of a reference's transcript first; speech: the reference's speech tokens.
    """
    return (
        Row(RowKind.CONTROL, vocabulary.sos),
        *(Row(RowKind.TEXT, one) for one in text),
        Row(RowKind.CONTROL, vocabulary.task),
        *(Row(RowKind.SPEECH, one) for one in speech),
    )


def run_for(request: TokenRequest, config: LMConfig, capacity: int) -> Run:
    """The request as work for a slot of `capacity` positions.

    Raises:
        InvalidRequest: an id that the model lacks, or more positions than a slot has.
    """
    stop_ids = tuple(config.vocabulary.stop_ids)
    ends = stop_ids if request.ends is None else request.ends
    unknown = next((one for one in ends if one not in stop_ids), None)
    if unknown is not None:
        raise InvalidRequest(
            f"ends: id {unknown} ends no speech of this model; choose some of {stop_ids[0]} … {stop_ids[-1]}"
        )
    _check_rows(request.rows, config)
    run = Run(request.rows, ends, request.max_tokens, config.vocabulary.eos, request.min_tokens, stop_ids)
    if run.positions > capacity:
        room = capacity - len(request.rows) - 1
        way_out = f"ask for {room} or fewer" if room > 0 else "use a shorter text or reference"
        raise InvalidRequest(
            f"max_tokens: {request.max_tokens} after {len(request.rows)} rows of prompt may need {run.positions} "
            f"positions, a slot has {capacity}; {way_out}"
        )
    return run


def _check_rows(rows: Sequence[Row], config: LMConfig) -> None:
    """Refuse ids that the tables lack: on a device they would end the engine for everyone."""
    vocabulary = config.vocabulary
    most = {
        RowKind.CONTROL: max(vocabulary.sos, vocabulary.task),
        RowKind.TEXT: config.text_vocab_size - 1,
        RowKind.SPEECH: vocabulary.num_speech_tokens - 1,
    }
    wrong = next((row for row in rows if not 0 <= row.id <= most[row.kind]), None)
    if wrong is not None:
        raise InvalidRequest(
            f"prompt: {wrong.kind.name.lower()} id {wrong.id} is outside of 0 … {most[wrong.kind]}; "
            "it is of another model"
        )


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    if not (isinstance(value, Integral) and low <= value <= high):
        raise InvalidRequest(f"{name}: {value!r} is outside of {low} … {high}; choose a whole number inside")
