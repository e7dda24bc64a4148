"""Segments → audio by the models of the server: tokens are fetched in one thread while another makes audio of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from vivavoce.doors.triton.models.chunk_schedule import ChunkSchedule
from vivavoce.doors.triton.models.decoded_tokens import DecodedTokens
from vivavoce.doors.triton.models.inner_calls import InnerError
from vivavoce.doors.triton.models.inner_language_model import InnerLanguageModel
from vivavoce.doors.triton.models.inner_token2wav import InnerToken2Wav
from vivavoce.engine.request import SynthesisRequest
from vivavoce.errors import RequestCancelled, StageFailed, VivavoceError

log = logging.getLogger(__name__)

Speech = Generator[NDArray[np.float32], None, None]
"""Chunks in order: [n] float32."""

_LOOK_EVERY = 4
"""Speech tokens after which it is asked whether the client is still there: the answer is a message to the server."""


class StagedSpeech:
    """Speaks any number of requests at once, each in a thread of its caller and one of `readers`.

    Args:
        language_model, token2wav: the inner models.
        schedule: how streams are cut; None: every segment is made as a whole.
        readers: threads that wait for the language model, at least as many as callers.
    """

    def __init__(
        self,
        language_model: InnerLanguageModel,
        token2wav: InnerToken2Wav,
        schedule: ChunkSchedule | None,
        readers: Executor,
    ) -> None:
        self._language_model, self._token2wav = language_model, token2wav
        self._schedule, self._readers = schedule, readers

    def speak(self, segments: Sequence[SynthesisRequest], left: Callable[[], bool]) -> Speech:
        """Audio in order. Closing the iterator, or `left` turning true, ends the inner work.

        Raises:
            InnerError: an inner model refused or failed.
            RequestCancelled: `left` is true: whoever asked has gone.
            StageFailed: the language model said nothing.
        """
        gone = threading.Event()
        texts = [(segment, DecodedTokens()) for segment in segments]
        self._readers.submit(self._read, texts, lambda: gone.is_set() or left())
        silent = True
        try:
            for segment, tokens in texts:
                make = self._whole if self._schedule is None else self._chunks
                with closing(make(segment, tokens)) as chunks:
                    for samples in chunks:
                        silent = False
                        yield samples
                        _check(left)
            if silent:
                raise StageFailed("tensorrt_llm: made no speech of this text; send it again with another seed")
        finally:
            gone.set()

    def _read(self, texts: Sequence[tuple[SynthesisRequest, DecodedTokens]], left: Callable[[], bool]) -> None:
        """Fetch the tokens of all segments, one after the other: they are there by the time they are heard."""
        error: Exception | None = None
        for segment, tokens in texts:
            try:
                if error is None:
                    self._fetch(segment, tokens, left)
            except Exception as problem:
                if not isinstance(problem, (InnerError, VivavoceError)):
                    log.error("the language model could not be read", exc_info=problem)
                # Whoever makes audio raises it; with the frames of this thread it would hold the request for good.
                error = problem.with_traceback(None)
            tokens.end(error)

    def _fetch(self, segment: SynthesisRequest, tokens: DecodedTokens, left: Callable[[], bool]) -> None:
        look_at = 0
        with closing(self._language_model.tokens(segment)) as parts:
            for part in parts:
                tokens.add(part)
                if len(tokens) >= look_at:
                    look_at = len(tokens) + _LOOK_EVERY
                    _check(left)

    def _whole(self, segment: SynthesisRequest, tokens: DecodedTokens) -> Speech:
        spoken = tokens.wait(None)
        if spoken:
            yield self._token2wav.whole(segment, spoken)

    def _chunks(self, segment: SynthesisRequest, tokens: DecodedTokens) -> Speech:
        schedule = self._schedule
        assert schedule is not None
        began = time.perf_counter()
        chunks = spoken = 0
        with closing(self._token2wav.open(segment)) as steps:
            while True:
                hop = schedule.hop(
                    chunks=chunks,
                    spoken=spoken,
                    pending=len(tokens) - spoken,
                    prompt_tokens=len(segment.conditioning.flow_prompt),
                    elapsed_s=time.perf_counter() - began,
                )
                needed = spoken + hop + schedule.lookahead
                there = tokens.wait(needed)
                if len(there) < needed:
                    if there:
                        yield steps.step(there, spoken, last=True)
                    return
                yield steps.step(there, spoken, last=False)
                spoken, chunks = spoken + hop, chunks + 1


def _check(left: Callable[[], bool]) -> None:
    if left():
        raise RequestCancelled("request: its client has left")
