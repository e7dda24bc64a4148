"""Extracts a `Voice` from reference audio and its transcript."""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.errors import InvalidRequest, InvalidText, check_kind
from vivavoce.frontend.audio.audit import audit
from vivavoce.frontend.audio.decode import decode_audio, read_source
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S, Audio, audio_of, check_reference, improved, levels_of
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.voices.voice import Voice
from vivavoce.models.encoders import SpeakerEncoder, SpeechTokenizer
from vivavoce.models.features import PROMPT_MEL_RATE, prompt_mel
from vivavoce.models.features import SAMPLE_RATE as ENCODER_RATE

log = logging.getLogger(__name__)

AudioSource = str | Path | bytes | BinaryIO | Audio | tuple[NDArray[Any] | Tensor, int]
"""A recording: a path, a file's bytes, an open file, an `Audio`, or a pair (array, rate), see `audio_of`."""
MAX_TRANSCRIPT_CHARS = 2_000
"""Maximum length of a transcript: 30 s of fast speech have 800 characters, and normalising more would be slow."""
KEPT_AS_SENT_BYTES = 1 << 20
"""A stored voice keeps a recording of up to this size as it was sent; it keeps a larger recording as FLAC."""
KEPT_RATE = 48_000


@dataclass(eq=False)
class VoiceExtractor:
    """Extracts voices for one model from reference recordings.

    fingerprint: the model's fingerprint, which its voices contain. decode: reads recordings, see `decode_audio`.
    as_recorded: leave recordings unchanged, as the official code does, instead of changing them by `improved`.
    advised_s: more seconds of speech cause a warning, because the model may then lose words."""

    config: ModelConfig
    speech_tokenizer: SpeechTokenizer
    speaker_encoder: SpeakerEncoder
    text: TextFrontEnd
    fingerprint: str
    decode: Callable[..., Audio] = decode_audio
    as_recorded: bool = False
    advised_s: float = MAX_REFERENCE_S

    def extract(self, source: AudioSource, transcript: str = "", *, align: bool = True) -> Voice:
        """Extract a voice from 0.5 to 30 s of speech.

        Args:
            source: the recording; it is resampled to 16 kHz for the encoders and to 24 kHz for its mel.
            transcript: the recording's text; "" if unknown.
            align: cut tokens and mel to the same duration, as zero-shot synthesis needs.
        Raises:
            InvalidAudio: the recording is unreadable, too short, too long, silent or not finite.
            InvalidText: the model cannot read the transcript, or it is longer than `MAX_TRANSCRIPT_CHARS`.
        """
        if len(transcript) > MAX_TRANSCRIPT_CHARS:
            raise InvalidText(
                f"transcript: {len(transcript)} characters are more than the limit of {MAX_TRANSCRIPT_CHARS}; give "
                "only the words that are spoken in the recording"
            )
        audio = self._read(source, "reference audio")
        levels = levels_of(audio)
        problems = audit(audio, transcript, self.advised_s, levels=levels).warnings
        audio = audio if self.as_recorded else improved(audio, levels=levels)
        encoder_wave = _resampled(audio)
        mel_wave = _resampled(audio, PROMPT_MEL_RATE)
        try:
            normalised = self.text.normalize(transcript)
            said = self.text.encode(normalised) if normalised else ()
        except InvalidText as error:  # name the transcript, not the request's text
            raise InvalidText(re.sub("^text:", "transcript:", str(error))) from None
        for problem in problems:
            log.warning("reference audio: %(problem)s", {"problem": problem})
        voice = Voice(
            embedding=self.speaker_encoder(encoder_wave),
            fingerprint=self.fingerprint,
            transcript=transcript,
            prompt_text=said,
            speech_tokens=self.speech_tokenizer(encoder_wave),
            mel=prompt_mel(mel_wave[None], self.config.mel)[0],
            warnings=problems,
        )
        return voice.aligned(self.config.rates) if align else voice

    def extract_to_keep(self, source: AudioSource, transcript: str = "") -> Voice:
        """Extract a voice and keep its recording in it, so that other models can use the voice. Raises as `extract`."""
        check_kind("transcript", transcript, str, "give the words of the recording")
        source, _ = take_recording(source)
        content = source.getvalue() if isinstance(source, io.BytesIO) else b""
        audio = self._read(source, "reference audio")
        return replace(self.extract(audio, transcript), recording=kept_recording(content, lambda: audio))

    def speech_tokens(self, source: AudioSource) -> Tensor:
        """Return the speech tokens [n], int32, of a recording that is to be converted to another voice."""
        audio = self._read(source, "source audio")
        return self.speech_tokenizer(_resampled(audio if self.as_recorded else improved(audio, trim=False)))

    def embedding(self, source: AudioSource) -> Tensor:
        """Return the speaker embedding of a recording: [192] float32, not normalised."""
        return self.speaker_encoder(_resampled(self._read(source, "audio")))

    def _read(self, source: AudioSource, field: str) -> Audio:
        source = audio_of(source, field=field) if isinstance(source, tuple) else source
        audio = source if isinstance(source, Audio) else self.decode(source, field=field, max_seconds=MAX_REFERENCE_S)
        check_reference(audio, field=field)
        return audio


def _resampled(audio: Audio, rate: int = ENCODER_RATE) -> Tensor:
    return resample_sinc(audio.samples, audio.sample_rate, rate)


def take_recording(source: AudioSource) -> tuple[AudioSource, str]:
    """Read a recording into memory without decoding it. Return a source for `extract`, and its SHA-256 in hex.

    The digest covers the bytes in memory (or samples and rate), so it stays right if the file changes later.

    Raises:
        InvalidRequest: the source is not a path, bytes, an open file or samples.
        InvalidAudio: the file is missing, unreadable, empty or too large, or a pair is not (array, rate).
    """
    source = audio_of(source) if isinstance(source, tuple) else source
    if isinstance(source, Audio):
        digest = hashlib.sha256(f"{source.sample_rate} Hz float32\n".encode())
        digest.update(np.ascontiguousarray(source.samples).data)
        return source, digest.hexdigest()
    if not isinstance(source, (str, Path, bytes)) and not hasattr(source, "read"):
        raise InvalidRequest(
            f"voice: is a {type(source).__name__}; give a name, or a recording as path, bytes, open file, "
            "(array, rate) or vivavoce.Audio"
        )
    data, _ = read_source(source, "reference audio")
    content = io.BytesIO(data)
    content.name = source if isinstance(source, (str, Path)) else getattr(source, "name", None)  # shown in errors
    return content, hashlib.sha256(data).hexdigest()


def kept_recording(content: bytes, decode: Callable[[], Audio]) -> bytes:
    """Return the bytes that a stored voice keeps of its recording: a small file unchanged, otherwise FLAC.

    content: the file's bytes, or b"" for samples without a file. decode: returns the samples; called only for FLAC."""
    if 0 < len(content) <= KEPT_AS_SENT_BYTES:
        return content
    audio, file = decode(), io.BytesIO()
    rate = min(audio.sample_rate, KEPT_RATE)
    samples = resample_sinc(audio.samples, audio.sample_rate, rate).numpy()
    soundfile.write(file, samples / max(1.0, float(np.abs(samples).max())), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()
