"""The networks of the speech tokenizer.

A token is eight digits of three values each: finite scalar quantisation (arXiv:2309.15505) inside a network that
recognises speech, as CosyVoice2 has it (arXiv:2412.10117, section 2.1). Here it recognises phones, melody and loudness,
and its digits spell them (`data/spelling.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivavoce_training.data.spelling import BASE, NUM_DIGITS

NUM_BINS = 128
FORBIDDEN = -1e4  # added to the score of what attention may not see; float16 holds it


@dataclass(frozen=True)
class TokenizerSizes:
    """span: tokens on either side that attention sees."""

    width: int = 192
    heads: int = 4
    blocks: int = 3
    inner: int = 384
    kernel: int = 7
    span: int = 40


class TokenEncoder(nn.Module):
    """Features of 100 Hz → digits of 25 Hz, not rounded yet."""

    def __init__(self, sizes: TokenizerSizes) -> None:
        super().__init__()
        self.halve = nn.ModuleList(
            [
                nn.Conv1d(NUM_BINS, sizes.width, 3, stride=2, padding=1),
                nn.Conv1d(sizes.width, sizes.width, 3, stride=2, padding=1),
            ]
        )
        self.blocks = nn.ModuleList([EncoderBlock(sizes) for _ in range(sizes.blocks)])
        self.norm = nn.LayerNorm(sizes.width)
        self.digits = nn.Linear(sizes.width, NUM_DIGITS)

    def forward(self, features: Tensor) -> Tensor:
        """features: [batch, 128, frames], log-mel of Whisper  →  [batch, ceil(frames / 4), 8] float32 in (-1, 1)."""
        x = features
        for conv in self.halve:
            x = functional.gelu(conv(x))
        x = x.transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return torch.tanh(self.digits(self.norm(x)).float())


class EncoderBlock(nn.Module):
    """Depthwise convolution, attention to the neighbourhood, and a feed-forward layer, each added to its input."""

    def __init__(self, sizes: TokenizerSizes) -> None:
        super().__init__()
        width = sizes.width
        self.near_norm, self.near = nn.LayerNorm(width), depthwise(width, sizes.kernel)
        self.attention_norm, self.attention = nn.LayerNorm(width), LocalAttention(width, sizes.heads, sizes.span)
        self.feed_norm, self.feed = nn.LayerNorm(width), FeedForward(width, sizes.inner)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, width]  →  the same shape."""
        x = x + self.near(self.near_norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed(self.feed_norm(x))
        return x


class LocalAttention(nn.Module):
    """Attention that fades with the distance, faster in some heads (ALiBi, arXiv:2108.12409), and ends at `span`.

    No length is special to it: a long recording is heard as its parts would be.
    """

    slopes: Tensor

    def __init__(self, width: int, heads: int, span: int) -> None:
        super().__init__()
        self.heads, self.span = heads, span
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        slopes = torch.tensor([0.5 ** (2 * head + 1) for head in range(heads)])
        self.register_buffer("slopes", slopes.view(heads, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, width]  →  the same shape."""
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        bias = self._bias(x.shape[1], x.device).to(query.dtype)
        mixed: Tensor = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        return mixed

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _bias(self, tokens: int, device: torch.device) -> Tensor:
        """[heads, tokens, tokens]: what the distance adds to the scores."""
        at = torch.arange(tokens, device=device)
        distance = (at[:, None] - at).abs()
        return torch.where(distance > self.span, FORBIDDEN, -self.slopes * distance)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [.., width]  →  the same shape."""
        x = self.fall(functional.gelu(self.rise(x)))
        return x


def depthwise(width: int, kernel: int) -> nn.Conv1d:
    return nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)


def digit_weights(device: torch.device | None = None) -> Tensor:
    """[8] float32: 1, 3, 9, … 2187; the first digit counts least."""
    return torch.pow(float(BASE), torch.arange(NUM_DIGITS, device=device))


def to_indices(digits: Tensor) -> Tensor:
    """Digits [.., 8], rounded or not  →  tokens [..] int32 in [0, 6561)."""
    return ((digits.round() + 1) * digit_weights(digits.device)).sum(-1).int()
