"""CosyVoice2's upsampling conformer: embedded speech tokens → mu, the flow's condition, at mel rate."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

from vivavoce.checkpoint.config import TokenEncoderConfig
from vivavoce.models.conformer import ConformerBlock, Embed
from vivavoce.models.flow.layout import convolve, lay_for_windows
from vivavoce.models.layers import (
    Memory,
    MemoryShape,
    RelativeAttention,
    RelativeSpan,
    valid_positions,
    visible_keys,
)

HISTORY_KERNEL = 3
UPSAMPLING_KERNEL = 5


class TokenEncoder(nn.Module):
    """Embedded tokens → mu. Everything but the lookahead is causal, up to the end of each token's attention."""

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
        for blocks in (self.blocks, self.up_blocks):
            attentions = (module for module in blocks.modules() if isinstance(module, RelativeAttention))
            for site, attention in enumerate(attentions):
                attention.site = site

    @property
    def memory_shapes(self) -> tuple[MemoryShape, MemoryShape]:
        """Shapes at token rate, and at mel rate behind the upsampling."""
        config, size = self.config, self.config.hidden_size
        return (
            MemoryShape(config.num_blocks, 2 * size, HISTORY_KERNEL - 1, size),
            MemoryShape(config.num_up_blocks, 2 * size, UPSAMPLING_KERNEL - 1, size),
        )

    def forward(self, x: Tensor, lengths: Tensor, final: Tensor, chunked: bool) -> tuple[Tensor, Tensor]:
        """Encode a padded batch of whole rows  →  mu [batch, frames, mel bins] and the frames of each row, [batch].

        x: [batch, tokens, input] embedded tokens, lookahead included; lengths: [batch] int64, tokens of each row;
        final: [batch] bool; in a row that is not final the last `lookahead` tokens are context only; chunked: attend
        chunk by chunk (streaming) instead of to the whole row.
        """
        config, size = self.config, x.shape[1]
        kept = torch.where(final, lengths, lengths - config.lookahead)
        frames = kept * config.upsampling
        chunk = config.chunk if chunked else None
        token_mask = visible_keys(kept, size, chunk)
        frame_mask = visible_keys(frames, size * config.upsampling, chunk and chunk * config.upsampling)
        return self.encode(x, lengths, size, (token_mask, frame_mask)), frames

    def encode(
        self,
        x: Tensor,
        lengths: Tensor,
        size: int,
        masks: tuple[Tensor | None, Tensor | None],
        keys: int | None = None,
        past: Tensor | None = None,
        memory: tuple[Memory, Memory] | None = None,
        lookahead_ends: Tensor | None = None,
    ) -> Tensor:
        """Encode tokens that may have a past, and may be followed by others  →  mu [batch, frames, mel bins].

        x: [batch, tokens, input] embedded tokens, the lookahead's included; lengths: [batch] int64, tokens of each row;
        missing lookahead of a row's last tokens is zeros, as at the end of an utterance; size: tokens to encode. masks:
        the keys that tokens see, and that frames see: [batch, 1, 1 or size, keys] bool, None for all; keys: tokens of
        the longest row with its past, None: `size`; past: [batch] int64, tokens before each row, None: keys − size for
        all; memory: the past at token rate and at mel rate, with `memory_shapes`, None: rows have no past;
        lookahead_ends: [batch, size] int64, the place in `x` from which on each token's lookahead is zeros, None: it is
        the row's end.
        """
        config, keys = self.config, keys or size
        of_tokens, of_frames = memory or (None, None)
        x = self.embed(x) * valid_positions(lengths, x.shape[1])[..., None]
        x = look_ahead(x, size, self.lookahead_conv, self.history_conv, of_tokens, lookahead_ends)
        span = RelativeSpan.of(x, keys, masks[0], past)
        for block in self.blocks:
            x = block(x, span, of_tokens)
        x = x.repeat_interleave(config.upsampling, dim=1)
        x = pad(x, (0, 0, UPSAMPLING_KERNEL - 1, 0)) if of_frames is None else of_frames.extend(0, x)
        x = self.up_embed(convolve(x, self.up_conv.weight, self.up_conv.bias))
        past = None if past is None else past * config.upsampling
        span = RelativeSpan.of(x, keys * config.upsampling, masks[1], past)
        for block in self.up_blocks:
            x = block(x, span, of_frames)
        return self.mu_projection(self.norm(x))

    def lay_out(self) -> None:
        for conv in (self.lookahead_conv, self.history_conv, self.up_conv):
            lay_for_windows(conv)


def look_ahead(
    x: Tensor,
    size: int,
    ahead: nn.Conv1d,
    behind: nn.Conv1d,
    memory: Memory | None,
    lookahead_ends: Tensor | None,
) -> Tensor:
    """Two convolutions: one over the tokens ahead, and one over the first one's past; x: [batch, tokens, channels] →
    [batch, size, …].
    """
    y = pad(x, (0, 0, 0, size + ahead.kernel_size[0] - 1 - x.shape[1]))
    if lookahead_ends is None:
        y = convolve(y, ahead.weight, ahead.bias)
    else:
        y = _up_to_ends(y, lookahead_ends, ahead.weight, ahead.bias)
    # The official layer leaves the slope at PyTorch's default, unlike the vocoder's.
    y = leaky_relu(y, 0.01)
    y = pad(y, (0, 0, HISTORY_KERNEL - 1, 0)) if memory is None else memory.extend(0, y)
    return x[:, :size] + convolve(y, behind.weight, behind.bias)


def _up_to_ends(x: Tensor, lookahead_ends: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`convolve`, with zeros in each window from its end on; lookahead_ends: [batch, time]."""
    batch, time = lookahead_ends.shape
    windows = x.unfold(1, weight.shape[2], 1).transpose(2, 3)
    position = torch.arange(time, device=x.device)[:, None] + torch.arange(weight.shape[2], device=x.device)
    heard = windows * (position < lookahead_ends[..., None])[..., None]
    return convolve(heard.flatten(0, 1), weight, bias).view(batch, time, -1)
