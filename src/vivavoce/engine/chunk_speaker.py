"""One stream's way from speech tokens to chunks of audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from vivavoce.engine.chunk_policy import ChunkPolicy, Joins
from vivavoce.engine.request import AudioChunk, SynthesisRequest
from vivavoce.engine.speed import SpeedStream
from vivavoce.engine.vocoder_stage import SourceNoise, VocoderStream
from vivavoce.models.build import Models
from vivavoce.models.flow.model import FlowItem


class ChunkSpeaker:
    """Knows how much of a stream was spoken, and makes the chunks that its tokens allow.

    Each chunk runs the flow over the whole history; a seamless stream's last chunk attends chunk by chunk like the
    others, so that it continues the frames that were spoken, and not a second opinion on them.
    """

    def __init__(self, models: Models, request: SynthesisRequest, policy: ChunkPolicy, noise: SourceNoise) -> None:
        self._models, self._request, self._policy = models, request, policy
        self._vocoder = VocoderStream(models.vocoder, policy.joins, noise)
        # The official code ignores the speed of a stream.
        self._speed = SpeedStream(request.speed if policy.joins is Joins.SEAMLESS else 1.0)
        self._spoken = 0
        """Speech tokens whose mel was handed to the vocoder."""
        self._index = 0

    def advance(self, tokens: Sequence[int], final: bool) -> Iterator[AudioChunk]:
        """All chunks that can be made of the tokens decoded so far; `final`: there will be no more."""
        encoder, prompt = self._models.config.flow.encoder, len(self._request.conditioning.flow_tokens)
        lookahead = encoder.lookahead
        while True:
            hop = self._policy.hop(self._index, prompt, encoder.chunk)
            if len(tokens) - self._spoken < hop + lookahead:
                break
            yield self._chunk(tokens[: self._spoken + hop + lookahead], hop, final=False)
        if final:
            yield self._chunk(tokens, len(tokens) - self._spoken, final=True)

    def _chunk(self, tokens: Sequence[int], hop: int, final: bool) -> AudioChunk:
        item = flow_item(self._request, tokens, final)
        chunked = not final or self._policy.joins is Joins.SEAMLESS
        mel = self._models.flow([item], chunked)[0]
        fresh = mel[self._spoken * self._models.config.rates.frames_per_token :]
        samples: np.ndarray = self._vocoder.push(self._speed.push(fresh, final), final)
        chunk = AudioChunk(samples, self._models.config.rates.sample_rate, self._index, final)
        self._spoken += hop
        self._index += 1
        return chunk


def flow_item(request: SynthesisRequest, tokens: Sequence[int], final: bool) -> FlowItem:
    """A request's speech tokens with its voice, as the flow wants them."""
    conditioning = request.conditioning
    spoken = torch.tensor(tokens, dtype=torch.int64)
    return FlowItem(
        tokens=torch.cat((conditioning.flow_tokens, spoken)),
        prompt_mel=conditioning.flow_mel,
        embedding=conditioning.embedding,
        final=final,
    )
