"""Checks requests against the models, and turns them into sequences for the engine's loop. Any thread may call this."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from vivavoce.checkpoint.config import LMConfig
from vivavoce.engine.adapters import Adapters
from vivavoce.engine.handle import More
from vivavoce.engine.lm_stage import DecodeRun, StreamingPrompt, plain_run
from vivavoce.engine.request import FlowSteps, InputMode, SegmentRequest, SpeechTokens, TokenRequest
from vivavoce.engine.request_state import Phase, SequenceState, Taken
from vivavoce.engine.stages import LMInterface
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.generations import MAX_FRAMES
from vivavoce.models.lm.adapters import LoadedAdapter
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver
from vivavoce.rates import Rates


class Intake:
    """Checks requests against the models that an engine has.

    official: end decoding by the official rules, as in `Engine`; flow_steps: the default for segments that name no
    steps; adapters: the adapters that segments may name.
    """

    def __init__(
        self,
        models: Models | LanguageModel,
        lm: LMInterface | None,
        rates: Rates,
        official: bool,
        flow_steps: FlowSteps,
        adapters: Adapters,
    ) -> None:
        self._models, self._lm, self._rates, self._official = models, lm, rates, official
        self._flow_steps, self._adapters = flow_steps, adapters

    def more(self, more: More, arrival: InputMode, adapters: dict[str, LoadedAdapter]) -> Taken:
        """Check input that was pushed to a request, and return it as the loop takes it; adapters: as for `segment`."""
        if more is None or isinstance(more, Exception):
            return more
        takes, given = InputMode.TOKENS, "text ids were"
        if isinstance(more, SegmentRequest):
            takes, given = InputMode.SEGMENTS, "a segment was"
        elif isinstance(more, SpeechTokens):
            takes, given = InputMode.SPEECH, "speech tokens were"
        if arrival is not takes:
            raise InvalidRequest(f"text: {given} pushed to a request with arrival {arrival.value}; push what it takes")
        if isinstance(more, SegmentRequest):
            more.check_not_empty()
            return self.segment(more, InputMode.WHOLE, adapters)
        vocabulary = self._models.config.lm.vocabulary
        if isinstance(more, SpeechTokens):
            _check_range("speech tokens", more.tokens, vocabulary.num_speech_tokens)
        else:
            _check_range("text", more, self._models.config.lm.text_vocab_size)
        return more

    def segment(self, segment: SegmentRequest, arrival: InputMode, adapters: dict[str, LoadedAdapter]) -> SequenceState:
        """Make a sequence from a segment, with its rows for the language model; safe to call from any thread.

        adapters: the adapters that the request uses already; the segment's adapter is added.
        """
        self._check_ids(segment)
        config, voice, lm = self._models.config.lm, segment.conditioning, self._lm
        room = self._rates.tokens_in(MAX_FRAMES) - len(voice.flow_tokens)
        steps = segment.flow_steps or self._flow_steps
        adapter = self._adapters.find(segment.adapter, adapters) if segment.adapter else None
        sequence = SequenceState(segment, prompt_tokens=len(voice.flow_tokens), flow_steps=steps)
        tokens = () if segment.pause_s else segment.speech_tokens
        if arrival in (InputMode.TOKENS, InputMode.SPEECH) and not isinstance(config, LMConfig):
            raise InvalidRequest("text: CosyVoice 1 speaks whole sentences only; push them as segments")
        if steps is not FlowSteps.OFFICIAL and not isinstance(config, LMConfig):
            raise InvalidRequest("flow_steps: CosyVoice 1 has only official steps; choose them, or leave it out")
        if tokens is not None:
            if len(tokens) > room:
                raise InvalidRequest(
                    f"speech tokens: {len(tokens)} are more than the {room} that fit with this voice; "
                    "use a shorter recording"
                )
            sequence.phase, sequence.tokens, sequence.produced = Phase.DECODED, list(tokens), len(tokens)
            sequence.limited, sequence.finished = False, segment.pause_s > 0
            if arrival is InputMode.SPEECH:
                sequence.phase, sequence.pushed = Phase.STARVED, deque()
        elif lm is None:
            raise InvalidRequest("text: this engine has no language model; give speech tokens")
        elif arrival is InputMode.TOKENS:
            assert isinstance(config, LMConfig)
            interleaver = TextInterleaver(
                config.vocabulary,
                (config.mix_text, config.mix_speech),
                voice.lm_prompt_text,
                voice.lm_prompt_tokens,
                segment.sampling.max_ratio,
                voice.lm_system_text,
                self._official,
            )
            sequence.phase, sequence.limited = Phase.STARVED, False
            unwatched = len(voice.lm_text) if segment.watched else None
            sequence.text = StreamingPrompt(interleaver, config.vocabulary, room, lm.capacity, unwatched, adapter)
            sequence.text.push(segment.text)
        else:
            run = plain_run(config, segment, official=self._official, room=None if self._official else room)
            run = run if adapter is None else replace(run, adapter=adapter)
            lm.check(run)
            sequence.run, sequence.prompt_rows, sequence.most_tokens = run, len(run.rows), run.forced_at
            sequence.limited = segment.sampling.exact_tokens is None
            sequence.first_run = run if segment.guarded is not None and sequence.limited else None
        return sequence

    def prompt(self, request: TokenRequest) -> SequenceState:
        config, lm = self._models.config.lm, self._lm
        if lm is None:
            raise InvalidRequest("prompt: this engine has no language model; load a model that has one")
        vocabulary, rows = config.vocabulary, request.rows
        stop_ids = tuple(vocabulary.stop_ids)
        ends = stop_ids if request.ends is None else request.ends
        unknown = next((one for one in ends if one not in stop_ids), None)
        if unknown is not None:
            raise InvalidRequest(
                f"ends: id {unknown} does not end speech in this model; choose from {stop_ids[0]} … {stop_ids[-1]}"
            )
        most = {
            RowKind.CONTROL: max(vocabulary.sos, vocabulary.task),
            RowKind.TEXT: config.text_vocab_size - 1,
            RowKind.SPEECH: vocabulary.num_speech_tokens - 1,
            RowKind.SPEAKER: -1 if request.speaker is None else 0,
        }
        wrong: Row | None = next((row for row in rows if not 0 <= row.id <= most[row.kind]), None)
        if wrong is not None:
            raise InvalidRequest(
                f"prompt: {wrong.kind.name.lower()} id {wrong.id} is outside of 0 … {most[wrong.kind]}; "
                "it belongs to another model"
            )
        run = DecodeRun(rows, ends, request.max_tokens, vocabulary.eos, request.min_tokens, stop_ids, request.speaker)
        if run.positions > lm.capacity:
            room = lm.capacity - len(rows) - 1
            way_out = f"ask for {room} or fewer" if room > 0 else "use a shorter text or reference"
            raise InvalidRequest(
                f"max_tokens: {request.max_tokens} after {len(rows)} rows of prompt may need {run.positions} "
                f"positions, a slot has {lm.capacity}; {way_out}"
            )
        return SequenceState(request, prompt_rows=len(rows), run=run, most_tokens=run.forced_at, finished=True)

    def _check_ids(self, segment: SegmentRequest) -> None:
        """Raise InvalidRequest for ids outside of the embedding tables: on a device they would crash all requests."""
        voice = segment.conditioning
        if not isinstance(self._models, Models):
            raise InvalidRequest("request: this engine has no flow and no vocoder; ask for speech tokens")
        config = self._models.config
        text, speech = config.lm.text_vocab_size, config.lm.vocabulary.num_speech_tokens
        _check_range("text", segment.text, text)
        _check_range("speech tokens", segment.speech_tokens or (), speech)
        sizes = (text, speech, config.flow.num_tokens)
        if sizes in voice.fits:
            return
        _check_range("text", voice.lm_text, text)
        _check_range("speech tokens", voice.lm_prompt_tokens, speech)
        # The flow treats ids below zero as the first id.
        _check_range("speech tokens", [max(0, one) for one in voice.flow_prompt], config.flow.num_tokens)
        voice.fits.add(sizes)


def _check_range(field: str, ids: Sequence[int], end: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < end):
        wrong = next(one for one in ids if not 0 <= one < end)
        raise InvalidRequest(f"{field}: id {wrong} is outside of 0 … {end - 1}; it belongs to another model")
