"""The networks that can be exported, with inputs and outputs of their files and test inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import pad

from vivavoce.checkpoint.config import Generation, LMConfig
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.token_encoder import TokenEncoder
from vivavoce.models.flow.unet import VelocityContext
from vivavoce_runtimes.estimators import OUTPUT, EstimatorInputs
from vivavoce_runtimes.files import ENCODER, ESTIMATOR, LM, VOCODER

ROWS, LENGTH = Dim("rows", min=2, max=512), Dim("length", min=2, max=15_000)
EXAMPLE = (2, 37)
"""Rows and length that exporters cannot mistake for fixed sizes."""
CHUNK = 7
"""Frames of an attention chunk in test inputs."""


@dataclass(frozen=True)
class Part:
    """One network of a model.

    dynamic: name of each input, in order → its dimensions of variable size; outputs: their names; draw: makes random
    inputs for a number of rows and a length; shapes: the rows and lengths for which the export is tested; official:
    sizes of an encoder that official tools call, see `ScriptedEncoder`.
    """

    name: str
    stem: str
    network: nn.Module
    dynamic: Mapping[str, Mapping[int, Any]]
    outputs: tuple[str, ...]
    draw: Callable[[int, int], tuple[Tensor, ...]]
    dtype: torch.dtype
    device: torch.device
    official: tuple[int, int, int] | None = None
    shapes: tuple[tuple[int, int], ...] = ((1, 4), (1, 61), (2, 37), (3, 111))

    def inputs(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """The same random inputs each time, on the device; floats in `dtype`, except `t`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rows * 15_000 + length)
            drawn = dict(zip(self.dynamic, self.draw(rows, length), strict=True))
        return tuple(
            one.to(self.device, self.dtype if one.is_floating_point() and name != "t" else one.dtype)
            for name, one in drawn.items()
        )


class _Around(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network


class Estimator(_Around):
    """The flow's velocity estimator with the inputs and the output of the official exports."""

    def forward(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, attention_ends: Tensor
    ) -> Tensor:
        """Inputs have the shapes of `EstimatorInputs` → [rows, bins, frames], 0 where `mask` is."""
        speaker = spks[:, :, None].expand_as(mu)
        features = torch.cat((x, mu, speaker, cond), dim=1).transpose(1, 2)
        frame = torch.arange(x.shape[2], device=x.device, dtype=torch.int32)
        seen = (frame < attention_ends[..., None]) & (mask > 0)
        context = VelocityContext(self.network.time_biases(t.float()), seen[:, None])
        velocity = self.network.velocity(features, context)
        return velocity.transpose(1, 2) * mask


def _estimator(models: Models) -> Part:
    bins = models.config.flow.num_mel_bins

    def draw(rows: int, frames: int) -> tuple[Tensor, ...]:
        frame, lengths = torch.arange(frames), torch.full((2 * rows, 1), frames)
        lengths[rows - 1 :: rows] -= frames // 5 if rows > 1 else 0
        x, mu, cond = torch.randn(3, 2 * rows, bins, frames)
        ends, mask = _chunked(frames).minimum(lengths).int(), (frame < lengths)[:, None].float()
        return EstimatorInputs(x, mask, mu, torch.rand(2 * rows), torch.randn(2 * rows, bins), cond, ends)

    wide, row = {0: ROWS, 2: LENGTH}, {0: ROWS}
    shapes = (wide, wide, wide, row, row, wide, {0: ROWS, 1: LENGTH})
    dynamic = dict(zip(EstimatorInputs._fields, shapes, strict=True))
    network = Estimator(models.flow.estimator)
    return Part("estimator", ESTIMATOR, network, dynamic, (OUTPUT,), draw, models.dtype, models.device)


class EncoderCore(nn.Module):
    """CosyVoice2's encoder up to its last norm; the official flow projects its output to mu."""

    def __init__(self, network: TokenEncoder) -> None:
        super().__init__()
        self.network, self.up = copy(network), network.config.upsampling
        self.network._modules = {**network._modules, "mu_projection": nn.Identity()}

    def forward(self, xs: Tensor, heard: Tensor, attention_ends: Tensor, lookahead_ends: Tensor) -> Tensor:
        """xs: [rows, tokens + lookahead, size] embedded tokens; heard: [rows] int64, their number; attention_ends:
        [rows, tokens] int32, tokens that each one sees; lookahead_ends: [rows, tokens] int64, see `TokenEncoder.encode`
        → [rows, frames, size]"""
        widened = (attention_ends * self.up).repeat_interleave(self.up, dim=1)
        of_tokens, of_frames = (
            torch.arange(ends.shape[1], device=xs.device, dtype=torch.int32) < ends[..., None]
            for ends in (attention_ends, widened)
        )
        size, masks = attention_ends.shape[1], (of_tokens[:, None], of_frames[:, None])
        return self.network.encode(xs, heard, size, masks, lookahead_ends=lookahead_ends)


class ScriptedEncoder(nn.Module):
    """`EncoderCore` as the official tools call it, for TorchScript; `encode` is the core itself."""

    def __init__(self, core: nn.Module, lookahead: int, chunk: int, up: int) -> None:
        super().__init__()
        self.core, self.lookahead, self.chunk, self.up = core, lookahead, chunk, up

    def forward(
        self,
        xs: Tensor,
        xs_lens: Tensor,
        context: Tensor = torch.zeros(0, 0, 0),
        decoding_chunk_size: int = 0,
        num_decoding_left_chunks: int = -1,
        streaming: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """xs: [rows, tokens, size]; context: [rows, lookahead, size], the following tokens, or empty; streaming: attend
        chunk by chunk → [rows, frames, size], and [rows, 1, frames], True at a row's own frames"""
        size, heard = xs.size(1), xs_lens
        if context.size(1) > 0:
            xs, heard = torch.cat((xs, context), dim=1), xs_lens + context.size(1)
        xs = pad(xs, (0, 0, 0, size + self.lookahead - xs.size(1)))
        ends = xs_lens[:, None].expand(-1, size)
        if streaming:
            ends = torch.minimum((torch.arange(size, device=xs.device) // self.chunk + 1) * self.chunk, ends)
        h = self.core(xs, heard, ends.to(torch.int32), heard[:, None].expand(-1, size))
        return h, (torch.arange(size * self.up, device=xs.device) < xs_lens[:, None] * self.up)[:, None]

    @torch.jit.export
    def encode(self, xs: Tensor, heard: Tensor, attention_ends: Tensor, lookahead_ends: Tensor) -> Tensor:
        return self.core(xs, heard, attention_ends, lookahead_ends)


def _encoder(models: Models) -> Part:
    network = models.flow.encoder
    if not isinstance(network, TokenEncoder):
        raise InvalidRequest("parts: CosyVoice3 has no encoder; leave it out")
    config, ahead = network.config, network.config.lookahead

    def draw(rows: int, tokens: int) -> tuple[Tensor, ...]:
        ends, size = _chunked(tokens).expand(rows, -1), tokens + ahead
        return torch.randn(rows, size, config.input_size), torch.full((rows,), size), ends.int(), ends + ahead

    each, sizes = {0: ROWS, 1: LENGTH}, (ahead, config.chunk, config.upsampling)
    dynamic = {"xs": {0: ROWS, 1: LENGTH + ahead}, "heard": {0: ROWS}, "attention_ends": each, "lookahead_ends": each}
    core = EncoderCore(network)
    return Part("encoder", ENCODER, core, dynamic, ("h",), draw, models.dtype, models.device, sizes)


class VocoderDecode(_Around):
    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        """mel: [1, bins, frames]; source: [1, 1, samples] → [1, samples]."""
        return self.network.decode(mel, source)


def _vocoder(models: Models) -> Part:
    bins, hop = models.config.vocoder.num_mel_bins, models.config.vocoder.samples_per_frame

    def draw(rows: int, frames: int) -> tuple[Tensor, ...]:
        return torch.randn(1, bins, frames), torch.randn(1, 1, frames * hop) / 10

    dynamic, network = {"mel": {2: LENGTH}, "source": {2: hop * LENGTH}}, VocoderDecode(models.vocoder)
    return Part("vocoder", VOCODER, network, dynamic, ("wave",), draw, torch.float32, models.device)


class DecodeStep(_Around):
    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids: [rows] int64 speech tokens; keys, values: [layers, rows, heads, positions, size] → logits [rows, ids]
        float32, and keys and values with one position more"""
        past = list(zip(keys.unbind(0), values.unbind(0), strict=True))
        hidden = self.network(self.network.speech_embedding(ids)[:, None], past)
        new_keys, new_values = (torch.stack(one) for one in zip(*past, strict=True))
        return self.network.speech_head(hidden[:, 0]).float(), new_keys, new_values


def _lm(models: Models) -> Part:
    config = models.lm.config
    assert isinstance(config, LMConfig)

    def draw(rows: int, past: int) -> tuple[Tensor, ...]:
        keys, values = torch.randn(2, config.num_layers, rows, config.num_kv_heads, past, config.head_dim)
        return torch.randint(config.vocabulary.num_speech_tokens, (rows,)), keys, values

    dynamic = {"ids": {0: ROWS}, "keys": {1: ROWS, 3: LENGTH}, "values": {1: ROWS, 3: LENGTH}}
    outputs = ("logits", "new_keys", "new_values")
    return Part("lm", LM, DecodeStep(models.lm), dynamic, outputs, draw, models.dtype, models.device)


def _chunked(length: int) -> Tensor:
    return ((torch.arange(length) // CHUNK + 1) * CHUNK).clamp(max=length)


PARTS: Mapping[str, Callable[[Models], Part]] = {
    part.__name__[1:]: part for part in (_estimator, _encoder, _vocoder, _lm)
}


def part_of(models: Models, name: str) -> Part:
    """InvalidRequest: this generation lacks the part."""
    if models.config.generation is Generation.V1:
        raise InvalidRequest("model: CosyVoice 1's networks are not exported; use CosyVoice2 or 3")
    return PARTS[name](models)
