"""The language model of CosyVoice 2 and 3: Qwen2 over text, control and speech embeddings, and a speech head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from vivavoce.checkpoint.config import LMConfig, Qwen2Config
from vivavoce.models.layers import RMSNorm, rotary_tables, rotate

if TYPE_CHECKING:
    from vivavoce.models.lm.slot_lm import SlotLM

Past = list[tuple[Tensor, Tensor]]
"""For each layer, keys and values of the rows so far, [batch, kv_heads, positions, head_dim]; empty at first."""


class Attention(nn.Module):
    """Grouped-query attention (arXiv:2305.13245) with biased query, key and value projections."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width)
        self.k_proj = nn.Linear(config.hidden_size, kv_width)
        self.v_proj = nn.Linear(config.hidden_size, kv_width)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: [batch, time, hidden] → rotated query, rotated key, and value, each [batch, heads, time, head_dim]."""
        query, key, value = (
            projection(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """query: [batch, heads, time, head_dim]; key, value: [batch, kv_heads, keys, head_dim]; mask: [batch, 1, time,
        keys] bool → [batch, time, hidden]. The query heads of a group become rows of one matrix product, so that keys
        and values need not be repeated."""
        batch, heads, time, head_dim = query.shape
        group = heads // self.num_kv_heads
        rows = query.reshape(batch, self.num_kv_heads, group * time, head_dim)
        rows_mask = mask.expand(batch, group, time, -1).reshape(batch, 1, group * time, -1)
        out = scaled_dot_product_attention(rows, key, value, attn_mask=rows_mask)
        out = out.reshape(batch, heads, time, head_dim).transpose(1, 2).reshape(batch, time, heads * head_dim)
        return self.o_proj(out)


class GatedMLP(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


StoredKeys = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function that stores new keys and values, and returns all keys and values that may be attended to."""


class Layer(nn.Module):
    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, stored: StoredKeys) -> Tensor:
        """x: [batch, time, hidden]; stored: stores new keys and values, and returns them with the past ones."""
        query, key, value = self.attention.project(self.attention_norm(x), cos, sin)
        key, value = stored(key, value)
        x = x + self.attention.attend(query, key, value, mask)
        return x + self.mlp(self.mlp_norm(x))


class SpeechLM(nn.Module):
    """The network: input rows → hidden states → log-probabilities of speech tokens and control ids. Attention is
    causal."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        vocabulary = config.vocabulary
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.hidden_size)
        self.speech_embedding = nn.Embedding(vocabulary.num_logits, config.hidden_size)
        if vocabulary.has_own_controls:
            self.control_embedding = nn.Embedding(2, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.speech_head = nn.Linear(config.hidden_size, vocabulary.num_logits, bias=vocabulary.has_own_controls)

    @property
    def control_rows(self) -> nn.Embedding:
        return self.control_embedding if self.config.vocabulary.has_own_controls else self.speech_embedding

    def forward(self, rows: Tensor, past: Past | None = None) -> Tensor:
        """rows: [batch, time, hidden] → hidden states after the final norm, in the same shape. Padding on the right has
        no effect, because attention is causal. past: earlier keys and values; those of `rows` are appended to them."""
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + rows.shape[1], device=rows.device)[None]
        mask = torch.arange(start + rows.shape[1], device=rows.device) <= positions[:, None, :, None]
        cos, sin = rotary_tables(positions, self.config.head_dim, self.config.rope_theta)
        cos, sin = cos.to(rows.dtype), sin.to(rows.dtype)
        x = rows
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, partial(_extended, past, index))
        return self.norm(x)

    def over_slots(self, capacity: int) -> SlotLM:
        """Return this network for a batch of slots, as `LMStage` needs it; capacity: positions in each slot."""
        from vivavoce.models.lm.slot_lm import SlotLM  # slot_lm imports this module

        return SlotLM(self, capacity)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return self.speech_head(hidden).float().log_softmax(dim=-1)


def _extended(past: Past | None, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if past is not None:
        if layer < len(past):
            key, value = torch.cat((past[layer][0], key), dim=2), torch.cat((past[layer][1], value), dim=2)
        past[layer : layer + 1] = [(key, value)]
    return key, value
