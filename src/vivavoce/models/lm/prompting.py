"""Token ids → the language model's input rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vivavoce.models.lm.qwen2 import SpeechLM


@dataclass(frozen=True)
class LMPrompt:
    """One sequence's input: the transcript and speech tokens of a reference, and the text to be spoken."""

    text: tuple[int, ...]
    prompt_text: tuple[int, ...] = ()
    prompt_speech: tuple[int, ...] = ()


def text_rows(lm: SpeechLM, ids: Sequence[int]) -> Tensor:
    """ids of text tokens  →  [n, hidden]."""
    return lm.text_embedding(_ids(lm, ids))


def speech_rows(lm: SpeechLM, ids: Sequence[int]) -> Tensor:
    """ids of speech tokens  →  [n, hidden]."""
    return lm.speech_embedding(_ids(lm, ids))


def control_row(lm: SpeechLM, index: int) -> Tensor:
    """A control id (start or task)  →  [1, hidden]."""
    return lm.control_embedding(_ids(lm, (index,)))


def prompt_rows(lm: SpeechLM, prompt: LMPrompt) -> Tensor:
    """[sos, prompt text, text, task, prompt speech]  →  [rows, hidden]."""
    vocabulary = lm.config.vocabulary
    return torch.cat(
        (
            control_row(lm, vocabulary.sos),
            text_rows(lm, prompt.prompt_text + prompt.text),
            control_row(lm, vocabulary.task),
            speech_rows(lm, prompt.prompt_speech),
        )
    )


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of several sequences  →  ([batch, longest, hidden], lengths [batch] int64)."""
    device = rows[0].device
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return pad_sequence(list(rows), batch_first=True), lengths


def _ids(lm: SpeechLM, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device=lm.text_embedding.weight.device)
