"""The input rows of CosyVoice 1's language model, as the network is given them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivavoce_v1.lm import ConformerLM


def conformer_rows(lm: ConformerLM, text: Sequence[int], speech: Sequence[int], speaker: Tensor | None) -> Tensor:
    """[sos, speaker, text, task, speech]  →  [rows, hidden]; text: transcript and text; speaker: [speaker size]."""
    vocabulary, device = lm.config.vocabulary, lm.speech_head.weight.device
    sos, task = lm.control_embedding(torch.tensor([vocabulary.sos, vocabulary.task], device=device)).split(1)
    parts = [sos, lm.text_rows(torch.tensor([text], device=device))[0], task]
    if speaker is not None:
        parts.insert(1, lm.speaker_rows(speaker[None].to(device)))
    parts.append(lm.speech_embedding(torch.tensor(speech, dtype=torch.int64, device=device)))
    return torch.cat(parts)
