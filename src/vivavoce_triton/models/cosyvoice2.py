"""The model `cosyvoice2`: text → audio by asking the other models of the server.

`audio_tokenizer` and `speaker_embedding` make a voice of a recording, `tensorrt_llm` speech tokens of the text, and
`token2wav` audio of the tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.folder import BACKBONE, fingerprint, read_card
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.settings import read_config
from vivavoce.engine.chunk_policy import Progress
from vivavoce.engine.request import SegmentRequest
from vivavoce.errors import CheckpointError, Overloaded, StageFailed, VivavoceError
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.extract import VoiceExtractor
from vivavoce_export.merged_lm import HEAD_BIAS, open_merged_lm
from vivavoce_triton.models.backend import (
    InnerError,
    Inputs,
    Parameters,
    answer,
    answered,
    check_present,
    end,
)
from vivavoce_triton.models.inner_models import InnerLanguageModel, InnerToken2Wav, StagedExtractor
from vivavoce_triton.models.speaking import RequestVoices, chunk_policy, read_request

log = logging.getLogger(__name__)

Speech = Generator[NDArray[np.float32], None, None]
"""Chunks in order: [n] float32."""
AT_ONCE = 32
"""Requests of one instance that are worked on at once: two threads each, which wait for other models."""
MOST_TAKEN = 512
"""Requests of one instance, those included that wait for a thread; more are refused."""
_RETRY_S = 5.0
_LOOK_EVERY = 4
"""Answers of the language model after which it is asked whether the client is there: a message to the server."""


class DecodedTokens:
    """Speech tokens of one segment; one thread writes until they end, one reads."""

    def __init__(self, segment: SegmentRequest) -> None:
        self.segment, self.tokens = segment, list[int]()
        self._changed, self._ended = threading.Condition(), False
        self._error: Exception | None = None

    def add(self, tokens: Sequence[int]) -> None:
        """More have come."""
        with self._changed:
            self.tokens += tokens
            self._changed.notify_all()

    def end(self, error: Exception | None = None) -> None:
        """No more will come, because all are there or because of `error`."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def wait(self, count: int | None) -> tuple[int, ...]:
        """The first `count` tokens once they are there, all of them (fewer than `count`) at the end; None: all.

        Raises what ended them early, whether or not there are enough.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (count is not None and len(self.tokens) >= count))
            if self._error is not None:
                raise self._error
            return tuple(self.tokens[:count])


class CosyVoice2Model:
    """One instance. Caches of recordings' voices are its own; all else belongs to one request.

    Requests are worked on side by side, so that a slow one holds up no other: one thread fetches speech tokens while
    another makes audio of them. Streaming, `execute` returns at once and audio is sent as it is made; otherwise it
    returns whole answers.
    """

    def __init__(self, backend: Any, parameters: Parameters) -> None:
        self._backend, self._policy, folder = backend, chunk_policy(parameters), parameters.model_folder
        self._config = read_config(folder, ())  # the flow's own blocks are token2wav's
        tokenizer, card = TextTokenizer.from_folder(folder / BACKBONE), read_card(folder)
        text = TextFrontEnd(tokenizer, scripts=card.scripts)
        num_speech_tokens = self._config.lm.vocabulary.num_speech_tokens
        self._vocabulary = MergedVocabulary(len(tokenizer), num_speech_tokens, self._config.generation)
        _check_tokenizer(parameters.path("llm_tokenizer_dir"), self._vocabulary)
        bias = None
        if parameters["triton_backend"] == "tensorrtllm":
            # TensorRT-LLM's own backend has no place for the speech head's bias in its engine, and takes it by request.
            bias = np.asarray(open_merged_lm(folder, len(tokenizer)).read(HEAD_BIAS).float().numpy())
        self._callers = ThreadPoolExecutor(AT_ONCE, "cosyvoice2-request")
        self._readers = ThreadPoolExecutor(AT_ONCE, "cosyvoice2-tokens")
        self._places = threading.BoundedSemaphore(MOST_TAKEN)
        extractor = StagedExtractor(backend, self._config, self._vocabulary, text, self._readers)
        self._voices = RequestVoices(parameters, extractor, partial(fingerprint, folder))
        self._front_end = FrontEnd(self._config, card, text, folder, cast(VoiceExtractor, extractor))
        self._language_model = InnerLanguageModel(backend, self._vocabulary, decoupled=parameters.decoupled, bias=bias)

    @classmethod
    def load(cls, args: Mapping[str, str], backend: Any) -> CosyVoice2Model:
        """From what Triton hands to `initialize`; `VivavoceError`: a parameter, folder or voice cannot be used."""
        return cls(backend, Parameters(args))

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests; streaming: None, and the answers are sent by and by."""
        if self._policy is None:
            return list(self._callers.map(self._answer, requests))
        for request in requests:
            sender = request.get_response_sender()
            if self._places.acquire(blocking=False):
                self._callers.submit(self._stream, sender, request)
            else:
                words = f"server: {MOST_TAKEN} requests wait already; send this one again in {_RETRY_S:g} s"
                end(self._backend, sender, Overloaded(words, _RETRY_S))
        return None

    def close(self) -> None:
        """Finish what was taken."""
        self._callers.shutdown()
        self._readers.shutdown()

    def _stream(self, sender: Any, request: Any) -> None:
        try:
            with closing(self._audio(request, sender.is_cancelled)) as audio:
                for samples in audio:
                    sender.send(answer(self._backend, waveform=samples[None]))
        except Exception as error:
            end(self._backend, sender, error)
        else:
            end(self._backend, sender)
        finally:
            self._places.release()

    def _answer(self, request: Any) -> Any:
        return answered(
            self._backend, "waveform", lambda: np.concatenate(list(self._audio(request, request.is_cancelled)))
        )

    def _audio(self, request: Any, left: Callable[[], bool]) -> Speech:
        """Audio in order. Closing the iterator, or `left` turning true, ends the inner work."""
        check_present(left)
        wanted = read_request(Inputs(self._backend, request), "official")
        segments = self._front_end.requests(wanted.text, self._voices.of(wanted), wanted.options)
        gone, silent = threading.Event(), True
        texts = [DecodedTokens(segment) for segment in segments]
        self._readers.submit(self._fetch_all, texts, lambda: gone.is_set() or left())
        try:
            for one in texts:
                with closing(self._chunks(one)) as chunks:
                    for samples in chunks:
                        silent = False
                        yield samples
                        check_present(left)
            if silent:
                raise StageFailed("tensorrt_llm: made no speech of this text; send it again with another seed")
        finally:
            gone.set()

    def _fetch_all(self, texts: Sequence[DecodedTokens], left: Callable[[], bool]) -> None:
        """Fetch the tokens of all segments, one after the other: they are there by the time they are heard."""
        error: Exception | None = None
        for one in texts:
            try:
                if error is None:
                    self._fetch(one, left)
            except Exception as problem:
                if not isinstance(problem, (InnerError, VivavoceError)):
                    log.error("tokens not read: those of the language model", exc_info=problem)
                # The thread that makes audio raises it; with the frames of this one it would hold the request for good.
                error = problem.with_traceback(None)
            one.end(error)

    def _fetch(self, one: DecodedTokens, left: Callable[[], bool]) -> None:
        if one.segment.pause_s:
            return
        with closing(self._language_model.tokens(one.segment)) as parts:
            for count, part in enumerate(parts):
                one.add(part)
                if count % _LOOK_EVERY == 0:
                    check_present(left)

    def _chunks(self, one: DecodedTokens) -> Speech:
        """The audio of a segment, cut by the engine's rules, or as a whole."""
        if one.segment.pause_s:
            yield np.zeros(round(one.segment.pause_s * self._config.rates.sample_rate), np.float32)
            return
        began, voice_tokens = time.perf_counter(), len(one.segment.conditioning.flow_prompt)
        chunks = spoken = 0
        with closing(InnerToken2Wav(self._backend, self._vocabulary, one.segment)) as token2wav:
            if self._policy is None:
                if there := one.wait(None):
                    yield token2wav.whole(there)
                return
            while True:
                pending, elapsed_s = len(one.tokens) - spoken, time.perf_counter() - began
                progress = Progress(chunks, spoken, pending, voice_tokens, elapsed_s)
                hop = self._policy.next_hop(progress, self._config.rates.tokens_per_second)
                needed = spoken + hop + self._config.flow.encoder.lookahead
                there = one.wait(needed)
                if len(there) < needed:
                    if there:
                        yield token2wav.step(there, spoken, last=True)
                    return
                yield token2wav.step(there, spoken, last=False)
                spoken, chunks = spoken + hop, chunks + 1


def _check_tokenizer(folder: Path | None, vocabulary: MergedVocabulary) -> None:
    """The language model that was merged must count its ids as this model does."""
    found = vocabulary.text_size if folder is None else TextTokenizer.from_folder(folder).token_id("<|s_0|>")
    if found != vocabulary.text_size:
        where = "has no speech tokens" if found is None else f"begins speech at id {found}"
        raise CheckpointError(
            f"llm_tokenizer_dir: the tokenizer in {folder} {where}, the model in model_dir begins it at "
            f"{vocabulary.text_size}; convert this model again (`vivavoce export hf`)"
        )
