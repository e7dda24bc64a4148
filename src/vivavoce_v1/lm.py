"""CosyVoice 1's language model: a text encoder, and a transformer with relative attention.

`ConformerLM` is the network. `ConformerSlotLM` runs it over the slots of a cache, as `SlotLM` does for a `SpeechLM`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad, relu, scaled_dot_product_attention

from vivavoce.checkpoint.config import ConformerLMConfig
from vivavoce.models.layers import ConformerBlock, relative_positions
from vivavoce.models.layout import Product
from vivavoce.models.lm.slot_lm import SAFE_ROWS, SPEAKER, TEXT, Attend, PackedRows, SlotCache, fewest_rows, joined
from vivavoce_v1.conformer import Conformer


class ConformerLM(nn.Module):
    """The network. Each input row is a control id, the speaker embedding, an encoded text token or a speech token. Text
    encoder and backbone have causal attention."""

    def __init__(self, config: ConformerLMConfig) -> None:
        super().__init__()
        self.config = config
        encoder, size, vocabulary = config.text_encoder, config.hidden_size, config.vocabulary
        self.text_embedding = nn.Embedding(config.text_vocab_size, encoder.input_size)
        self.text_encoder = Conformer(encoder)
        self.text_projection = nn.Linear(encoder.hidden_size, size)
        self.speaker_projection = nn.Linear(config.speaker_size, size)
        self.control_embedding = nn.Embedding(2, size)
        self.speech_embedding = nn.Embedding(vocabulary.num_speech_tokens, size)
        self.backbone = Conformer(config.backbone, relu, relu)
        self.speech_head = nn.Linear(size, vocabulary.num_logits)

    @property
    def control_rows(self) -> nn.Embedding:
        return self.control_embedding

    def text_rows(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode text ids [batch, n] int64 → [batch, n, hidden]; mask: [batch, n, n] bool, by default causal."""
        mask = _causal(ids.shape[1], ids.device) if mask is None else mask
        return self.text_projection(self.text_encoder(self.text_embedding(ids), mask[:, None]))

    def speaker_rows(self, embeddings: Tensor) -> Tensor:
        return self.speaker_projection(normalize(embeddings, dim=1).to(self.speaker_projection.weight.dtype))

    def forward(self, rows: Tensor) -> Tensor:
        return self.backbone(rows, _causal(rows.shape[1], rows.device)[:, None])

    def over_slots(self, capacity: int) -> ConformerSlotLM:
        """Return this network for a batch of slots, as `LMStage` needs it; capacity: positions in each slot."""
        return ConformerSlotLM(self, capacity)


def _causal(size: int, device: torch.device) -> Tensor:
    return torch.ones(1, size, size, dtype=torch.bool, device=device).tril()


@dataclass(frozen=True)
class _Layer:
    """The layers of one block. distances: [heads, head_dim, capacity], key of each distance from a query back to a key
    (0, 1, …)."""

    block: ConformerBlock
    qkv: Product
    out: Product
    expand: Product
    contract: Product
    distances: Tensor


class ConformerSlotLM:
    def __init__(self, lm: ConformerLM, capacity: int) -> None:
        self._lm, config = lm, lm.config
        self._heads, self._head_dim, size = config.num_kv_heads, config.head_dim, config.hidden_size
        weight = lm.speech_head.weight
        self._reached, self._dtype = torch.arange(capacity, device=weight.device), weight.dtype
        # Distances back from the query: 0, 1, …
        table = relative_positions(1, capacity, size, weight.device, weight.dtype).flip(0)
        self._layers = [self._layer(cast(ConformerBlock, block), table) for block in lm.backbone.blocks]
        self._embed, self._head = joined([lm.backbone.embed.linear]), joined([lm.speech_head])
        layer, inner = self._layers[0], config.backbone.feed_forward_size
        products = (self._embed, layer.qkv, layer.out, layer.expand, layer.contract, self._head)
        self.row_step = fewest_rows(products, (size, size, size, size, inner, size), weight.device, weight.dtype)

    def _layer(self, block: ConformerBlock, table: Tensor) -> _Layer:
        attention, feed_forward = block.attention, block.feed_forward
        distances = attention.position(table).unflatten(1, (self._heads, -1)).permute(1, 2, 0).contiguous()
        return _Layer(
            block,
            joined([attention.query, attention.key, attention.value]),
            joined([attention.out]),
            joined([feed_forward.expand]),
            joined([feed_forward.contract]),
            distances,
        )

    def prefill(self, packed: PackedRows, cache: SlotCache, reach: int) -> Tensor:
        count, longest = packed.padded.shape
        span = self._span(packed.starts[:, None] + self._reached[:longest], reach)

        def attend(layer: int, query: Tensor, keys_values: Tensor) -> Tensor:
            cache.memory[layer][:, packed.slots, :, packed.positions] = keys_values
            keys, values = cache.memory[layer, :, :, :, :reach].index_select(1, packed.sequences).unbind(0)
            out = self._attended(layer, query[packed.padded], keys, values, span)
            return out.reshape(count * longest, -1)[packed.unpadded]

        hidden = self._hidden(self._embedded(packed), attend)
        return self._scores(pad(hidden[packed.last], (0, 0, 0, -count % 8)), count)

    def step(self, ids: Tensor, positions: Tensor, cache: SlotCache, reach: int) -> Tensor:
        slots = len(ids)
        index = positions[None, :, None, None, None].expand(2, slots, self._heads, 1, self._head_dim)
        idle = -slots % self.row_step
        stored, readable = cache.first(slots, reach)
        span = self._span(positions[:, None], reach)

        def attend(layer: int, query: Tensor, keys_values: Tensor) -> Tensor:
            stored[layer].scatter_(3, index, keys_values[:slots].transpose(0, 1).unsqueeze(3))
            out = self._attended(layer, query[:slots, None], *readable[layer], span)[:, 0]
            return pad(out, (0, 0, 0, idle)) if idle else out

        rows = self._lm.speech_embedding(pad(ids, (0, idle)).clamp(max=self._lm.speech_embedding.num_embeddings - 1))
        return self._scores(self._hidden(rows, attend), slots)

    def _embedded(self, packed: PackedRows) -> Tensor:
        lm, kinds, ids = self._lm, packed.kinds[:, None], packed.ids
        control, speech = (
            table(ids.clamp(max=table.num_embeddings - 1)) for table in (lm.control_embedding, lm.speech_embedding)
        )
        rows = torch.where(kinds == 0, control, speech)
        if packed.text_end:
            # The text rows of a sequence are contiguous, so their distances in the grid are the distances in the text.
            grid = packed.padded[:, : packed.text_end]
            is_text = packed.kinds[grid] == TEXT
            is_text[:, 1:] &= grid.diff() > 0  # past a sequence's end, the grid repeats the last index
            heard = (is_text[:, None] | torch.eye(packed.text_end, dtype=torch.bool, device=ids.device)).tril()
            encoded = lm.text_rows(torch.where(is_text, ids[grid], 0), heard)
            places = torch.where(is_text, grid, len(ids)).flatten()
            rows = pad(rows, (0, 0, 0, 1)).index_copy_(0, places, encoded.flatten(0, 1))[:-1]
        if packed.speakers is not None:
            spoken = lm.speaker_rows(packed.speakers)
            firsts = packed.padded[:, 1]
            rows[firsts] = torch.where(packed.kinds[firsts, None] == SPEAKER, spoken, rows[firsts])
        return rows

    def _span(self, asking: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Return the distance back to each key, and a mask: 0 where a query may attend to a key, −inf elsewhere; both
        [n, 1, rows, reach]. asking: [n, rows], positions of the queries."""
        distance = (asking[..., None] - self._reached[:reach])[:, None]
        hidden = torch.zeros(distance.shape, dtype=self._dtype, device=distance.device)
        return distance.clamp(0, reach - 1), hidden.masked_fill_(distance < 0, float("-inf"))

    def _attended(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, span: tuple[Tensor, Tensor]) -> Tensor:
        """Attend. query: [n, rows, heads, head_dim]; keys, values: [n, heads, reach, head_dim]; span: result of `_span`
        → [n, rows, hidden]."""
        attention, (back, hidden) = self._layers[layer].block.attention, span
        count, _, rows, reach = back.shape
        # Compute one product for all sequences, padded to a multiple of `SAFE_ROWS`: bits do not depend on other rows.
        asked = (query + attention.position_bias).flatten(0, 1).transpose(0, 1)
        asked = pad(asked, (0, 0, 0, -count * rows % SAFE_ROWS)) @ self._layers[layer].distances[..., :reach]
        by_distance = asked[:, : count * rows].unflatten(1, (count, rows)).transpose(0, 1)
        found = by_distance.gather(3, back.expand(by_distance.shape))
        bias = torch.add(hidden, found, alpha=1 / math.sqrt(self._head_dim))
        content = (query + attention.content_bias).transpose(1, 2)
        return scaled_dot_product_attention(content, keys, values, attn_mask=bias).transpose(1, 2).flatten(2)

    def _hidden(self, rows: Tensor, attend: Attend) -> Tensor:
        embed = self._lm.backbone.embed
        x = relu(embed.norm(self._embed(rows))) * embed.scale
        for index, layer in enumerate(self._layers):
            heads = layer.qkv(layer.block.attention_norm(x)).view(len(x), 3, self._heads, self._head_dim)
            x = x + layer.out(attend(index, heads[:, 0], heads[:, 1:]))
            x = x + layer.contract(relu(layer.expand(layer.block.feed_forward_norm(x))))
        return x

    def _scores(self, hidden: Tensor, count: int) -> Tensor:
        return self._head(self._lm.backbone.norm(hidden))[:count].float().log_softmax(dim=-1)
