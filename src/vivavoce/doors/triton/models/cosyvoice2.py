"""The model `cosyvoice2`: text → audio by asking the other models of the server.

`audio_tokenizer` and `speaker_embedding` make a voice of a recording, `tensorrt_llm` speech tokens of the text, and
`token2wav` audio of the tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.fingerprint import fingerprint
from vivavoce.checkpoint.folder import BACKBONE, read_card, read_config
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.chunk_schedule import ChunkSchedule
from vivavoce.doors.triton.models.inner_language_model import InnerLanguageModel
from vivavoce.doors.triton.models.inner_token2wav import InnerToken2Wav
from vivavoce.doors.triton.models.replies import end, refusal
from vivavoce.doors.triton.models.request_voices import RequestVoices, open_voices
from vivavoce.doors.triton.models.segment_plan import SegmentPlan
from vivavoce.doors.triton.models.speaking_parameters import SpeakingParameters
from vivavoce.doors.triton.models.spoken_request import read_request
from vivavoce.doors.triton.models.staged_extractor import StagedExtractor
from vivavoce.doors.triton.models.staged_speech import Speech, StagedSpeech
from vivavoce.errors import CheckpointError, Overloaded, RequestCancelled
from vivavoce.export.merged_lm import HEAD_BIAS, open_merged_lm
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.text.tokenizer import TextTokenizer

AT_ONCE = 32
"""Requests of one instance that are worked on at once: two threads each, which wait for other models."""
MOST_TAKEN = 512
"""Requests of one instance, those included that wait for a thread; more are refused."""
_RETRY_S = 5.0


@dataclass(frozen=True, eq=False)
class Stages:
    """What an instance works with. `callers` and `readers` are its threads."""

    voices: RequestVoices
    plan: SegmentPlan
    speech: StagedSpeech
    callers: ThreadPoolExecutor
    readers: ThreadPoolExecutor


class CosyVoice2:
    """One instance. Caches of recordings' voices are its own; all else belongs to one request.

    Requests are worked on side by side, so that a slow one holds up nobody. Streaming, `execute` returns at once and
    audio is sent as it is made; otherwise it returns whole answers.
    """

    def __init__(self, backend: Any, stages: Stages, *, decoupled: bool) -> None:
        self._backend, self._stages, self._decoupled = backend, stages, decoupled
        self._places = threading.BoundedSemaphore(MOST_TAKEN)

    @classmethod
    def load(cls, args: Mapping[str, str], backend: Any) -> CosyVoice2:
        """Set up an instance from what Triton hands to `initialize`.

        Raises:
            VivavoceError: a parameter, the model folder, the tokenizer's folder or a voice cannot be used.
        """
        parameters = SpeakingParameters.read(args)
        return cls(backend, _stages(backend, parameters), decoupled=parameters.decoupled)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests; streaming: None, and the answers are sent by and by."""
        if not self._decoupled:
            return list(self._stages.callers.map(self._answer, requests))
        for request in requests:
            self._take(request.get_response_sender(), request)
        return None

    def close(self) -> None:
        """Finish what was taken."""
        self._stages.callers.shutdown()
        self._stages.readers.shutdown()

    def _take(self, sender: Any, request: Any) -> None:
        if not self._places.acquire(blocking=False):
            text = f"server: {MOST_TAKEN} requests wait already; send this one again in {_RETRY_S:g} s"
            end(self._backend, sender, Overloaded(text, _RETRY_S))
            return
        self._stages.callers.submit(self._stream, sender, request)

    def _stream(self, sender: Any, request: Any) -> None:
        try:
            with closing(self._audio(request, sender.is_cancelled)) as audio:
                for samples in audio:
                    sender.send(wire.answer(self._backend, waveform=samples[None]))
        except Exception as error:
            end(self._backend, sender, error)
        else:
            end(self._backend, sender)
        finally:
            self._places.release()

    def _answer(self, request: Any) -> Any:
        try:
            samples = np.concatenate(list(self._audio(request, request.is_cancelled)))
            return wire.answer(self._backend, waveform=samples[None])
        except Exception as error:
            return refusal(self._backend, error)

    def _audio(self, request: Any, left: Callable[[], bool]) -> Speech:
        if left():
            raise RequestCancelled("request: its client has left")
        wanted = read_request(self._backend, request)
        segments = self._stages.plan.segments(wanted, self._stages.voices.of(wanted))
        yield from self._stages.speech.speak(segments, left)


def _stages(backend: Any, parameters: SpeakingParameters) -> Stages:
    folder = parameters.folder
    config = read_config(folder, ())  # the flow's own blocks are token2wav's
    tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
    text = TextFrontEnd(tokenizer, scripts=read_card(folder).scripts)
    vocabulary = MergedVocabulary(len(tokenizer), config.lm.vocabulary.num_speech_tokens)
    if parameters.llm_tokenizer_dir is not None:
        _check_tokenizer(parameters.llm_tokenizer_dir, vocabulary)
    callers = ThreadPoolExecutor(AT_ONCE, "cosyvoice2-request")
    readers = ThreadPoolExecutor(AT_ONCE, "cosyvoice2-tokens")
    extractor = StagedExtractor(backend, config, vocabulary, text, readers)
    language_model = InnerLanguageModel(
        backend, vocabulary, decoupled=parameters.decoupled, bias=_head_bias(folder, tokenizer, parameters)
    )
    schedule = _schedule(parameters, config) if parameters.decoupled else None
    return Stages(
        voices=open_voices(parameters, extractor, partial(fingerprint, folder)),
        plan=SegmentPlan(text, config),
        speech=StagedSpeech(language_model, InnerToken2Wav(backend, vocabulary), schedule, readers),
        callers=callers,
        readers=readers,
    )


def _schedule(parameters: SpeakingParameters, config: ModelConfig) -> ChunkSchedule:
    return ChunkSchedule(parameters.policy, config.flow.encoder.lookahead, config.rates.tokens_per_second)


def _head_bias(folder: Path, tokenizer: TextTokenizer, parameters: SpeakingParameters) -> NDArray[np.float32] | None:
    """TensorRT-LLM's own backend has no place for the speech head's bias in its engine, and takes it by request."""
    if not parameters.engine_backend:
        return None
    bias = open_merged_lm(folder, len(tokenizer)).read(HEAD_BIAS)
    return np.asarray(bias.float().numpy())


def _check_tokenizer(folder: Path, vocabulary: MergedVocabulary) -> None:
    """The language model that was merged must count its ids as this model does."""
    found = TextTokenizer.from_folder(folder).token_id("<|s_0|>")
    if found != vocabulary.text_size:
        where = "has no speech tokens" if found is None else f"begins speech at id {found}"
        raise CheckpointError(
            f"llm_tokenizer_dir: the tokenizer in {folder} {where}, the model in model_dir begins it at "
            f"{vocabulary.text_size}; convert this model again (`vivavoce convert hf`)"
        )
