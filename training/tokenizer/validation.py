"""How the tokenizer does on utterances that it does not learn from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.tokenizer.articulation import spell, spelling
from training.tokenizer.augment import Augment
from training.tokenizer.features import Features
from training.tokenizer.model import NUM_CODES, TokenEncoder, to_indices

CROPS = 128


def validation(
    features: Features, encoder: TokenEncoder, crop_tokens: int, crops: int = CROPS
) -> Callable[[], dict[str, float]]:
    """A function that measures digits and tokens that spell the phones, tokens equal in two views, and the perplexity.

    The crops are drawn once, the views anew each time.
    """
    starts, _ = features.speakers.draw(crops, crop_tokens)
    mel, phones = features.cut(starts, crop_tokens)
    spelled = spell(phones, spelling(phones.device))
    augment = Augment().to(mel.device)

    def measure() -> dict[str, float]:
        clean, views = encoder(mel), augment(mel.repeat(2, 1, 1))
        first, second = to_indices(encoder(views)).chunk(2)
        right = clean.round() == spelled
        return {
            "digits_right": float(right.float().mean()),
            "tokens_right": float(right.all(-1).float().mean()),
            "same_tokens": float((first == second).float().mean()),
            "perplexity": perplexity(to_indices(clean)),
        }

    return measure


def perplexity(tokens: Tensor) -> float:
    """How many equally likely codes would be as hard to guess as these tokens [..] int32."""
    counts = torch.bincount(tokens.flatten(), minlength=NUM_CODES).double()
    share = counts / counts.sum()
    return float(torch.exp(torch.special.entr(share).sum()))
