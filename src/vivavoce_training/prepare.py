"""Turns recordings with transcripts into a corpus; tokens and embeddings come from a checkpoint's ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.folder import SPEAKER_ENCODER, detect_generation, speech_tokenizer_of
from vivavoce.errors import CheckpointError, InvalidAudio, InvalidRequest, InvalidText
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.frontend.audio.samples import Audio, check_reference
from vivavoce.frontend.front_end import FrontEnd, load_front_end
from vivavoce.frontend.text.tokenizer import END_OF_PROMPT
from vivavoce.models.encoders import MAX_SECONDS, SpeakerEncoder, SpeechTokenizer
from vivavoce_training.data.build import default_jobs
from vivavoce_training.data.store import (
    SAMPLE_RATE,
    TOKEN_SAMPLES,
    Corpus,
    CorpusWriter,
    Speaker,
    Utterance,
    write_array,
)
from vivavoce_training.record import log
from vivavoce_training.utterances import heard_alone

PIECE = 200  # utterances that one process takes at a time


def encode(corpus: Path, model: Path, jobs: int | None = None, *, tokens: bool = True) -> None:
    """Write `tokens.npy`, unless `tokens` is false, and `embeddings.npy` into a corpus folder, with `jobs` processes
    (None: one per core).
    """
    source = Corpus.open(corpus)
    starts = range(0, len(source), PIECE)
    with ProcessPoolExecutor(jobs or default_jobs(), mp_context=get_context("spawn")) as pool:
        pieces = list(pool.map(_hear, repeat(corpus), repeat(model), starts, repeat(tokens)))
    if tokens:
        write_array(corpus / "tokens.npy", np.concatenate([heard for heard, _ in pieces]))
    write_array(corpus / "embeddings.npy", np.concatenate([embeddings for _, embeddings in pieces]))
    log.info("%s: %sembeddings of %d utterances", corpus, "tokens and " if tokens else "", len(source))


def _hear(folder: Path, model: Path, first: int, with_tokens: bool) -> tuple[NDArray[np.int16], NDArray[np.float16]]:
    torch.set_num_threads(1)
    corpus = Corpus.open(folder)
    tokenizer = (
        SpeechTokenizer.from_file(model / speech_tokenizer_of(detect_generation(model))) if with_tokens else None
    )
    encoder = SpeakerEncoder.from_file(model / SPEAKER_ENCODER)
    tokens, embeddings = [], []
    for utterance in range(first, min(first + PIECE, len(corpus))):
        wave = heard_alone(corpus, utterance)
        if tokenizer is not None:
            tokens.append(tokenizer(wave).numpy().astype(np.int16))
        embeddings.append(encoder(wave).numpy().astype(np.float16))
    return np.concatenate(tokens) if tokens else np.zeros(0, np.int16), np.stack(embeddings)


SUFFIXES = frozenset({".flac", ".m4a", ".mp3", ".oga", ".ogg", ".opus", ".wav"})


class Recording(NamedTuple):
    """An audio file and its speaker. The transcript of `name.wav` is in `name.txt` beside it."""

    audio: Path
    speaker: str


class Skipped(NamedTuple):
    audio: Path
    reason: str


def find_recordings(folder: Path) -> list[Recording]:
    """Find the audio files in a folder and its subfolders, in the order of their names; InvalidRequest: there are none.

    A subfolder's name is the speaker's name; files directly in `folder` belong to a speaker named after it.
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
    """Write a corpus of the recordings, with tokens and embeddings that `model` computes, without labels.

    Recordings that cannot be used (no transcript, no words in it, unreadable, silent, shorter than 0.5 s or longer
    than 30 s) are left out and returned. Memory holds one recording at a time. InvalidRequest: none can be used;
    CheckpointError: `model` cannot be loaded, or its tokens do not last 40 ms.
    """
    front_end = load_front_end(model)
    names = list(dict.fromkeys(recording.speaker for recording in recordings))
    tokens: list[NDArray[np.int16]] = []
    embeddings: list[NDArray[np.float16]] = []
    skipped: list[Skipped] = []
    with closing(CorpusWriter(folder, [Speaker(name, "recorded") for name in names], ("wav",))) as writer:
        for audio, speaker in recordings:
            try:
                # A text without words is rejected here, before the audio is processed.
                text = " ".join(front_end.text.segments(_transcript(audio.with_suffix(".txt"), front_end)))
                utterance, own_tokens, embedding = _heard(audio, front_end)
            except (InvalidAudio, InvalidText) as error:
                skipped.append(Skipped(audio, str(error)))
                continue
            writer.append(utterance, names.index(speaker), text)
            tokens.append(own_tokens)
            embeddings.append(embedding)
        if not tokens:
            raise InvalidRequest(
                f"recordings: none of {len(skipped)} can be used, the first because of {skipped[0].reason}"
            )
        corpus = writer.finish()
    write_array(folder / "tokens.npy", np.concatenate(tokens))
    write_array(folder / "embeddings.npy", np.stack(embeddings))
    return corpus, skipped


def _heard(path: Path, front_end: FrontEnd) -> tuple[Utterance, NDArray[np.int16], NDArray[np.float16]]:
    """Read a recording, and compute its tokens and its embedding [192]. InvalidAudio: it cannot be used."""
    decoded = decode_audio(path, field=path.name, max_seconds=MAX_SECONDS)
    check_reference(decoded, field=path.name)
    wave = resample_sinc(decoded.samples, decoded.sample_rate, SAMPLE_RATE)
    wave = torch.nn.functional.pad(wave, (0, -len(wave) % TOKEN_SAMPLES))
    audio, places = Audio(wave.numpy(), SAMPLE_RATE), len(wave) // TOKEN_SAMPLES
    tokens = front_end.extractor.speech_tokens(audio).numpy().astype(np.int16)
    if abs(len(tokens) - places) > 1:
        raise CheckpointError(
            f"{speech_tokenizer_of(front_end.config.generation)}: gives {len(tokens)} tokens for {places} times 40 ms "
            f"of {path.name}; choose a model of 25 tokens per second"
        )
    count = min(places, len(tokens))
    pcm = (wave[: count * TOKEN_SAMPLES].clamp(-1, 1) * 32767).round().short().numpy()
    utterance = Utterance(count, pcm)
    return utterance, tokens[:count], front_end.extractor.embedding(audio).numpy().astype(np.float16)


def _transcript(path: Path, front_end: FrontEnd) -> str:
    """Read the transcript as one line. InvalidText: the file is missing, is not UTF-8, or has a system prompt."""
    try:
        text = " ".join(path.read_text(encoding="utf-8-sig").split())
    except FileNotFoundError:
        raise InvalidText(f"transcript: {path.name} is missing; write down what the recording says") from None
    except UnicodeDecodeError:
        raise InvalidText(f"transcript: {path.name} is not UTF-8; save it as UTF-8 text") from None
    if front_end.text.part(text)[0]:
        raise InvalidText(f"transcript: {path.name} holds {END_OF_PROMPT}; write down only what the recording says")
    return text
