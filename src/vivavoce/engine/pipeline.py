"""From requests to audio: a batch of whole utterances, or one stream chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from vivavoce.engine.batching import bounded_groups
from vivavoce.engine.chunk_speaker import ChunkSpeaker, flow_item
from vivavoce.engine.lm_stage import Decode, decode_text_stream
from vivavoce.engine.request import AudioChunk, Batch, StageTimings, StreamRequest, SynthesisRequest, Utterance
from vivavoce.engine.sampler import RepetitionAwareSampler, Sampler
from vivavoce.engine.speed import resize
from vivavoce.engine.vocoder_stage import SourceNoise, vocode
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.models.lm.interleave import TextInterleaver
from vivavoce.models.lm.prompting import LMPrompt

MAX_BATCH_FRAMES = 6_000
"""Padded mel frames (120 s) that flow and vocoder work on at once: under 5 GiB at release size in float32."""


class Pipeline:
    """The three stages over one set of models.

    Args:
        models: networks on one device.
        official: decode with the official minimum-length rule, which forbids one of the three stop ids only.
        sampler: stands in for repetition-aware sampling with the requests' settings and seeds.
        source_noise: whether the vocoder's source has its noise; without it the audio is a function of the tokens.
    """

    def __init__(
        self, models: Models, *, official: bool = False, sampler: Sampler | None = None, source_noise: bool = True
    ) -> None:
        self.models = models
        self._official, self._given_sampler, self._source_noise = official, sampler, source_noise

    @torch.inference_mode()
    def run(self, requests: Sequence[SynthesisRequest]) -> Batch:
        """Whole utterances, each as it would be alone.

        The language model decodes all of them together; flow and vocoder work in batches of bounded size, since
        their memory grows with the frames of the longest.
        """
        clock = _StageClock(self.models.device)
        tokens = self._decode_all(requests)
        timings = [StageTimings(clock.lap(), 0.0, 0.0)]
        items = [flow_item(request, spoken, final=True) for request, spoken in zip(requests, tokens, strict=True)]
        utterances: dict[int, Utterance] = {}
        for group in bounded_groups([self.models.flow.frames_of(item) for item in items], MAX_BATCH_FRAMES):
            mels = self.models.flow([items[place] for place in group], chunked=False)
            flow_s = clock.lap()
            stretched = [resize(mel, requests[place].speed) for mel, place in zip(mels, group, strict=True)]
            waves = vocode(self.models.vocoder, stretched, [self._noise(requests[place]) for place in group])
            timings.append(StageTimings(0.0, flow_s, clock.lap()))
            for place, mel, wave in zip(group, mels, waves, strict=True):
                utterances[place] = Utterance(tuple(tokens[place]), mel.cpu(), wave)
        return Batch([utterances[place] for place in range(len(requests))], StageTimings.total(timings))

    @torch.inference_mode()
    def stream(self, stream: StreamRequest) -> Iterator[AudioChunk]:
        """Chunks of one request, each as soon as the policy lets it be made; the last one is marked final."""
        request = stream.request
        speaker = ChunkSpeaker(self.models, request, stream.policy, self._noise(request))
        spoken: list[int] = []
        try:
            for token in self._tokens(stream):
                spoken.append(token)
                yield from speaker.advance(spoken, final=False)
        except InvalidRequest:
            # A text that goes on too long is refused only after all that was made of it is given out.
            if spoken:
                yield from speaker.advance(spoken, final=True)
            raise
        if spoken:
            yield from speaker.advance(spoken, final=True)

    def _decode_all(self, requests: Sequence[SynthesisRequest]) -> list[list[int]]:
        tokens = [list(request.speech_tokens or ()) for request in requests]
        written = [place for place, request in enumerate(requests) if request.speech_tokens is None]
        if written:
            decode = self._decode([requests[place] for place in written])
            for _ in decode:
                pass
            for place, spoken in zip(written, decode.decoded, strict=True):
                tokens[place] = spoken
        return tokens

    def _decode(self, requests: Sequence[SynthesisRequest]) -> Decode:
        prompts = [
            LMPrompt(request.text, request.conditioning.lm_prompt_text, request.conditioning.lm_prompt_tokens)
            for request in requests
        ]
        params = [request.sampling for request in requests]
        room = None if self._official else [self._room(request) for request in requests]
        return Decode(self.models.lm, prompts, params, self._sampler(requests), self._official, room)

    def _room(self, request: SynthesisRequest) -> int:
        """Speech tokens that the flow has noise for beside the prompt's."""
        return MAX_FRAMES // self.models.config.rates.frames_per_token - len(request.conditioning.flow_tokens)

    def _tokens(self, stream: StreamRequest) -> Iterator[int]:
        request = stream.request
        if request.speech_tokens is not None:
            yield from request.speech_tokens
        elif stream.text_pieces is None:
            for step in self._decode([request]):
                yield from (token for _, token in step)
        else:
            lm = self.models.config.lm
            interleaver = TextInterleaver(
                lm.vocabulary,
                (lm.mix_text, lm.mix_speech),
                request.conditioning.lm_prompt_text,
                request.conditioning.lm_prompt_tokens,
                request.sampling.max_ratio,
            )
            sampler = self._sampler([request])
            room = self._room(request)
            yield from decode_text_stream(self.models.lm, interleaver, stream.text_pieces, sampler, room)

    def _sampler(self, requests: Sequence[SynthesisRequest]) -> Sampler:
        if self._given_sampler is not None:
            return self._given_sampler
        return RepetitionAwareSampler(
            [request.sampling for request in requests],
            [request.seed for request in requests],
            self.models.config.lm.sampling,
            self.models.device,
        )

    def _noise(self, request: SynthesisRequest) -> SourceNoise:
        return SourceNoise(request.seed if self._source_noise else None)


class _StageClock:
    """Wall time between laps; waits for the device, whose work is queued ahead of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the lap before."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        return spent
