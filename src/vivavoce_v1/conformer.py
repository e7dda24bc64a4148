"""The conformer of CosyVoice 1's language model and flow."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import silu

from vivavoce.checkpoint.config import ConformerConfig
from vivavoce.models.layers import ConformerBlock, Embed, RelativeSpan


class Conformer(nn.Module):
    """A conformer without convolutions. activation: used in feed-forward layers; embedded: applied to the embedding."""

    def __init__(
        self,
        config: ConformerConfig,
        activation: Callable[[Tensor], Tensor] = silu,
        embedded: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.embed = Embed(config.input_size, size)
        self.blocks = nn.ModuleList(
            ConformerBlock(size, config.num_heads, config.feed_forward_size, activation)
            for _ in range(config.num_blocks)
        )
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self._embedded = embedded

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: [batch, time, input] → [batch, time, size]; mask: [batch, 1, 1 or time, time] bool, None for all keys."""
        x = self.embed(x) if self._embedded is None else self._embedded(self.embed(x))
        span = RelativeSpan.of(x, x.shape[1], mask)
        for block in self.blocks:
            x = block(x, span, None)
        return self.norm(x)
