"""The tokenizer's encoder as `speech_tokenizer_v2.onnx`."""

from __future__ import annotations

import math
from pathlib import Path

from torch import nn

from vivavoce_runtimes.onnx_writer import FLOAT, INT32, Port
from vivavoce_training.onnx_graph import Graph
from vivavoce_training.tokenizer.model import (
    FORBIDDEN,
    NUM_BINS,
    EncoderBlock,
    FeedForward,
    LocalAttention,
    TokenEncoder,
    digit_weights,
)

FRAMES_PER_TOKEN = 4


def export_tokenizer(encoder: TokenEncoder, path: Path) -> None:
    """Write feats float32 [1, 128, frames], feats_length int32 [1]  →  indices int32 [1, ceil(feats_length / 4)].

    The weights are stored as float16: round them first (`training.onnx_graph.round_to_half`) to compare.
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
    """[tokens, tokens] float32: the number of positions between each pair of tokens of x [1, tokens, width]."""
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
    """Digits [1, tokens, 8] in (-1, 1) → "indices"."""
    values = graph.op("Add", graph.op("Round", digits), graph.constant(1.0))
    weights = graph.constant(digit_weights().numpy()[:, None])
    column = graph.op("MatMul", values, weights)
    flat = graph.op("Cast", graph.op("Squeeze", column, graph.constant([2], "int64")), to=INT32)
    # Features may be longer than they say: what lies behind their length is not heard as speech.
    up = graph.op("Add", "feats_length", graph.constant([FRAMES_PER_TOKEN - 1], "int32"))
    count = graph.op("Div", up, graph.constant([FRAMES_PER_TOKEN], "int32"))
    start, axis = graph.constant([0], "int32"), graph.constant([1], "int32")
    graph.op("Slice", flat, start, count, axis, output="indices")
