"""The speaker encoder as `campplus.onnx`."""

from __future__ import annotations

from pathlib import Path

from vivavoce.models.encoders import EMBEDDING_SIZE
from vivavoce.models.features import NUM_BINS
from vivavoce_runtimes.onnx_writer import FLOAT, Port
from vivavoce_training.onnx_graph import Graph
from vivavoce_training.speaker.model import SMALLEST_VARIANCE, GatedBlock, SpeakerNet


def export_speaker_encoder(net: SpeakerNet, path: Path) -> None:
    """Write input float32 [1, frames, 80]  →  output [1, 192].

    The weights are stored as float16: round them first (`training.onnx_graph.round_to_half`) to compare.
    """
    graph = Graph()
    x = graph.op("Relu", graph.conv(graph.swap("input"), net.enter))
    for block in net.blocks:
        assert isinstance(block, GatedBlock)
        x = _block(graph, x, block)
    frames = graph.op("Relu", graph.linear(graph.layer_norm(graph.swap(x), net.norm), net.leave))
    mean = graph.op("ReduceMean", frames, axes=[1])
    centred = graph.op("Sub", frames, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), axes=[1])
    deviation = graph.op("Sqrt", graph.op("Add", variance, graph.constant(SMALLEST_VARIANCE)))
    pooled = graph.op("Concat", mean, deviation, axis=2)
    embedding = graph.linear(pooled, net.embed)
    graph.op("Squeeze", embedding, graph.constant([1], "int64"), output="output")
    path.write_bytes(
        graph.model(
            inputs=[Port("input", FLOAT, (1, "frames", NUM_BINS))],
            outputs=[Port("output", FLOAT, (1, EMBEDDING_SIZE))],
        )
    )


def _block(graph: Graph, x: str, block: GatedBlock) -> str:
    heard = graph.op("Relu", graph.conv(graph.swap(graph.layer_norm(graph.swap(x), block.norm)), block.conv))
    means = graph.swap(graph.op("ReduceMean", heard, axes=[2]))
    squeezed = graph.op("Relu", graph.linear(means, block.squeeze))
    gate = graph.op("Sigmoid", graph.linear(squeezed, block.excite))
    return graph.op("Add", x, graph.op("Mul", heard, graph.swap(gate)))
