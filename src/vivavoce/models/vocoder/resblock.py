"""Dilated residual convolutions with the Snake activation (BigVGAN, arXiv:2206.04658)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivavoce.models.vocoder.layout import convolve

LEAST_ALPHA = 1e-9
"""Added to α before the division, as in the official code."""


class Snake(nn.Module):
    """x + sin²(αx) / α with one α per channel (arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, channels, 1, time]  →  the same shape; 0 stays 0."""
        alpha = self.alpha[:, None, None]
        if torch.is_grad_enabled():
            return x + torch.sin(alpha * x).square() / (alpha + LEAST_ALPHA)
        # Fresh memory costs more than the arithmetic: one tensor is made and worked on in place.
        return (alpha * x).sin_().square_().div_(alpha + LEAST_ALPHA).add_(x)


class ResBlock(nn.Module):
    """For each dilation: snake, dilated convolution, snake, convolution, added to the input."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.convs1 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in dilations
        )
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.convs2 = nn.ModuleList(nn.Conv1d(channels, channels, kernel, padding=kernel // 2) for _ in dilations)

    def forward(self, x: Tensor, inside: Tensor | None) -> Tensor:
        """x: [batch, channels, 1, time], zero past each row's length; inside: [batch, 1, 1, time], 1 within it and 0
        past it, None if all rows are full  →  the same as x.
        """
        stages = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in stages:
            h = keep(convolve(conv1, snake1(x)), inside)
            x = keep(convolve(conv2, snake2(h)), inside).add_(x)
        return x


def keep(fresh: Tensor, inside: Tensor | None) -> Tensor:
    """Zero past each row's length, in place; fresh: finite, made for this alone; inside: as in `ResBlock.forward`."""
    return fresh if inside is None else fresh.mul_(inside)
