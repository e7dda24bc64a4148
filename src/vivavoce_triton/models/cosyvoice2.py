"""The models `cosyvoice2`, `cosyvoice2_dit` and `cosyvoice3`: text → audio, by requests to other models of the server.

`audio_tokenizer` and `speaker_embedding` encode a recording. `tensorrt_llm` or an endpoint generates speech tokens.
`cosyvoice2` gets the audio of these tokens from `token2wav`, and `cosyvoice2_dit` from `token2wav_dit`. `cosyvoice3`
gets mels from its `token2wav`, and then audio from `vocoder`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.folder import BACKBONE, fingerprint, read_card
from vivavoce.checkpoint.settings import read_config
from vivavoce.engine.request import SegmentRequest
from vivavoce.errors import CheckpointError, Overloaded, StageFailed, VivavoceError
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.extract import VoiceExtractor
from vivavoce_export.merged_lm import HEAD_BIAS, open_merged_lm
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.models.backend import InnerError, Inputs, Parameters, answer, answered, check_present, end
from vivavoce_triton.models.inner_models import (
    EndpointLanguageModel,
    InnerLanguageModel,
    InnerToken2Wav,
    InnerVocoder,
    StagedExtractor,
)
from vivavoce_triton.models.speaking import RequestVoices, chunk_policy, read_request

log = logging.getLogger(__name__)

Speech = Generator[NDArray[np.float32], None, None]
"""Yields chunks of audio in order, [n] float32 each."""
AT_ONCE = 32
"""Number of requests that run at once in an instance. Each has two threads, which wait for other models."""
MOST_TAKEN = 512
"""Limit of the running and waiting requests in an instance."""
_RETRY_S = 5.0
_LOOK_EVERY = 4
"""Number of responses of the language model between two checks whether the client has disconnected."""


class DecodedTokens:
    """Speech tokens of one segment. One thread receives them from the language model, and another thread reads them."""

    def __init__(self, segment: SegmentRequest) -> None:
        self.segment, self.tokens = segment, list[int]()
        self._changed, self._ended = threading.Condition(), False
        self._error: Exception | None = None

    def add(self, tokens: Sequence[int]) -> None:
        with self._changed:
            self.tokens += tokens
            self._changed.notify_all()

    def end(self, error: Exception | None = None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def wait(self, count: int | None) -> tuple[int, ...]:
        """Return the first `count` tokens (None: all) when they are there or the segment ends; raises `end`'s error."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (count is not None and len(self.tokens) >= count))
            if self._error is not None:
                raise self._error
            return tuple(self.tokens[:count])


class CosyVoice2Model:
    """Serves each request with two threads: one requests speech tokens, the other requests their audio.

    When streaming, `execute` returns at once, and chunks are sent when ready. Otherwise it returns whole responses.
    """

    def __init__(self, backend: Any, parameters: Parameters) -> None:
        self._backend, self._policy, folder = backend, chunk_policy(parameters), parameters.model_folder
        self._config = read_config(folder, ())
        tokenizer, card = TextTokenizer.from_folder(folder / BACKBONE), read_card(folder)
        text = TextFrontEnd(tokenizer, scripts=card.scripts)
        num_speech_tokens = self._config.lm.vocabulary.num_speech_tokens
        self._vocabulary = MergedVocabulary(len(tokenizer), num_speech_tokens, self._config.generation)
        _check_tokenizer(parameters.path("llm_tokenizer_dir"), self._vocabulary)
        bias = None
        if parameters["triton_backend"] == "tensorrtllm":
            # An engine does not include the bias of the speech head, so the bias is sent with each request.
            bias = np.asarray(open_merged_lm(folder, len(tokenizer)).read(HEAD_BIAS).float().numpy())
        self._callers = ThreadPoolExecutor(AT_ONCE, "cosyvoice2-request")
        self._readers = ThreadPoolExecutor(AT_ONCE, "cosyvoice2-tokens")
        self._accepted = threading.BoundedSemaphore(MOST_TAKEN)
        size, name = self._vocabulary.text_size, parameters.model
        self._synthesis: Callable[[SegmentRequest], InnerToken2Wav | InnerVocoder]
        if name == "cosyvoice3":  # its models use the tokenizer's own ids, not merged ids
            size, self._synthesis = 0, partial(InnerVocoder, backend)
        else:
            self._synthesis = partial(InnerToken2Wav, backend, size, dit=name == "cosyvoice2_dit")
        extractor = StagedExtractor(backend, self._config, size, text, self._readers)
        self._voices = RequestVoices(parameters, extractor, partial(fingerprint, folder))
        self._front_end = FrontEnd(self._config, card, text, folder, cast(VoiceExtractor, extractor))
        self._language_model: InnerLanguageModel | EndpointLanguageModel
        if address := parameters["llm_api_base"]:
            name = parameters["llm_model_name"]
            self._language_model = EndpointLanguageModel(address, name, tokenizer, num_speech_tokens)
        else:
            decoupled = parameters.decoupled
            self._language_model = InnerLanguageModel(backend, self._vocabulary, decoupled=decoupled, bias=bias)

    @classmethod
    def load(cls, parameters: Parameters, backend: Any) -> CosyVoice2Model:
        """Load the model. `VivavoceError`: a parameter, folder or voice cannot be used."""
        return cls(backend, parameters)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if self._policy is None:
            return list(self._callers.map(self._answer, requests))
        for request in requests:
            sender = request.get_response_sender()
            if self._accepted.acquire(blocking=False):
                self._callers.submit(self._stream, sender, request)
            else:
                words = f"server: {MOST_TAKEN} requests wait already; send this one again in {_RETRY_S:g} s"
                end(self._backend, sender, Overloaded(words, _RETRY_S))
        return None

    def close(self) -> None:
        self._callers.shutdown()
        self._readers.shutdown()
        self._language_model.close()

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
            self._accepted.release()

    def _answer(self, request: Any) -> Any:
        return answered(
            self._backend, "waveform", lambda: np.concatenate(list(self._audio(request, request.is_cancelled)))
        )

    def _audio(self, request: Any, left: Callable[[], bool]) -> Speech:
        """Yield the audio of a request. Its inner requests end if the iterator is closed or `left` returns True."""
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
                        if len(samples):  # a vocoder with lookahead outputs no samples for a short first step
                            silent = False
                            yield samples
                        check_present(left)
            if silent:
                raise StageFailed("language model: generated no speech for this text; send it again with another seed")
        finally:
            gone.set()

    def _fetch_all(self, texts: Sequence[DecodedTokens], left: Callable[[], bool]) -> None:
        error: Exception | None = None
        for one in texts:
            try:
                if error is None:
                    self._fetch(one, left)
            except Exception as problem:
                if not isinstance(problem, (InnerError, VivavoceError)):
                    log.error("tokens not read: the language model's stream failed", exc_info=problem)
                # The audio thread raises the error. Its traceback is dropped: its frames would keep the request alive.
                error = problem.with_traceback(None)
            one.end(error)

    def _fetch(self, one: DecodedTokens, left: Callable[[], bool]) -> None:
        if one.segment.pause_s:
            return
        silent = self._vocabulary.own.silent
        run = silent.run_at_start
        with closing(self._language_model.tokens(one.segment)) as parts:
            for count, part in enumerate(parts):
                # Runtimes other than ours do not shorten silences, so it is done here.
                places, run = silent.spoken(part, run)
                one.add([part[place] for place in places])
                if count % _LOOK_EVERY == 0:
                    check_present(left)

    def _chunks(self, one: DecodedTokens) -> Speech:
        if one.segment.pause_s:
            yield np.zeros(round(one.segment.pause_s * self._config.rates.sample_rate), np.float32)
            return
        began, voice_tokens = time.perf_counter(), len(one.segment.conditioning.flow_prompt)
        chunks = spoken = 0
        with closing(self._synthesis(one.segment)) as token2wav:
            if self._policy is None:
                if there := one.wait(None):
                    yield token2wav.whole(there)
                return
            while True:
                pending, elapsed_s = len(one.tokens) - spoken, time.perf_counter() - began
                rate = self._config.rates.tokens_per_second
                hop = self._policy.next_hop(chunks, spoken, pending, voice_tokens, elapsed_s, rate)
                needed = spoken + hop + self._config.flow.encoder.lookahead
                there = one.wait(needed)
                if len(there) < needed:
                    if there:
                        yield token2wav.step(there, spoken, last=True)
                    return
                yield token2wav.step(there, spoken, last=False)
                spoken, chunks = spoken + hop, chunks + 1


def _check_tokenizer(folder: Path | None, vocabulary: MergedVocabulary) -> None:
    found = vocabulary.text_size if folder is None else TextTokenizer.from_folder(folder).token_id("<|s_0|>")
    if found != vocabulary.text_size:
        where = "has no speech tokens" if found is None else f"begins speech at id {found}"
        raise CheckpointError(
            f"llm_tokenizer_dir: the tokenizer in {folder} {where}, but the model in model_dir begins it at "
            f"{vocabulary.text_size}; convert this model again (`vivavoce export hf`)"
        )
