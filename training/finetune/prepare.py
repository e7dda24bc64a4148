"""A folder of recordings with transcripts → a corpus, with the tokens and embeddings of the checkpoint to be tuned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.store import (
    FEATURES_PER_TOKEN,
    MELS_PER_TOKEN,
    SAMPLE_RATE,
    TOKEN_SAMPLES,
    Corpus,
    Speaker,
    write_array,
    write_corpus,
)
from vivavoce.checkpoint.folder import SPEAKER_ENCODER, SPEECH_TOKENIZER
from vivavoce.errors import VivavoceError
from vivavoce.models.features.whisper_mel import SAMPLE_RATE as ENCODER_RATE
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder
from vivavoce.models.speech_tokenizer.onnx import SpeechTokenizer
from vivavoce.service.audio.checks import check_reference
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample_sinc
from vivavoce.service.front_end import load_front_end

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus")
MAX_SECONDS = 30.0


@dataclass(frozen=True)
class Recording:
    """An audio file, what it says, and who speaks."""

    audio: Path
    text: str
    speaker: str


@dataclass(frozen=True)
class Skipped:
    """A recording that was left out, and why."""

    audio: Path
    reason: str


def find_recordings(folder: Path) -> list[Recording]:
    """Audio files of the folder and its subfolders that have a transcript beside them (`name.wav`, `name.txt`).

    The subfolder's name is the speaker's; files that lie in the folder itself are of one speaker.

    Raises:
        FileNotFoundError: there is no such pair.
    """
    recordings = []
    for audio in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
        transcript = audio.with_suffix(".txt")
        if transcript.is_file():
            text = " ".join(transcript.read_text(encoding="utf-8").split())
            recordings.append(Recording(audio, text, audio.parent.relative_to(folder).as_posix()))
    if not recordings:
        raise FileNotFoundError(f"{folder}: no recordings with transcripts; put name.txt beside each name.wav")
    return recordings


def prepare(recordings: Iterable[Recording], model: Path, folder: Path) -> tuple[Corpus, list[Skipped]]:
    """Write a corpus of the recordings: tokens and embeddings are the model's own, phones are not known (silence).

    Recordings that cannot be used (unreadable, shorter than 0.5 s, longer than 30 s, without words) are left out and
    returned.
    """
    text_front_end = load_front_end(model).text
    tokenizer = SpeechTokenizer.from_file(model / SPEECH_TOKENIZER)
    encoder = SpeakerEncoder.from_file(model / SPEAKER_ENCODER)
    waves: list[NDArray[np.int16]] = []
    tokens: list[NDArray[np.int16]] = []
    embeddings: list[NDArray[np.float16]] = []
    texts: list[str] = []
    speakers: dict[str, int] = {}
    speaker: list[int] = []
    skipped: list[Skipped] = []
    for recording in recordings:
        try:
            # A text that has nothing to say is found here, before the work.
            text = " ".join(text_front_end.segments(recording.text))
            wave = _on_grid(recording.audio)
            encoder_wave = resample_sinc(wave, SAMPLE_RATE, ENCODER_RATE)
            found = tokenizer(encoder_wave).numpy().astype(np.int16)
            embedding = encoder(encoder_wave).numpy().astype(np.float16)
        except VivavoceError as error:
            skipped.append(Skipped(recording.audio, str(error)))
            continue
        count = len(wave) // TOKEN_SAMPLES
        if abs(len(found) - count) > 1:
            raise ValueError(
                f"{SPEECH_TOKENIZER}: {len(found)} tokens for {recording.audio}, which lasts {count} times 40 ms; "
                f"a token must stand for {FEATURES_PER_TOKEN} frames"
            )
        count = min(count, len(found))
        waves.append((wave[: count * TOKEN_SAMPLES].clamp(-1, 1) * 32767).short().numpy())
        tokens.append(found[:count])
        embeddings.append(embedding)
        texts.append(text)
        speaker.append(speakers.setdefault(recording.speaker, len(speakers)))
    if not waves:
        raise FileNotFoundError(f"none of {len(skipped)} recordings can be used; the first: {skipped[0].reason}")
    lengths = [len(one) for one in tokens]
    corpus = write_corpus(
        folder,
        np.concatenate(waves),
        np.zeros(sum(lengths) * MELS_PER_TOKEN, np.uint8),
        lengths,
        speaker,
        texts,
        [Speaker(name, "recorded") for name in speakers],
    )
    write_array(folder / "tokens.npy", np.concatenate(tokens))
    write_array(folder / "embeddings.npy", np.stack(embeddings))
    return corpus, skipped


def _on_grid(path: Path) -> torch.Tensor:
    """Samples at 24 kHz, padded with silence to whole speech tokens: [tokens · 960] float32."""
    audio = decode_audio(path, field=path.name, max_seconds=MAX_SECONDS)
    check_reference(audio, field=path.name)
    wave = resample_sinc(audio.samples, audio.sample_rate, SAMPLE_RATE)
    return torch.nn.functional.pad(wave, (0, -len(wave) % TOKEN_SAMPLES))
