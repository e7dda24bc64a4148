"""The model that is measured: random weights in the release's sizes, and a reader with a prompt of 3.5 seconds."""

from __future__ import annotations

from pathlib import Path

import torch

from vivavoce.checkpoint.babble import make_babble_checkpoint
from vivavoce.checkpoint.babble_weights import NUM_SPEECH_TOKENS, RELEASE, SPEAKER_SIZE, Sizes
from vivavoce.checkpoint.folder import SPEAKERS
from vivavoce.checkpoint.spk2info import NUM_MEL_BINS, SavedPrompt, SpeakerEntry, write_spk2info
from vivavoce.engine.request import Conditioning

PROMPT_TOKENS, PROMPT_TEXT = 87, 20
"""3.5 seconds of reference and its transcript, as in the measurements of the official code."""
FRAMES_PER_TOKEN = 2


def make_model(folder: Path, sizes: Sizes = RELEASE) -> Path:
    """Write it, unless it is there; a minute and 2.6 GB in the release's sizes."""
    if not folder.exists():
        make_babble_checkpoint(folder, sizes=sizes)
    write_spk2info(folder / SPEAKERS, {"reader": _reader()})
    return folder


def reader() -> Conditioning:
    """The same reader as the stages take him."""
    entry = _reader()
    prompt = entry.prompt
    assert prompt is not None
    text, tokens = tuple(prompt.text_ids.tolist()), tuple(prompt.llm_speech_tokens.tolist())
    return Conditioning(entry.embedding, text, tokens, prompt.flow_speech_tokens.long(), prompt.mel)


def _reader() -> SpeakerEntry:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(NUM_SPEECH_TOKENS, (PROMPT_TOKENS,), generator=generator, dtype=torch.int32)
    text = torch.randint(256, (PROMPT_TEXT,), generator=generator, dtype=torch.int32)
    # About the mean and spread of log-mel spectrograms of speech.
    mel = torch.randn(PROMPT_TOKENS * FRAMES_PER_TOKEN, NUM_MEL_BINS, generator=generator) * 2 - 6
    embedding = torch.randn(SPEAKER_SIZE, generator=generator)
    return SpeakerEntry(embedding, SavedPrompt(text, tokens, tokens.clone(), mel))
