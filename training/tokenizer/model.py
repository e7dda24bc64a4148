"""The networks of the speech tokenizer.

A token is eight digits of three values each: finite scalar quantisation (arXiv:2309.15505) inside a network that
recognises speech, as CosyVoice2 has it (arXiv:2412.10117, section 2.1). Here it recognises phones. The encoder alone
is exported; the recognising half and the speakers' adversary serve its training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data.store import MELS_PER_TOKEN, PHONES

NUM_BINS = 128
NUM_DIGITS, BASE = 8, 3
NUM_CODES = BASE**NUM_DIGITS
FORBIDDEN = -1e4
"""Added to the score of what attention may not see; float16 holds it."""


@dataclass(frozen=True)
class TokenizerSizes:
    """span: tokens on either side that attention sees."""

    width: int = 192
    heads: int = 4
    blocks: int = 3
    inner: int = 384
    kernel: int = 7
    span: int = 20
    decoder_width: int = 160
    decoder_blocks: int = 2
    adversary_width: int = 128


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
        return x + self.feed(self.feed_norm(x))


class LocalAttention(nn.Module):
    """Attention that fades with the distance, faster in some heads (ALiBi, arXiv:2108.12409), and ends at `span`.

    No length is special to it: a long recording is heard as its parts would be.
    """

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
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def _bias(self, tokens: int, device: torch.device) -> Tensor:
        """[heads, tokens, tokens]: what the distance adds to the scores."""
        at = torch.arange(tokens, device=device)
        distance = (at[:, None] - at).abs()
        return torch.where(distance > self.span, FORBIDDEN, -self.slopes * distance)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [.., width]  →  the same shape."""
        return self.fall(functional.gelu(self.rise(x)))


def depthwise(width: int, kernel: int) -> nn.Conv1d:
    """A convolution of each channel by itself that keeps the length."""
    return nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)


def round_digits(digits: Tensor, noise: float = 0.0) -> Tensor:
    """Each digit in (-1, 1) to the nearest of -1, 0 and 1; the gradient passes straight through (arXiv:1308.3432).

    noise: its standard deviation; digits near a boundary fall to either side, so training moves them away.
    """
    moved = digits + noise * torch.randn_like(digits) if noise else digits
    return digits + (moved.detach().round().clamp(-1, 1) - digits.detach())


def digit_weights(device: torch.device | None = None) -> Tensor:
    """[8] float32: 1, 3, 9, … 2187; the first digit counts least."""
    return torch.pow(float(BASE), torch.arange(NUM_DIGITS, device=device))


def to_indices(digits: Tensor) -> Tensor:
    """Digits [.., 8], rounded or not  →  tokens [..] int32 in [0, 6561)."""
    return ((digits.round() + 1) * digit_weights(digits.device)).sum(-1).int()


class PhoneDecoder(nn.Module):
    """Recognises the phones from the tokens; it looks at near tokens only, so each must say its own."""

    def __init__(self, sizes: TokenizerSizes) -> None:
        super().__init__()
        width = sizes.decoder_width
        self.enter = nn.Linear(NUM_DIGITS, width)
        self.blocks = nn.ModuleList([_DecoderBlock(width) for _ in range(sizes.decoder_blocks)])
        self.norm = nn.LayerNorm(width)
        self.phones = nn.Linear(width, MELS_PER_TOKEN * len(PHONES))

    def forward(self, digits: Tensor) -> Tensor:
        """digits: [batch, tokens, 8]  →  scores [batch, tokens · 2, phones]."""
        x = self.enter(digits)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.phones(self.norm(x))
        return scores.view(len(x), -1, len(PHONES))


class _DecoderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.near_norm, self.near = nn.LayerNorm(width), depthwise(width, 3)
        self.feed_norm, self.feed = nn.LayerNorm(width), FeedForward(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.near(self.near_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.feed_norm(x))


class SpeakerAdversary(nn.Module):
    """Tells the speaker from the tokens, at each token and over the whole crop, as well as it can.

    The gradient is reversed on its way to the tokens (arXiv:1409.7495), so they learn to give it nothing to go by.
    """

    def __init__(self, sizes: TokenizerSizes, num_speakers: int) -> None:
        super().__init__()
        width = sizes.adversary_width
        self.near = nn.Conv1d(NUM_DIGITS, width, 5, padding=2)
        self.wide = nn.Conv1d(width, width, 5, padding=2)
        self.at_token = nn.Linear(width, num_speakers)
        self.over_crop = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, num_speakers))

    def forward(self, digits: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [batch, tokens, speakers] and [batch, speakers] from digits [batch, tokens, 8].

        strength: factor on the reversed gradient, no dimensions.
        """
        x = reverse_gradient(digits, strength).transpose(1, 2)
        x = functional.relu(self.wide(functional.relu(self.near(x))))
        pooled = torch.cat([x.mean(2), x.amax(2)], dim=1)
        return self.at_token(x.transpose(1, 2)), self.over_crop(pooled)


def reverse_gradient(x: Tensor, strength: Tensor) -> Tensor:
    """`x` itself, up to rounding, with the gradient times -strength."""
    return (1 + strength) * x.detach() - strength * x
