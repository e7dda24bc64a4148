"""Voices to and from spk2info.pt, the file in which the official code keeps its speakers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from vivavoce.checkpoint.spk2info import (
    EMBEDDING_SIZE,
    NUM_MEL_BINS,
    SavedPrompt,
    SpeakerEntry,
    read_spk2info,
    write_spk2info,
)
from vivavoce.errors import InvalidRequest
from vivavoce.service.text.checks import excerpt
from vivavoce.service.voices.voice import Voice


def voices_from_spk2info(path: Path, fingerprint: str) -> list[Voice]:
    """The speakers of the file, in its order, as voices of the model that `fingerprint` names ("" if unknown).

    A built-in speaker becomes a voice with an embedding only. A saved zero-shot speaker becomes a voice with its
    prompt; the file keeps text ids but no transcript, so that stays "". The original stores the same speech tokens
    for the language model and for the flow; those of the flow are taken.

    Raises:
        CheckpointError: the file is missing, corrupt, holds more than tensors, or a tensor has the wrong shape.
    """
    return [_voice(name, entry, fingerprint) for name, entry in read_spk2info(path).items()]


def voices_to_spk2info(voices: Iterable[Voice], path: Path) -> None:
    """Write voices as the original does, replacing `path` in one step. Transcripts and descriptions are not kept.

    Raises:
        InvalidRequest: a voice without a name, two of one name, a voice of other sizes than the original's, or a
            place that cannot be written.
    """
    entries: dict[str, SpeakerEntry] = {}
    for voice in voices:
        if not voice.name or voice.name in entries:
            problem = "occurs twice" if voice.name else "is no name"
            raise InvalidRequest(f"voice name: {excerpt(voice.name)} {problem}; give each voice a name of its own")
        entries[voice.name] = _entry(voice)
    try:
        write_spk2info(path, entries)
    except OSError as error:
        raise InvalidRequest(f"path: {path.name!r} cannot be written ({error.strerror}); check the folder") from None


def _voice(name: str, entry: SpeakerEntry, fingerprint: str) -> Voice:
    if entry.prompt is None:
        return Voice(embedding=entry.embedding, fingerprint=fingerprint, name=name)
    return Voice(
        embedding=entry.embedding,
        fingerprint=fingerprint,
        name=name,
        prompt_text=tuple(entry.prompt.text_ids.tolist()),
        speech_tokens=entry.prompt.flow_speech_tokens,
        mel=entry.prompt.mel,
    )


def _entry(voice: Voice) -> SpeakerEntry:
    bins = voice.mel.shape[1] if voice.has_prompt else NUM_MEL_BINS
    if voice.embedding.shape != (EMBEDDING_SIZE,) or bins != NUM_MEL_BINS:
        raise InvalidRequest(
            f"voice: {excerpt(voice.name)} has an embedding of {voice.embedding.numel()} and {bins} mel bins; spk2info "
            f"holds {EMBEDDING_SIZE} and {NUM_MEL_BINS}; keep it in the voice store"
        )
    if not voice.has_prompt:
        return SpeakerEntry(voice.embedding)
    text_ids = torch.tensor(voice.prompt_text, dtype=torch.int32)
    return SpeakerEntry(voice.embedding, SavedPrompt(text_ids, voice.speech_tokens, voice.speech_tokens, voice.mel))
