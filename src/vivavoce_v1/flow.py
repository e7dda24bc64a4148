"""CosyVoice 1's flow: a chunk's tokens, its prompt and a speaker → mel, without state inside the network.

The tokens at a chunk's end are also in the next chunk. For the frames of the prompt and of these shared tokens, the
calls of a stream use equal noise and equal mu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize
from torch.nn.utils.rnn import pad_sequence

from vivavoce.checkpoint.config import WholeFlowConfig
from vivavoce.models.flow.model import FlowSchedule, Path
from vivavoce.models.flow.unet import PointwiseConv
from vivavoce.models.layers import PairRunner, valid_positions
from vivavoce.models.layout import mish
from vivavoce.rates import Rates
from vivavoce_v1.conformer import Conformer
from vivavoce_v1.unet import Conv, TimeNorm, UNetV1, within

REGULATOR_CONVS = 4


class Regulator(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Conv(channels, channels) for _ in range(REGULATOR_CONVS))
        self.norms = nn.ModuleList(TimeNorm(1, channels) for _ in range(REGULATOR_CONVS))
        self.out = PointwiseConv(channels, channels)

    def forward(self, x: Tensor, inside: Tensor | None) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = mish(norm(conv(within(x, inside)), inside))
        return self.out(x)


@dataclass(frozen=True, eq=False)
class WholeInput:
    """The input of one row. prompt, tokens: [n] int64. prompt_mel: [prompt frames, bins], possibly without frames.
    speaker: [bins], projected. kept: [frames, 2, bins], noise and mu of the call's first frames, from the stream's
    previous call; None in its first call."""

    prompt: Tensor
    tokens: Tensor
    prompt_mel: Tensor
    speaker: Tensor
    kept: Tensor | None = None


class FlowV1(nn.Module):
    def __init__(self, config: WholeFlowConfig, rates: Rates) -> None:
        super().__init__()
        self.config, self.rates = config, rates
        bins = config.num_mel_bins
        self.token_embedding = nn.Embedding(config.num_tokens, config.encoder.input_size)
        self.speaker_projection = nn.Linear(config.speaker_size, bins)
        self.encoder = Conformer(config.encoder)
        self.mu_projection = nn.Linear(config.encoder.hidden_size, bins)
        self.regulator = Regulator(bins)
        self.estimator: Any = UNetV1(config.estimator)  # in the place of an `Estimator`

    def speaker(self, embedding: Tensor) -> Tensor:
        return self.speaker_projection(normalize(embedding, dim=1).to(self.speaker_projection.weight.dtype))

    def frames_of(self, item: WholeInput) -> int:
        return len(item.prompt_mel) + self.rates.frames_of(len(item.tokens))

    def encode(self, items: Sequence[WholeInput]) -> Tensor:
        """Return mu of each row, the prompt's frames first: [batch, frames, bins], arbitrary beyond a row's end."""
        tokens = pad_sequence([torch.cat((one.prompt, one.tokens)) for one in items], batch_first=True)
        lengths = [len(one.prompt) + len(one.tokens) for one in items]
        ragged = len(set(lengths)) > 1
        mask = _own_keys(torch.tensor(lengths, device=tokens.device), tokens.shape[1]) if ragged else None
        x = self.mu_projection(self.encoder(self.token_embedding(tokens.clamp(min=0)), mask))
        stretched = [self._stretched(row[:length], item) for row, length, item in zip(x, lengths, items, strict=True)]
        frames = torch.tensor([len(one) for one in stretched], device=x.device)
        ragged = len({len(one) for one in stretched}) > 1
        padded = pad_sequence(stretched, batch_first=True)
        inside = valid_positions(frames, padded.shape[1])[..., None].to(x.dtype) if ragged else None
        return self.regulator(padded, inside)

    def _stretched(self, x: Tensor, item: WholeInput) -> Tensor:
        """Stretch x from token rate [tokens, bins] to mel rate [frames, bins]. Prompt, start, middle and end are
        stretched separately, so that tokens that are in two chunks give equal frames in both."""
        frames_of, overlap = self.rates.frames_of, self.config.overlap
        prompt, target = x.split((len(item.prompt), len(item.tokens)))
        parts, frames = [(prompt, len(item.prompt_mel))], frames_of(len(target))
        if len(target) > 2 * overlap:
            shared = frames_of(overlap)
            parts += zip(
                target.split((overlap, len(target) - 2 * overlap, overlap)),
                (shared, frames - 2 * shared, shared),
                strict=True,
            )
        else:
            parts.append((target, frames))
        whole = [interpolate(part.T[None], size=size, mode="linear")[0].T for part, size in parts if len(part)]
        return torch.cat(whole)

    def begin(
        self, items: Sequence[WholeInput], schedule: FlowSchedule, noise: Tensor, both: PairRunner | None = None
    ) -> tuple[Path, list[Tensor]]:
        """Begin a batch. Return its `Path`, which starts at the noise, and, for each row, the noise and mu that its
        stream keeps for the next call (`WholeInput.kept`), [frames, 2, bins]. noise: [MAX_FRAMES, bins]."""
        mu = self.encode(items)
        frames, size = [self.frames_of(one) for one in items], mu.shape[1]
        starts, condition = noise[:size].expand(len(items), -1, -1).clone(), torch.zeros_like(mu)
        kept, shared = [], self.rates.frames_of(self.config.overlap)
        for row, (item, end) in enumerate(zip(items, frames, strict=True)):
            prompt = len(item.prompt_mel)
            condition[row, :prompt] = item.prompt_mel
            if item.kept is not None:
                starts[row, : len(item.kept)], mu[row, : len(item.kept)] = item.kept.unbind(1)
            pairs = torch.stack((starts[row], mu[row].float()), dim=1)
            kept.append(torch.cat((pairs[:prompt], pairs[max(prompt, end - shared) : end])))
        lengths = torch.tensor(frames, device=mu.device)
        mask = _own_keys(lengths, size) if len(set(frames)) > 1 else None
        speaker = torch.stack([one.speaker for one in items])
        guidance = self.config.guidance
        return Path(self.estimator, schedule, guidance, starts, mu, speaker, condition, mask, both=both), kept

    def lay_out(self) -> None:
        """Do nothing: inference reads the weights in the order of the checkpoint."""


def _own_keys(lengths: Tensor, size: int) -> Tensor:
    """Return a mask [batch, 1, 1, size] bool, True for keys within each row's length; lengths: [batch] int."""
    return valid_positions(lengths, size)[:, None, None]
