"""Recordings → voices by the models `audio_tokenizer` and `speaker_embedding`."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
import torch

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.inner_calls import checked, make_request, output
from vivavoce.errors import StageFailed
from vivavoce.models.features.mel import prompt_mel
from vivavoce.service.audio.resample import resample_sinc
from vivavoce.service.audio.types import Audio, Samples
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.voice import Voice


class StagedExtractor:
    """Extracts as `VoiceExtractor` does, with both encoders in other models; safe to use from several threads.

    Recordings are those of requests: checked samples at 16 kHz. `threads`: so that the encoders work side by side.
    """

    def __init__(
        self, backend: Any, config: ModelConfig, vocabulary: MergedVocabulary, text: TextFrontEnd, threads: Executor
    ) -> None:
        self._backend, self._config, self._vocabulary = backend, config, vocabulary
        self._text, self._threads = text, threads

    def extract(self, source: AudioSource, transcript: str = "") -> Voice:
        """The voice of a recording, its tokens and mel cut to the same duration.

        Raises:
            InnerError: an encoder refused or failed.
            InvalidText: a transcript that the model cannot read.
        """
        assert isinstance(source, Audio)
        normalised = self._text.normalize(transcript)
        tokens = self._threads.submit(self._speech_tokens, source.samples)
        wave = resample_sinc(source.samples, source.sample_rate, self._config.rates.sample_rate)
        voice = Voice(
            embedding=self._embedding(source.samples),
            fingerprint="",
            transcript=transcript,
            prompt_text=self._text.encode(normalised) if normalised else (),
            mel=prompt_mel(wave[None], self._config.mel)[0],
            speech_tokens=tokens.result(),
        )
        return voice.aligned(self._config.rates.frames_per_token)

    def _speech_tokens(self, samples: Samples) -> torch.Tensor:
        length = np.array([len(samples)], np.int32)
        merged = self._ask("audio_tokenizer", "prompt_speech_tokens", reference_wav=samples, reference_wav_len=length)
        return torch.from_numpy(merged.astype(np.int32) - np.int32(self._vocabulary.text_size))

    def _embedding(self, samples: Samples) -> torch.Tensor:
        embedding = self._ask("speaker_embedding", "prompt_spk_embedding", reference_wav=samples)
        return torch.from_numpy(embedding.astype(np.float32).reshape(-1))

    def _ask(self, model: str, name: str, **tensors: np.ndarray) -> np.ndarray:
        request = make_request(self._backend, model, (name,), tensors)
        found = output(self._backend, checked(request.exec()), name)
        if found is None:
            raise StageFailed(f"{model}: answered without {name}; look at its log")
        return found
