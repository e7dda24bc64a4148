"""One request → audio: offline, or in chunks, each of which computes the whole history again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.plain.flow import official_mel, stream_mel, stream_units
from benchmarks.plain.lm import Chooser, decode, plain_tokens
from benchmarks.plain.vocoder import at_speed, stretched, wave_stream, whole
from vivavoce.engine.chunk_policy import ChunkPolicy, CrossfadeMode
from vivavoce.engine.request import SegmentRequest
from vivavoce.models.build import Models


@dataclass(frozen=True, eq=False)
class PlainSpeech:
    """Speech tokens, mel [frames, bins] float32 before the speed is applied, samples [n] float32."""

    tokens: tuple[int, ...]
    mel: Tensor
    samples: NDArray[np.float32]


@torch.inference_mode()
def plain_speech(
    models: Models,
    request: SegmentRequest,
    official: bool = False,
    chooser: Chooser | None = None,
    source_noise: bool = True,
) -> PlainSpeech:
    """The whole utterance; `official` and `chooser` as in `plain_tokens`."""
    tokens = plain_tokens(models, request, official, chooser)
    mel = official_mel(models, request.conditioning, tokens, final=True)
    seed = request.seed if source_noise else None
    samples = whole(models.vocoder, at_speed(mel, request.speed), seed)
    return PlainSpeech(tuple(tokens), mel.cpu(), samples)


@torch.inference_mode()
def plain_stream(
    models: Models,
    request: SegmentRequest,
    policy: ChunkPolicy,
    official: bool = False,
    chooser: Chooser | None = None,
    source_noise: bool = True,
) -> Iterator[NDArray[np.float32]]:
    """Samples of each chunk, [n] float32, as soon as the policy allows the chunk.

    Official joins: attention on the official grid of chunks, and of the last chunk to everything; the speed is ignored,
    as in the official code. Seamless joins: attention by blocks, see `stream_mel`.
    """
    speaker = _Speaker(models, request, policy, source_noise)
    tokens: list[int] = []
    for token in decode(models, request, official, chooser):
        tokens.append(token)
        hop = speaker.wanted_hop(len(tokens))
        if len(tokens) - speaker.spoken >= hop + max(1, policy.lookahead):
            yield speaker.chunk(tokens, hop, final=False)
    if tokens:
        yield speaker.chunk(tokens, len(tokens) - speaker.spoken, final=True)


class _Speaker:
    """The state of one stream."""

    def __init__(self, models: Models, request: SegmentRequest, policy: ChunkPolicy, source_noise: bool) -> None:
        self._models, self._request, self._policy = models, request, policy
        self._wave = wave_stream(models.vocoder, policy.joins, request.seed if source_noise else None)
        self._hops: list[int] = []
        self._given = 0
        """Mel frames handed to the vocoder, at the request's speed."""
        self._started = time.perf_counter()

    @property
    def spoken(self) -> int:
        """Speech tokens in the chunks made so far."""
        return sum(self._hops)

    def wanted_hop(self, produced: int) -> int:
        """Number of tokens in the next chunk; produced: number of tokens so far."""
        return self._policy.next_hop(
            chunks=len(self._hops),
            spoken=self.spoken,
            pending=produced - self.spoken,
            prompt_tokens=len(self._request.conditioning.flow_tokens),
            elapsed_s=time.perf_counter() - self._started,
            tokens_per_second=self._models.config.rates.tokens_per_second,
        )

    def chunk(self, tokens: Sequence[int], hop: int, final: bool) -> NDArray[np.float32]:
        """The samples of the next `hop` tokens."""
        end = self.spoken + hop
        known = tokens if final else tokens[: end + self._policy.lookahead]
        self._hops.append(hop)
        mel = stretched(self._mel(known, final), self._speed, final)
        fresh, self._given = mel[self._given :], len(mel)
        return self._wave.push(fresh, final)

    @property
    def _speed(self) -> float:
        return self._request.speed if self._policy.joins is CrossfadeMode.SEAMLESS else 1.0

    def _mel(self, known: Sequence[int], final: bool) -> Tensor:
        conditioning = self._request.conditioning
        if self._policy.joins is CrossfadeMode.OFFICIAL:
            return official_mel(self._models, conditioning, known, final)
        units = stream_units(
            len(conditioning.flow_tokens),
            self._hops,
            len(known),
            self._policy.lookahead,
            self._models.config.flow.encoder.lookahead,
        )
        return stream_mel(self._models, conditioning, known, units)
