"""How large a voice may be, and what its tensors must hold. Kept where voices are stored and where they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.service.text.checks import MAX_TEXT_CHARS
from vivavoce.service.voices.voice import Voice

MAX_SPEECH_TOKENS = 2_000
"""30 s, the longest reference, are 1500 tokens at 50 per second."""
MAX_MEL_FRAMES = 4_000
"""30 s are 2584 frames of 256 samples at 22.05 kHz."""
MAX_MEL_BINS = 512
MAX_EMBEDDING = 4_096
MAX_PROMPT_TEXT = 4_000
"""Text ids: 30 s of fast speech, written byte by byte, are fewer."""
MAX_STRING_CHARS = MAX_TEXT_CHARS

STRINGS = ("name", "transcript", "fingerprint", "description", "licence")
"""The fields of a voice that are text."""


def find_problem(voice: Voice) -> str | None:
    """What is wrong with the voice, as the predicate of a sentence ("has 5000 mel frames, …"); None if nothing is."""
    return (
        _shape_problem("embedding", voice.embedding, torch.float32, (MAX_EMBEDDING,))
        or _shape_problem("speech tokens", voice.speech_tokens, torch.int32, (MAX_SPEECH_TOKENS,))
        or _shape_problem("mel", voice.mel, torch.float32, (MAX_MEL_FRAMES, MAX_MEL_BINS))
        or _content_problem(voice)
        or _string_problem(voice)
    )


def as_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's numbers for numpy, whose loops start no threads: torch's cost 60 ms per call on two busy cores."""
    return tensor.detach().cpu().numpy()


def _shape_problem(part: str, tensor: Tensor, dtype: torch.dtype, limits: tuple[int, ...]) -> str | None:
    limit = " × ".join(map(str, limits))
    shape = " × ".join(map(str, tensor.shape)) or "a scalar"
    if tensor.dtype != dtype or tensor.dim() != len(limits):
        return f"has {part} of {tensor.dtype} {shape}, not {dtype} in {len(limits)} dimensions"
    if any(size > most for size, most in zip(tensor.shape, limits, strict=True)):
        return f"has {part} of size {shape}, more than {limit}"
    return None


def _content_problem(voice: Voice) -> str | None:
    if not len(voice.embedding):
        return "has an empty embedding"
    if len(voice.prompt_text) > MAX_PROMPT_TEXT:
        return f"has {len(voice.prompt_text)} text ids in its prompt, more than {MAX_PROMPT_TEXT}"
    if not np.isfinite(as_array(voice.embedding)).all() or not np.isfinite(as_array(voice.mel)).all():
        return "has numbers that are NaN or infinite"
    if (as_array(voice.speech_tokens) < 0).any() or any(not 0 <= token < 2**31 for token in voice.prompt_text):
        return "has token ids outside of 0 … 2147483647"
    if (len(voice.speech_tokens) > 0) != (voice.mel.numel() > 0):
        return f"has {len(voice.speech_tokens)} speech tokens, but {len(voice.mel)} mel frames"
    return None


def _string_problem(voice: Voice) -> str | None:
    for part in STRINGS:
        text: str = getattr(voice, part)
        if len(text) > MAX_STRING_CHARS:
            return f"has a {part} of {len(text)} characters, more than {MAX_STRING_CHARS}"
        if any("\ud800" <= character <= "\udfff" for character in text):
            return f"has a {part} with half of a surrogate pair"
    return None
