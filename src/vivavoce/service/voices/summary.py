"""What is told of a stored voice without its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True)
class StoredSummary:
    """The strings of a voice that people read; has_prompt: it has reference speech, beside the speaker embedding."""

    name: str
    description: str = ""
    transcript: str = ""
    has_prompt: bool = True


def summary_of(voice: Voice) -> StoredSummary:
    """What is told of the voice."""
    return StoredSummary(voice.name, voice.description, voice.transcript, voice.has_prompt)
