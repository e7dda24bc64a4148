"""Reference audio and its transcript → Voice."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.models.features.mel import prompt_mel
from vivavoce.models.features.whisper_mel import SAMPLE_RATE as ENCODER_RATE
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer
from vivavoce.service.audio.checks import MAX_REFERENCE_S, check_reference
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample_sinc
from vivavoce.service.audio.types import Audio
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.voices.voice import Voice

AudioSource = str | Path | bytes | BinaryIO | Audio
"""A recording: a path, a file's bytes, an open file, or samples."""


class VoiceExtractor:
    """The front end of one model for reference recordings."""

    def __init__(
        self,
        config: ModelConfig,
        speech_tokenizer: SpeechTokenizer,
        speaker_encoder: SpeakerEncoder,
        text: TextFrontEnd,
        fingerprint: str,
    ) -> None:
        self._config = config
        self._speech_tokenizer, self._speaker_encoder = speech_tokenizer, speaker_encoder
        self._text = text
        self.fingerprint = fingerprint
        """Of the model, as its voices carry it."""

    def extract(
        self, source: AudioSource, transcript: str = "", *, align: bool = True, field: str = "reference audio"
    ) -> Voice:
        """Extract a voice from 0.5 to 30 s of speech.

        Args:
            source: the recording; resampled to 16 kHz for the encoders and to the model's rate for its mel.
            transcript: what it says; "" if unknown.
            align: cut tokens and mel to the same duration, as zero-shot synthesis needs.
            field: what errors call the recording.

        Raises:
            InvalidAudio: unreadable, too short, too long, silent or not finite.
            InvalidText: a transcript that the model cannot read.
        """
        audio = self.read(source, field)
        encoder_wave = resample_sinc(audio.samples, audio.sample_rate, ENCODER_RATE)
        mel_wave = resample_sinc(audio.samples, audio.sample_rate, self._config.rates.sample_rate)
        normalised = self._text.normalize(transcript)
        voice = Voice(
            embedding=self._speaker_encoder(encoder_wave),
            fingerprint=self.fingerprint,
            transcript=transcript,
            prompt_text=self._text.encode(normalised) if normalised else (),
            speech_tokens=self._speech_tokenizer(encoder_wave),
            mel=prompt_mel(mel_wave[None], self._config.mel)[0],
        )
        return voice.aligned(self._config.rates.frames_per_token) if align else voice

    def speech_tokens(self, source: AudioSource, *, field: str = "source audio") -> Tensor:
        """The speech tokens of a recording whose words are to be spoken by another voice: [n] int32."""
        audio = self.read(source, field)
        return self._speech_tokenizer(resample_sinc(audio.samples, audio.sample_rate, ENCODER_RATE))

    def embedding(self, source: AudioSource, *, field: str = "audio") -> Tensor:
        """The speaker embedding of a recording and nothing else of a voice: [192] float32, not normalised."""
        audio = self.read(source, field)
        return self._speaker_encoder(resample_sinc(audio.samples, audio.sample_rate, ENCODER_RATE))

    def read(self, source: AudioSource, field: str) -> Audio:
        """Decode and check a recording."""
        audio = source if isinstance(source, Audio) else decode_audio(source, field=field, max_seconds=MAX_REFERENCE_S)
        check_reference(audio, field=field)
        return audio
