"""Which features of a voice reach which stage.

| mode          | LM prompt text | LM prompt speech | flow prompt      |
|---------------|----------------|------------------|------------------|
| zero_shot     | transcript     | reference tokens | tokens and mel   |
| cross_lingual | –              | –                | tokens and mel   |
| instruct      | instruction    | –                | tokens and mel   |
| sft           | –              | –                | –                |

The speaker embedding reaches the flow in every mode. Voice conversion conditions like cross_lingual and takes its
speech tokens from the source recording.
"""

from __future__ import annotations

from enum import Enum

import torch

from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.service.voices.voice import Voice

END_OF_PROMPT = "<|endofprompt|>"
"""Ends an instruction; CosyVoice2 was trained with it."""


class Mode(str, Enum):
    """How a voice is used; see the table above."""

    ZERO_SHOT = "zero_shot"
    CROSS_LINGUAL = "cross_lingual"
    INSTRUCT = "instruct"
    SFT = "sft"


def parse_mode(name: str) -> Mode:
    """The mode of that name; dashes are as good as underscores.

    Raises:
        InvalidRequest: there is none; the message lists all.
    """
    try:
        return Mode(str(name).replace("-", "_"))
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise InvalidRequest(f"mode: {name!r} is unknown; choose one of {known}") from None


def choose_mode(voice: Voice, instruct: str | None, wanted: Mode | None = None) -> Mode:
    """The mode that was asked for, or the fullest one that the voice allows.

    Raises:
        InvalidRequest: the voice or the request lacks what the wanted mode needs.
    """
    if wanted is Mode.INSTRUCT and not instruct:
        raise InvalidRequest("mode: instruct needs an instruction; give one with instruct")
    if instruct and wanted not in (None, Mode.INSTRUCT):
        raise InvalidRequest(f"instruct: is not used in mode {wanted.value}; leave the mode out")
    if wanted in (Mode.ZERO_SHOT, Mode.CROSS_LINGUAL) and not voice.has_prompt:
        raise InvalidRequest(f"mode: {wanted.value} needs reference speech, this voice has an embedding only; use sft")
    if wanted is Mode.ZERO_SHOT and not voice.prompt_text:
        raise InvalidRequest("mode: zero_shot needs the reference's transcript; give prompt_text or use cross_lingual")
    if wanted is not None:
        return wanted
    if instruct:
        return Mode.INSTRUCT
    if not voice.has_prompt:
        return Mode.SFT
    return Mode.ZERO_SHOT if voice.prompt_text else Mode.CROSS_LINGUAL


def ended(instruct: str) -> str:
    """An instruction with its end mark, added where it is missing."""
    return instruct if END_OF_PROMPT in instruct else instruct + END_OF_PROMPT


def condition(voice: Voice, mode: Mode, instruction: tuple[int, ...] = ()) -> Conditioning:
    """Route a voice's features by the table above; `instruction`: text ids, for instruct only."""
    tokens = voice.speech_tokens.long()
    prompt_text: tuple[int, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    if mode is Mode.ZERO_SHOT:
        prompt_text, prompt_tokens = voice.prompt_text, tuple(tokens.tolist())
    elif mode is Mode.INSTRUCT:
        prompt_text = instruction
    if mode is Mode.SFT:
        tokens, mel = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0)
    else:
        mel = voice.mel
    return Conditioning(
        embedding=voice.embedding,
        lm_prompt_text=prompt_text,
        lm_prompt_tokens=prompt_tokens,
        flow_tokens=tokens,
        flow_mel=mel,
    )
