"""The networks of the speaker encoder: a small time-delay network with statistics pooling.

It follows x-vectors (Snyder et al. 2018) and ECAPA-TDNN (arXiv:2005.07143). Only `SpeakerNet` is exported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivavoce.models.encoders import EMBEDDING_SIZE
from vivavoce.models.features import NUM_BINS
from vivavoce_runtimes.onnx_writer import FLOAT, Port
from vivavoce_training.onnx_graph import Graph

SMALLEST_VARIANCE = 1e-4


@dataclass(frozen=True)
class SpeakerSizes:
    """dilations: one for each residual block; gate: inner width of the blocks' gates."""

    width: int = 128
    dilations: tuple[int, ...] = (1, 2, 3, 4)
    gate: int = 32
    pooled: int = 192


class SpeakerNet(nn.Module):
    def __init__(self, sizes: SpeakerSizes) -> None:
        super().__init__()
        self.enter = nn.Conv1d(NUM_BINS, sizes.width, 5, padding=2)
        self.blocks = nn.ModuleList([GatedBlock(sizes.width, dilation, sizes.gate) for dilation in sizes.dilations])
        self.norm = nn.LayerNorm(sizes.width)
        self.leave = nn.Linear(sizes.width, sizes.pooled)
        self.embed = nn.Linear(2 * sizes.pooled, EMBEDDING_SIZE)

    def forward(self, energies: Tensor) -> Tensor:
        """energies: [batch, frames, 80], each bin's mean subtracted  →  [batch, 192] float32, not normalised."""
        x = functional.relu(self.enter(energies.transpose(1, 2)))
        for block in self.blocks:
            x = block(x)
        frames = functional.relu(self.leave(self.norm(x.transpose(1, 2)))).float()
        mean = frames.mean(1)
        variance = (frames - mean[:, None]).square().mean(1)
        embedding: Tensor = self.embed(torch.cat([mean, (variance + SMALLEST_VARIANCE).sqrt()], dim=1)).float()
        return embedding


class GatedBlock(nn.Module):
    """A dilated convolution, gated by the means of its channels over time, added to its input."""

    def __init__(self, width: int, dilation: int, gate: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.squeeze, self.excite = nn.Linear(width, gate), nn.Linear(gate, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, width, frames]  →  the same shape."""
        heard = functional.relu(self.conv(self.norm(x.transpose(1, 2)).transpose(1, 2)))
        gate = torch.sigmoid(self.excite(functional.relu(self.squeeze(heard.mean(2)))))
        return x + heard * gate[:, :, None]


class MarginHead(nn.Module):
    """Classifies the training speakers by the embedding's angles, with a margin (ArcFace, arXiv:1801.07698)."""

    def __init__(self, num_speakers: int, scale: float = 30.0, margin: float = 0.2) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(num_speakers, EMBEDDING_SIZE))
        self._scale, self._cos, self._sin = scale, math.cos(margin), math.sin(margin)

    def forward(self, embeddings: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
        """Compute loss and accuracy for embeddings [batch, 192] and speaker [batch] int64."""
        cosine = functional.normalize(embeddings) @ functional.normalize(self.centres).T
        sine = (1 - cosine.square()).clamp(min=1e-6).sqrt()
        own = speaker[:, None] == torch.arange(cosine.shape[1], device=speaker.device)
        moved = torch.where(own, cosine * self._cos - sine * self._sin, cosine)
        right = (cosine.argmax(1) == speaker).float().mean()
        return functional.cross_entropy(self._scale * moved, speaker), right


class TraitHead(nn.Module):
    """Predicts the traits of a timbre from the embedding's direction, by one linear layer.

    This makes embeddings smooth between those of the training speakers, where new speakers lie.
    """

    def __init__(self, num_traits: int) -> None:
        super().__init__()
        self.read = nn.Linear(EMBEDDING_SIZE, num_traits)

    def forward(self, embeddings: Tensor, traits: Tensor) -> Tensor:
        """Compute the mean squared error against traits [batch, traits], which have about unit deviation."""
        return functional.mse_loss(self.read(math.sqrt(EMBEDDING_SIZE) * functional.normalize(embeddings)), traits)


def export_speaker_encoder(net: SpeakerNet, path: Path) -> None:
    """Write the ONNX file: input float32 [1, frames, 80]  →  output [1, 192].

    It stores the weights in float16. To compare it with `net`, call `onnx_graph.round_to_half` on `net` first.
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
            inputs=[Port("input", FLOAT, (1, "frames", NUM_BINS))], outputs=[Port("output", FLOAT, (1, EMBEDDING_SIZE))]
        )
    )


def _block(graph: Graph, x: str, block: GatedBlock) -> str:
    heard = graph.op("Relu", graph.conv(graph.swap(graph.layer_norm(graph.swap(x), block.norm)), block.conv))
    means = graph.swap(graph.op("ReduceMean", heard, axes=[2]))
    squeezed = graph.op("Relu", graph.linear(means, block.squeeze))
    gate = graph.op("Sigmoid", graph.linear(squeezed, block.excite))
    return graph.op("Add", x, graph.op("Mul", heard, graph.swap(gate)))
