"""CosyVoice2's upsampling conformer: embedded speech tokens → mu, the flow's condition, at mel rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad, silu

from vivavoce.checkpoint.config import TokenEncoderConfig
from vivavoce.models.layers.masks import valid_positions, visible_keys
from vivavoce.models.layers.relative_attention import RelativeAttention, relative_positions

HISTORY_KERNEL = 3
UPSAMPLING_KERNEL = 5
ATTENTION_NORM_EPS = 1e-12


class Embed(nn.Module):
    """Linear and LayerNorm, scaled by sqrt(size) as positions are (the table itself is added in attention)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, size)
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self.scale = math.sqrt(size)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, time, input]  →  [batch, time, size]."""
        return self.norm(self.linear(x)) * self.scale


class FeedForward(nn.Module):
    """Two linear layers around SiLU."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.expand = nn.Linear(size, inner)
        self.contract = nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., size]  →  the same shape."""
        return self.contract(silu(self.expand(x)))


class ConformerBlock(nn.Module):
    """Pre-norm relative attention and feed-forward; this family's conformer has no convolution module."""

    def __init__(self, size: int, num_heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size, eps=ATTENTION_NORM_EPS)
        self.attention = RelativeAttention(size, num_heads)
        self.feed_forward_norm = nn.LayerNorm(size, eps=ATTENTION_NORM_EPS)
        self.feed_forward = FeedForward(size, inner)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, time, size]  →  the same shape; table and mask as in `RelativeAttention`."""
        x = x + self.attention(self.attention_norm(x), table, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class TokenEncoder(nn.Module):
    """Embedded tokens → mu. Everything but the lookahead and unchunked attention is causal."""

    def __init__(self, config: TokenEncoderConfig, num_mel_bins: int) -> None:
        super().__init__()
        self.config = config
        size, inner = config.hidden_size, config.feed_forward_size
        self.embed = Embed(config.input_size, size)
        self.lookahead_conv = nn.Conv1d(size, size, config.lookahead + 1)
        self.history_conv = nn.Conv1d(size, size, HISTORY_KERNEL)
        self.blocks = nn.ModuleList(ConformerBlock(size, config.num_heads, inner) for _ in range(config.num_blocks))
        self.up_conv = nn.Conv1d(size, size, UPSAMPLING_KERNEL)
        self.up_embed = Embed(size, size)
        self.up_blocks = nn.ModuleList(
            ConformerBlock(size, config.num_heads, inner) for _ in range(config.num_up_blocks)
        )
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self.mu_projection = nn.Linear(size, num_mel_bins)

    def forward(self, x: Tensor, lengths: Tensor, final: Tensor, chunked: bool) -> tuple[Tensor, Tensor]:
        """Encode a padded batch.

        Args:
            x: [batch, tokens, input] embedded tokens, lookahead included.
            lengths: [batch] int64, tokens of each row.
            final: [batch] bool; a row that is not final spends its last `lookahead` tokens as context only.
            chunked: attend chunk by chunk (streaming) instead of to the whole row.

        Returns:
            mu [batch, frames, mel bins] and the frames of each row, [batch] int64.
        """
        config = self.config
        kept = torch.where(final, lengths, lengths - config.lookahead)
        # The convolution reads to the right of the last token: past a final row's end there must be zeros.
        x = self.embed(x) * valid_positions(lengths, x.shape[1])[..., None]
        x = self._look_ahead(x)
        x = self._run(self.blocks, x, kept, config.chunk if chunked else None)
        x = x.repeat_interleave(config.upsampling, dim=1).transpose(1, 2)
        x = self.up_conv(pad(x, (UPSAMPLING_KERNEL - 1, 0))).transpose(1, 2)
        frames = kept * config.upsampling
        up_chunk = config.chunk * config.upsampling if chunked else None
        x = self._run(self.up_blocks, self.up_embed(x), frames, up_chunk)
        return self.mu_projection(self.norm(x)), frames

    def _look_ahead(self, x: Tensor) -> Tensor:
        y = pad(x.transpose(1, 2), (0, self.config.lookahead))
        # The official layer leaves the slope at PyTorch's default, unlike the vocoder's.
        y = leaky_relu(self.lookahead_conv(y), 0.01)
        y = self.history_conv(pad(y, (HISTORY_KERNEL - 1, 0)))
        return x + y.transpose(1, 2)

    def _run(self, blocks: nn.ModuleList, x: Tensor, lengths: Tensor, chunk: int | None) -> Tensor:
        table = relative_positions(x.shape[1], x.shape[2], x.device, x.dtype)
        mask = visible_keys(lengths, x.shape[1], chunk)
        for block in blocks:
            x = block(x, table, mask)
        return x
