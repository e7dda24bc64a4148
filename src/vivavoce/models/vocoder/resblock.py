"""Dilated residual convolutions with the Snake activation (BigVGAN, arXiv:2206.04658)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivavoce.models.layers.masks import zero_padding


class Snake(nn.Module):
    """x + sin²(αx) / α with one α per channel (arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, channels, time]  →  the same shape; 0 stays 0."""
        alpha = self.alpha[:, None]
        return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


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

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """x: [batch, channels, time], zero past each row's length  →  the same."""
        stages = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in stages:
            h = zero_padding(conv1(snake1(x)), lengths)
            x = x + zero_padding(conv2(snake2(h)), lengths)
        return x
