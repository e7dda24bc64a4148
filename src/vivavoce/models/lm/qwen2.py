"""CosyVoice2's language model: a Qwen2 backbone over text, control and speech embeddings, and a speech head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from vivavoce.checkpoint.config import LMConfig
from vivavoce.models.layers.norm import RMSNorm
from vivavoce.models.layers.rope import rotary_tables, rotate
from vivavoce.models.lm.kv_cache import KVCache


class Attention(nn.Module):
    """Grouped-query attention (arXiv:2305.13245) with biased query, key and value projections."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width)
        self.k_proj = nn.Linear(config.hidden_size, kv_width)
        self.v_proj = nn.Linear(config.hidden_size, kv_width)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: [batch, time, hidden]  →  rotated query, rotated key, value: [batch, heads, time, head_dim]."""
        batch, time, _ = x.shape
        query = self.q_proj(x).view(batch, time, self.num_heads, self.head_dim).transpose(1, 2)
        key = self.k_proj(x).view(batch, time, self.num_kv_heads, self.head_dim).transpose(1, 2)
        value = self.v_proj(x).view(batch, time, self.num_kv_heads, self.head_dim).transpose(1, 2)
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """query: [batch, heads, time, head_dim]; key, value: [batch, kv_heads, keys, head_dim]; mask: [batch, 1,
        time, keys] bool  →  [batch, time, hidden].

        The query heads of one group become rows of one product: keys and values are not repeated.
        """
        batch, heads, time, head_dim = query.shape
        group = heads // self.num_kv_heads
        rows = query.reshape(batch, self.num_kv_heads, group * time, head_dim)
        rows_mask = mask.expand(batch, group, time, -1).reshape(batch, 1, group * time, -1)
        out = scaled_dot_product_attention(rows, key, value, attn_mask=rows_mask)
        out = out.reshape(batch, heads, time, head_dim).transpose(1, 2).reshape(batch, time, heads * head_dim)
        return self.o_proj(out)


class GatedMLP(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., hidden]  →  the same shape."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


StoredKeys = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""New keys and values in, those that may be attended to out."""


def _keep_new(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key, value


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, stored: StoredKeys) -> Tensor:
        """x: [batch, time, hidden]; `stored` puts the new keys and values with those of the past."""
        query, key, value = self.attention.project(self.attention_norm(x), cos, sin)
        key, value = stored(key, value)
        x = x + self.attention.attend(query, key, value, mask)
        return x + self.mlp(self.mlp_norm(x))


class SpeechLM(nn.Module):
    """Input rows → hidden states → logits over speech tokens and control ids.

    Rows are made in `prompting.py`; positions count from the sequence's first row. Attention is causal.
    """

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        vocabulary = config.vocabulary
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.hidden_size)
        self.speech_embedding = nn.Embedding(vocabulary.num_logits, config.hidden_size)
        self.control_embedding = nn.Embedding(2, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.speech_head = nn.Linear(config.hidden_size, vocabulary.num_logits)

    def forward(
        self,
        rows: Tensor,
        cache: KVCache | None = None,
        offsets: Tensor | None = None,
        reach: int | None = None,
    ) -> Tensor:
        """Hidden states after the final norm.

        Args:
            rows: [batch, time, hidden], padded on the right. Causality keeps padding out of what precedes it.
            cache: one slot per row of the batch, which reads it and is written to; None: the rows are all there is.
            offsets: [batch] int64, positions that each slot holds already; zeros if None.
            reach: a bound on the positions in use after this call, known to the caller without asking the device;
                the cache's capacity if None.

        Returns:
            [batch, time, hidden]; what stands at padded positions means nothing.
        """
        batch, time, _ = rows.shape
        if offsets is None:
            offsets = torch.zeros(batch, dtype=torch.int64, device=rows.device)
        positions = offsets[:, None] + torch.arange(time, device=rows.device)
        upto = time if cache is None else min(cache.capacity, reach or cache.capacity)
        mask = torch.arange(upto, device=rows.device) <= positions[:, None, :, None]
        cos, sin = rotary_tables(positions, self.config.head_dim, self.config.rope_theta)
        cos, sin = cos.to(rows.dtype), sin.to(rows.dtype)
        # Padding may reach past a slot's end: it is written to the last place, which owners keep free for it.
        slots_positions = positions if cache is None else positions.clamp(max=cache.capacity - 1)
        x = rows
        for index, layer in enumerate(self.layers):
            stored = _keep_new if cache is None else partial(cache.write, index, slots_positions, upto=upto)
            x = layer(x, cos, sin, mask, stored)
        return self.norm(x)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """hidden: [..., hidden]  →  [..., logits] float32, log-softmax over all ids."""
        return self.speech_head(hidden).float().log_softmax(dim=-1)
