"""What a slot is asked to do: rows to read, then ids to sample until a control id."""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.checkpoint.config import LMConfig
from vivavoce.engine.request import SynthesisRequest
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, RowKind


@dataclass(frozen=True)
class Run:
    """One stretch of decoding in a slot: rows are fed, then ids are sampled until a control id.

    rows: appended at the slot's current position; allowed: control ids (those that are not speech) that may be
    sampled; forced_at: after so many ids of this run `forced`, a control id, comes next whatever the model says;
    min_tokens: before so many ids of this run the control ids `early_forbidden` are forbidden, allowed or not.
    """

    rows: tuple[Row, ...]
    allowed: tuple[int, ...]
    forced_at: int
    forced: int
    min_tokens: int = 0
    early_forbidden: tuple[int, ...] = ()

    @property
    def positions(self) -> int:
        """Positions of a slot that it takes at most, the one that idle steps write to included."""
        return len(self.rows) + self.forced_at + 1


def plain_run(config: LMConfig, request: SynthesisRequest, *, official: bool, room: int | None) -> Run:
    """The run of a text that is all there: [sos, prompt text, text, task, prompt speech], and speech to the end.

    official: the official minimum-length rule, which forbids one of the stop ids only; room: speech tokens that the
    stages after this one can take, None: any number.

    Raises:
        InvalidRequest: it may need more positions than the model has.
    """
    vocabulary, voice = config.vocabulary, request.conditioning
    least, most = _lengths(request, fewest=0 if official else 1, room=room)
    rows = (
        Row(RowKind.CONTROL, vocabulary.sos),
        *(Row(RowKind.TEXT, one) for one in voice.lm_prompt_text + request.text),
        Row(RowKind.CONTROL, vocabulary.task),
        *(Row(RowKind.SPEECH, one) for one in voice.lm_prompt_tokens),
    )
    if len(rows) + most > config.max_positions:
        raise InvalidRequest(
            f"text: with its prompt it may need {len(rows) + most} positions, the model has {config.max_positions}; "
            "use a shorter text or reference"
        )
    stop_ids = tuple(vocabulary.stop_ids)
    # The official code forbids one stop id before the minimum, and any of them could end the speech early.
    early = (vocabulary.masked_before_minimum,) if official else stop_ids
    return Run(rows, stop_ids, most, vocabulary.eos, least, early)


def _lengths(request: SynthesisRequest, fewest: int, room: int | None) -> tuple[int, int]:
    """Least and most speech tokens."""
    params, size = request.sampling, len(request.text)
    if params.exact_tokens is not None:
        least = most = params.exact_tokens
    else:
        least, most = max(fewest, int(params.min_ratio * size)), int(params.max_ratio * size)
    most = most if room is None else min(most, room)
    return min(least, most), most
