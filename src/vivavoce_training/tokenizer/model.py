"""The networks of the speech tokenizer.

A token is eight digits of three values each: finite scalar quantisation (arXiv:2309.15505) inside a network that
recognises speech, as in CosyVoice2 (arXiv:2412.10117, section 2.1). This network recognises phones, pitch and loudness,
and its digits spell them (`data/spelling.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivavoce_runtimes.onnx_writer import FLOAT, INT32, Port
from vivavoce_training.data.spelling import BASE, NUM_DIGITS
from vivavoce_training.onnx_graph import Graph

NUM_BINS = 128
FORBIDDEN = -1e4  # added to scores of positions hidden from attention; float16 can hold it


@dataclass(frozen=True)
class TokenizerSizes:
    """span: number of tokens on either side that a token attends to."""

    width: int = 192
    heads: int = 4
    blocks: int = 3
    inner: int = 384
    kernel: int = 7
    span: int = 40


class TokenEncoder(nn.Module):
    """Features at 100 Hz → digits at 25 Hz, before rounding."""

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
    """Attention up to `span` tokens away. Scores fall with the distance, at each head's rate (ALiBi, arXiv:2108.12409).

    It does not depend on the recording's length: a long recording gets the tokens that its parts would get.
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
        """Return the numbers that are added to the scores, [heads, tokens, tokens]. They depend on the distance."""
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
    """Return the weights of a token's digits, [8] float32: 1, 3, 9, … 2187; the first digit is least significant."""
    return torch.pow(float(BASE), torch.arange(NUM_DIGITS, device=device))


def to_indices(digits: Tensor) -> Tensor:
    """Digits [.., 8], rounded or not  →  tokens [..] int32 in [0, 6561)."""
    return ((digits.round() + 1) * digit_weights(digits.device)).sum(-1).int()


FRAMES_PER_TOKEN = 4


def export_tokenizer(encoder: TokenEncoder, path: Path) -> None:
    """Write the ONNX file: feats float32 [1, 128, frames], feats_length int32 [1]  →  indices int32 [1, tokens].

    It stores the weights in float16. To compare it with `encoder`, call `onnx_graph.round_to_half` on that first.
    """
    graph = Graph()
    x = "feats"
    for layer in encoder.halve:
        assert isinstance(layer, nn.Conv1d)
        x = graph.gelu(graph.conv(x, layer))
    x = graph.swap(x)
    distance = _distance(graph, x)
    for block in encoder.blocks:
        assert isinstance(block, EncoderBlock)
        x = _block(graph, x, block, distance)
    digits = graph.op("Tanh", graph.linear(graph.layer_norm(x, encoder.norm), encoder.digits))
    _indices(graph, digits)
    path.write_bytes(
        graph.model(
            inputs=[Port("feats", FLOAT, (1, NUM_BINS, "frames")), Port("feats_length", INT32, (1,))],
            outputs=[Port("indices", INT32, (1, "tokens"))],
        )
    )


def _distance(graph: Graph, x: str) -> str:
    """Add the distances of all pairs of tokens of x [1, tokens, width]: [tokens, tokens] float32."""
    tokens = graph.op("Gather", graph.op("Shape", x), graph.constant(1, "int64"))
    zero, one = graph.constant(0, "int64"), graph.constant(1, "int64")
    at = graph.op("Range", zero, tokens, one)
    rows = graph.op("Unsqueeze", at, graph.constant([1], "int64"))
    difference = graph.op("Sub", rows, at)
    return graph.op("Cast", graph.op("Abs", difference), to=FLOAT)


def _block(graph: Graph, x: str, block: EncoderBlock, distance: str) -> str:
    near = graph.conv(graph.swap(graph.layer_norm(x, block.near_norm)), block.near)
    x = graph.op("Add", x, graph.swap(near))
    x = graph.op("Add", x, _attention(graph, graph.layer_norm(x, block.attention_norm), block.attention, distance))
    return graph.op("Add", x, _feed(graph, graph.layer_norm(x, block.feed_norm), block.feed))


def _attention(graph: Graph, x: str, layer: LocalAttention, distance: str) -> str:
    width = layer.query.in_features
    per_head = graph.constant([0, -1, layer.heads, width // layer.heads], "int64")

    def split(linear: nn.Linear, order: list[int]) -> str:
        return graph.op("Transpose", graph.op("Reshape", graph.linear(x, linear), per_head), perm=order)

    query, key = split(layer.query, [0, 2, 1, 3]), split(layer.key, [0, 2, 3, 1])
    scale = graph.constant(1 / math.sqrt(width // layer.heads))
    scores = graph.op("Mul", graph.op("MatMul", query, key), scale)
    fading = graph.op("Mul", distance, graph.constant(-layer.slopes.cpu().numpy()))
    too_far = graph.op("Greater", distance, graph.constant(layer.span))
    bias = graph.op("Where", too_far, graph.constant(FORBIDDEN), fading)
    shares = graph.op("Softmax", graph.op("Add", scores, bias), axis=3)
    mixed = graph.op("MatMul", shares, split(layer.value, [0, 2, 1, 3]))
    joined = graph.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return graph.linear(graph.op("Reshape", joined, graph.constant([0, -1, width], "int64")), layer.out)


def _feed(graph: Graph, x: str, layer: FeedForward) -> str:
    return graph.linear(graph.gelu(graph.linear(x, layer.rise)), layer.fall)


def _indices(graph: Graph, digits: str) -> None:
    """Turn digits [1, tokens, 8] in (-1, 1) into the output "indices" [1, ceil(feats_length / 4)]."""
    values = graph.op("Add", graph.op("Round", digits), graph.constant(1.0))
    weights = graph.constant(digit_weights().numpy()[:, None])
    column = graph.op("MatMul", values, weights)
    flat = graph.op("Cast", graph.op("Squeeze", column, graph.constant([2], "int64")), to=INT32)
    # feats may have more frames than feats_length says. Cut off the tokens after this length.
    up = graph.op("Add", "feats_length", graph.constant([FRAMES_PER_TOKEN - 1], "int32"))
    count = graph.op("Div", up, graph.constant([FRAMES_PER_TOKEN], "int32"))
    start, axis = graph.constant([0], "int32"), graph.constant([1], "int32")
    graph.op("Slice", flat, start, count, axis, output="indices")


def spelled(tokens: Tensor) -> Tensor:
    """Tokens [..] int64  →  their digits [.., 8] float32, each -1, 0 or 1."""
    return tokens[..., None] // digit_weights(tokens.device).long() % BASE - 1.0
