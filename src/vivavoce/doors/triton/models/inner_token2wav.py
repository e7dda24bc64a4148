"""Audio from the model `token2wav`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.inner_calls import InnerError, checked, make_request, output
from vivavoce.engine.request import SynthesisRequest
from vivavoce.errors import StageFailed

MODEL = "token2wav"


class InnerToken2Wav:
    """Asks for audio; safe to use from several threads. `vocabulary`: of the merged language model."""

    def __init__(self, backend: Any, vocabulary: MergedVocabulary) -> None:
        self._backend, self._vocabulary = backend, vocabulary

    def whole(self, segment: SynthesisRequest, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The audio of a whole segment: [n] float32.

        Raises:
            InnerError: token2wav refused or failed.
        """
        return self.ask(self.voice_tensors(segment), tokens)

    def open(self, segment: SynthesisRequest) -> AudioSteps:
        """The audio of a segment step by step."""
        return AudioSteps(self, self.voice_tensors(segment))

    def voice_tensors(self, segment: SynthesisRequest) -> dict[str, NDArray[Any]]:
        """What each request of a segment brings beside its tokens; without a reference only the embedding."""
        voice = segment.conditioning
        tensors: dict[str, NDArray[Any]] = {
            "prompt_spk_embedding": voice.embedding.numpy().astype(np.float16),
            "seed": np.array([segment.seed], np.int64),
            "speed": np.array([segment.speed], np.float32),
        }
        if voice.flow_prompt:
            tensors["prompt_speech_tokens"] = self._merged(voice.flow_prompt)
            tensors["prompt_speech_feat"] = voice.flow_mel.numpy().astype(np.float16)
        return tensors

    def ask(
        self, voice: dict[str, NDArray[Any]], tokens: Sequence[int], request_id: str = "", **step: NDArray[Any]
    ) -> NDArray[np.float32]:
        """One request: speech tokens (0 … V − 1), and what makes it a step; [n] float32."""
        tensors = {"target_speech_tokens": self._merged(tokens), **voice, **step}
        request = make_request(self._backend, MODEL, ("waveform",), tensors, request_id)
        wave = output(self._backend, checked(request.exec()), "waveform")
        if wave is None:
            raise StageFailed("token2wav: answered without a waveform; look at its log")
        return wave.astype(np.float32, copy=False)

    def _merged(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        return np.array(tokens, np.int32) + np.int32(self._vocabulary.text_size)


class AudioSteps:
    """One segment's stream in token2wav, which keeps its state under a request id; one thread at a time."""

    def __init__(self, token2wav: InnerToken2Wav, voice: dict[str, NDArray[Any]]) -> None:
        self._token2wav, self._voice = token2wav, voice
        self._id = uuid.uuid4().hex  # a client's own ids need not be its alone
        self._open = False

    def step(self, tokens: Sequence[int], offset: int, *, last: bool) -> NDArray[np.float32]:
        """The next piece of audio: [n] float32.

        Args:
            tokens: all of the segment so far (0 … V − 1), with those that the flow only looks ahead to.
            offset: of these, already spoken.
            last: no more will come, and all are to be spoken.

        Raises:
            InnerError: token2wav refused or failed.
        """
        voice = {} if self._open else self._voice  # the first step's holds for all
        self._open = not last
        return self._token2wav.ask(voice, tokens, self._id, **_step(offset, last=last))

    def close(self) -> None:
        """Give the stream up, if its last step was not made."""
        if self._open:
            self._open = False
            with suppress(InnerError):  # what nobody goes on with is dropped there in time
                self._token2wav.ask({}, (), self._id, **_step(0, last=True))


def _step(offset: int, *, last: bool) -> dict[str, NDArray[Any]]:
    return {"token_offset": np.array([offset], np.int32), "finalize": np.array([last])}
