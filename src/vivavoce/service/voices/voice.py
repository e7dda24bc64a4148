"""A voice as a value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Voice:
    """The features of one reference recording, or a speaker embedding alone.

    A voice belongs to the model whose tokenizer and encoders made it: `fingerprint` says which.
    """

    embedding: Tensor
    """[speaker size] float32."""
    fingerprint: str
    """Of the model the features were extracted for; "" if unknown."""
    name: str = ""
    transcript: str = ""
    """What the reference says, as it was given."""
    prompt_text: tuple[int, ...] = ()
    """Text ids of the normalised transcript; without them the voice clones timbre, not manner."""
    speech_tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    """[n] int32, of the whole reference or as many as the mel has frames for."""
    mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """[frames, bins] float32 at the model's mel rate."""
    description: str = ""
    licence: str = ""

    @property
    def has_prompt(self) -> bool:
        """Whether there is reference speech, and not just an embedding."""
        return len(self.speech_tokens) > 0

    def aligned(self, frames_per_token: int) -> Voice:
        """Tokens and mel cut to the same duration: the flow takes the mel for the frames of the tokens."""
        count = min(len(self.mel) // frames_per_token, len(self.speech_tokens))
        return replace(self, speech_tokens=self.speech_tokens[:count], mel=self.mel[: count * frames_per_token])

    def named(self, name: str) -> Voice:
        """The same voice under another name."""
        return replace(self, name=name)
