"""A folder of recordings with transcripts → a corpus, with the tokens and embeddings of the checkpoint to be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.render import Utterance
from training.data.store import MELS_PER_TOKEN, SAMPLE_RATE, TOKEN_SAMPLES, Corpus, Speaker, write_array
from training.data.writer import CorpusWriter
from vivavoce.checkpoint.folder import SPEECH_TOKENIZER
from vivavoce.errors import CheckpointError, InvalidAudio, InvalidRequest, InvalidText
from vivavoce.models.speech_tokenizer.onnx import MAX_SECONDS
from vivavoce.service.audio.checks import check_reference
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample_sinc
from vivavoce.service.audio.types import Audio
from vivavoce.service.front_end import load_front_end

SUFFIXES = frozenset({".flac", ".m4a", ".mp3", ".oga", ".ogg", ".opus", ".wav"})


@dataclass(frozen=True)
class Recording:
    """An audio file and who speaks; what it says stands in a file beside it."""

    audio: Path
    speaker: str

    @property
    def transcript(self) -> Path:
        """`name.txt` for `name.wav`."""
        return self.audio.with_suffix(".txt")


@dataclass(frozen=True)
class Skipped:
    """A recording that was left out, and why."""

    audio: Path
    reason: str


def find_recordings(folder: Path) -> list[Recording]:
    """Audio files of the folder and its subfolders, in the order of their names.

    The subfolder's name is the speaker's; files that lie in the folder itself are of a speaker named as the folder.

    Raises:
        InvalidRequest: there are none.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise InvalidRequest(f"recordings: {str(folder)!r} holds no audio file; put name.wav and name.txt there")
    recordings = []
    for audio in found:
        below = audio.parent.relative_to(folder).as_posix()
        recordings.append(Recording(audio, folder.resolve().name if below == "." else below))
    return recordings


def prepare(recordings: Sequence[Recording], model: Path, folder: Path) -> tuple[Corpus, list[Skipped]]:
    """Write a corpus of the recordings: tokens and embeddings are the model's own, phones are not known (silence).

    Recordings that cannot be used (no transcript, no words in it, unreadable, silent, shorter than 0.5 s or longer
    than 30 s) are left out and returned. Memory holds one recording at a time.

    Raises:
        InvalidRequest: none can be used.
        CheckpointError: `model` is no checkpoint that can be run, or its tokens do not last 40 ms.
    """
    hear = _Ear(model)
    names = list(dict.fromkeys(recording.speaker for recording in recordings))
    tokens: list[NDArray[np.int16]] = []
    embeddings: list[NDArray[np.float16]] = []
    skipped: list[Skipped] = []
    with closing(CorpusWriter(folder, [Speaker(name, "recorded") for name in names])) as writer:
        for recording in recordings:
            try:
                heard = hear(recording)
            except (InvalidAudio, InvalidText) as error:
                skipped.append(Skipped(recording.audio, str(error)))
                continue
            writer.append(heard.utterance, names.index(recording.speaker), heard.text)
            tokens.append(heard.tokens)
            embeddings.append(heard.embedding)
        if not tokens:
            raise InvalidRequest(
                f"recordings: none of {len(skipped)} can be used, the first because of {skipped[0].reason}"
            )
        corpus = writer.finish()
    write_array(folder / "tokens.npy", np.concatenate(tokens))
    write_array(folder / "embeddings.npy", np.stack(embeddings))
    return corpus, skipped


@dataclass(frozen=True, eq=False)
class _Heard:
    """tokens: int16 [tokens]; embedding: float16 [192]."""

    utterance: Utterance
    text: str
    tokens: NDArray[np.int16]
    embedding: NDArray[np.float16]


class _Ear:
    """What a checkpoint makes of a recording before any network that can be tuned."""

    def __init__(self, model: Path) -> None:
        front_end = load_front_end(model)
        self._text, self._extractor = front_end.text, front_end.extractor

    def __call__(self, recording: Recording) -> _Heard:
        """Raises InvalidText or InvalidAudio for a recording that cannot be used."""
        # A text that has nothing to say is found here, before the work.
        text = " ".join(self._text.segments(_transcript(recording.transcript)))
        wave = _on_grid(recording.audio)
        audio = Audio(wave.numpy(), SAMPLE_RATE)
        tokens = self._extractor.speech_tokens(audio).numpy().astype(np.int16)
        places = len(wave) // TOKEN_SAMPLES
        if abs(len(tokens) - places) > 1:
            raise CheckpointError(
                f"{SPEECH_TOKENIZER}: gives {len(tokens)} tokens for {places} times 40 ms of {recording.audio.name}; "
                "choose a model of 25 tokens per second"
            )
        count = min(places, len(tokens))
        pcm = (wave[: count * TOKEN_SAMPLES].clamp(-1, 1) * 32767).round().short().numpy()
        utterance = Utterance(pcm, np.zeros(count * MELS_PER_TOKEN, np.uint8))
        return _Heard(utterance, text, tokens[:count], self._extractor.embedding(audio).numpy().astype(np.float16))


def _transcript(path: Path) -> str:
    """The text on one line.

    Raises:
        InvalidText: missing, or not UTF-8.
    """
    try:
        return " ".join(path.read_text(encoding="utf-8-sig").split())
    except FileNotFoundError:
        raise InvalidText(f"transcript: {path.name} is missing; write down what the recording says") from None
    except UnicodeDecodeError:
        raise InvalidText(f"transcript: {path.name} is not UTF-8; save it as UTF-8 text") from None


def _on_grid(path: Path) -> torch.Tensor:
    """Samples at 24 kHz, padded with silence to whole speech tokens: [tokens · 960] float32."""
    audio = decode_audio(path, field=path.name, max_seconds=MAX_SECONDS)
    check_reference(audio, field=path.name)
    wave = resample_sinc(audio.samples, audio.sample_rate, SAMPLE_RATE)
    return torch.nn.functional.pad(wave, (0, -len(wave) % TOKEN_SAMPLES))
