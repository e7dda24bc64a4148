"""The three stages over one set of models, and how a request's segments get their places in them."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from weakref import WeakSet

from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.flow_stage import FlowStage
from vivavoce.engine.lm_stage import Chooser, LMStage, Run, TextIn, plain_run
from vivavoce.engine.precision import Precision
from vivavoce.engine.request import Arrival, Conditioning, SynthesisRequest
from vivavoce.engine.settings import MemoryPlan
from vivavoce.engine.stream import Phase, Segment
from vivavoce.engine.ticket import Arrived, Ticket, Track, Work
from vivavoce.engine.vocoder_stage import VocoderStage
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.models.lm.interleave import TextInterleaver


class Workshop:
    """The stages, and what turns a request into work for them.

    `kernels`: the stages run on our own; `deterministic`: whoever shares a batch changes no bit; `precision`: what is
    of eight bits, with kernels; `official`: the official rules of the decode's ends (for parity); `chooser` stands in
    for repetition-aware sampling; `source_noise`: whether the vocoder's source has its noise.
    """

    def __init__(
        self,
        models: Models,
        memory: MemoryPlan,
        *,
        kernels: bool,
        deterministic: bool,
        precision: Precision,
        official: bool,
        chooser: Chooser | None,
        source_noise: bool,
    ) -> None:
        self.models, self._official = models, official
        self._known_voices: WeakSet[Conditioning] = WeakSet()
        """Those in use whose ids were checked: a cache, of all threads that check in."""
        self._knowing = Lock()
        try:
            self.lm = LMStage(
                models,
                slots=memory.slots,
                capacity=memory.capacity,
                chooser=chooser,
                kernels=kernels,
                deterministic=deterministic,
                int8=precision.int8_lm,
            )
            self.flow = FlowStage(
                models,
                state_bytes=memory.state_bytes,
                kernels=kernels,
                deterministic=deterministic,
                fp8=precision.fp8_flow,
                most_frames=memory.batch_frames,
            )
        except ValueError as error:
            raise InvalidRequest(f"kernels: {error}") from None
        self.vocoder = VocoderStage(models, source_noise=source_noise, kernels=kernels, most_frames=memory.batch_frames)

    def check_in(self, request: SynthesisRequest, arrival: Arrival) -> Arrived:
        """A segment and the language model's work for it; safe to call from any thread.

        Raises:
            InvalidRequest: it does not fit a slot, or more speech tokens than the flow takes.
        """
        self._check_ids(request)
        room = self._room(request)
        if request.speech_tokens is not None:
            if len(request.speech_tokens) > room:
                raise InvalidRequest(
                    f"speech tokens: {len(request.speech_tokens)}, beside this voice there is room for {room}; "
                    "use a shorter recording"
                )
            return Arrived(request, None)
        config, voice = self.models.config.lm, request.conditioning
        if arrival is Arrival.TOKENS:
            interleaver = TextInterleaver(
                config.vocabulary,
                (config.mix_text, config.mix_speech),
                voice.lm_prompt_text,
                voice.lm_prompt_tokens,
                request.sampling.max_ratio,
            )
            text = TextIn(interleaver, config.vocabulary, room, self.lm.capacity)
            text.push(request.text)
            return Arrived(request, text)
        run = plain_run(config, request, official=self._official, room=None if self._official else room)
        self.lm.check(run)
        return Arrived(request, run)

    def open(self, ticket: Ticket, arrived: Arrived) -> Track:
        """A segment's places in the flow and the vocoder; its slot is taken when its rows are read."""
        policy, request, work = ticket.request.policy, arrived.request, arrived.work
        joins = Joins.SEAMLESS if policy is None else policy.joins
        segment = Segment(
            ticket.stream,
            place=len(ticket.stream.segments),
            prompt_rows=len(work.rows) if isinstance(work, Run) else 0,
            prompt_tokens=len(request.conditioning.flow_tokens),
            phase=_phase(work),
            produced=len(request.speech_tokens or ()),
        )
        track = Track(
            ticket,
            segment,
            request,
            flow=self.flow.open(request.conditioning),
            wave=self.vocoder.open(request.seed, request.speed, joins),
            work=work,
            run=work if isinstance(work, Run) else None,
            tokens=list(request.speech_tokens or ()),
        )
        segment.lacks_prompt = policy is not None and joins is Joins.SEAMLESS and self.flow.lacks_prompt(track.flow)
        return track

    def check_text(self, ids: Sequence[int]) -> None:
        """Refuse text ids that the model does not have.

        Raises:
            InvalidRequest: the message has the first one.
        """
        _check_range("text", ids, self.models.config.lm.text_vocab_size)

    def _check_ids(self, request: SynthesisRequest) -> None:
        """Refuse ids that the tables lack: on a device they would end the engine for everyone."""
        voice, config = request.conditioning, self.models.config
        speech = config.lm.vocabulary.num_speech_tokens
        self.check_text(request.text)
        _check_range("speech tokens", request.speech_tokens or (), speech)
        with self._knowing:
            if voice in self._known_voices:
                return
        self.check_text(voice.lm_prompt_text)
        _check_range("speech tokens", voice.lm_prompt_tokens, speech)
        # Ids below zero stand for the first one there.
        _check_range("speech tokens", [max(0, one) for one in voice.flow_prompt], config.flow.num_tokens)
        with self._knowing:
            self._known_voices.add(voice)

    def _room(self, request: SynthesisRequest) -> int:
        """Speech tokens that the flow has noise for beside the prompt's."""
        return MAX_FRAMES // self.models.config.rates.frames_per_token - len(request.conditioning.flow_tokens)


def _check_range(field: str, ids: Sequence[int], end: int) -> None:
    # Every request passes here, and hardly any fails.
    if ids and not (min(ids) >= 0 and max(ids) < end):
        wrong = next(one for one in ids if not 0 <= one < end)
        raise InvalidRequest(f"{field}: id {wrong} is outside of 0 … {end - 1}; it is of another model")


def _phase(work: Work) -> Phase:
    if work is None:
        return Phase.DECODED
    return Phase.WAITING if isinstance(work, Run) else Phase.STARVED
