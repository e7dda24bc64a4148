"""Speech tokens → mel; each call computes everything again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, pad
from torch.nn.utils.rnn import pad_sequence

from vivavoce.engine.request import Conditioning
from vivavoce.models.build import Models
from vivavoce.models.flow.model import MAX_FRAMES, Flow, FlowSchedule, Path, fixed_noise
from vivavoce.models.flow.unet import HISTORY_KERNEL, UPSAMPLING_KERNEL, TokenEncoder
from vivavoce.models.layers import keys_before
from vivavoce_training.whole_rows import encode, visible_keys
from vivavoce_v1.flow import FlowV1, WholeInput

_LOOKAHEAD_SLOPE = 0.01


@dataclass(frozen=True)
class FlowInput:
    """tokens: [n] int64, of the prompt and then of the target (with lookahead if not `final`); prompt_mel: [prompt
    frames, bins], may be empty; embedding: [speaker size]; final: no more tokens will follow.
    """

    tokens: Tensor
    prompt_mel: Tensor
    embedding: Tensor
    final: bool = True


def whole_mels(flow: Flow, items: Sequence[FlowInput], chunked: bool) -> list[Tensor]:
    """Mel of each item after its prompt's frames, [frames, bins] float32; the prompt's mel is the start of its
    condition.
    """

    def frames_of(item: FlowInput) -> int:
        return (len(item.tokens) - (0 if item.final else config.encoder.lookahead)) * config.encoder.upsampling

    config, estimator, device = flow.config, flow.estimator, flow.speaker_projection.weight.device
    tokens = pad_sequence([item.tokens.to(device) for item in items], batch_first=True)
    lengths = torch.tensor([len(item.tokens) for item in items], device=device)
    final = torch.tensor([item.final for item in items], device=device)
    size = max(map(frames_of, items))
    if size > MAX_FRAMES:
        raise ValueError(f"{size} mel frames in one sequence, the flow has noise for {MAX_FRAMES}")
    mu, frames = encode(flow, tokens, lengths, final, chunked)
    mu = mu[:, :size]
    condition = torch.zeros(len(items), size, config.num_mel_bins, device=device)
    for row, item in enumerate(items):
        if len(item.prompt_mel):
            condition[row, : len(item.prompt_mel)] = item.prompt_mel
    noise = fixed_noise(config.num_mel_bins)[:size].to(device).expand(len(items), -1, -1)
    speaker = flow.speaker(torch.stack([item.embedding.to(device) for item in items]))
    mask = visible_keys(frames, size, config.estimator.chunk if chunked else None)
    schedule = FlowSchedule.euler(estimator, config.num_steps)
    path = Path(estimator, schedule, config.guidance, noise, mu, speaker, condition, mask)
    for number in range(config.num_steps):
        path.step(number)
    return [path.x[row, len(item.prompt_mel) : frames_of(item)] for row, item in enumerate(items)]


def whole_mels_v1(flow: FlowV1, items: Sequence[WholeInput]) -> list[Tensor]:
    """`whole_mels` for CosyVoice 1's flow."""
    noise = fixed_noise(flow.config.num_mel_bins).to(flow.speaker_projection.weight.device)
    path, _ = flow.begin(items, FlowSchedule.euler(flow.estimator, flow.config.num_steps), noise)
    for number in range(flow.config.num_steps):
        path.step(number)
    return [mel[len(one.prompt_mel) : flow.frames_of(one)] for one, mel in zip(items, path.x, strict=True)]


def official_mel(models: Models, conditioning: Conditioning, tokens: Sequence[int], final: bool) -> Tensor:
    """All mel after the prompt, as the official code makes it: attention by chunks or, if final, to the whole row.

    tokens: of the sequence, with the lookahead if not final  →  [frames, bins] float32
    """
    item = FlowInput(_row(conditioning, tokens), conditioning.flow_mel, conditioning.embedding, final)
    return whole_mels(models.flow, [item], chunked=not final)[0]


@dataclass(frozen=True)
class Unit:
    """Tokens of a row that a stream computes at once, up to `end`; at that time, tokens up to `known` exist."""

    end: int
    known: int


def stream_units(prompt: int, hops: Sequence[int], tokens: int, lookahead: int, model_lookahead: int) -> list[Unit]:
    """The unit of the prompt, which needs no other tokens, and the unit of each hop.

    prompt: number of its tokens; tokens: number of the sequence's tokens so far; lookahead: tokens that each hop waits
    for; model_lookahead: tokens of lookahead that the model can use.
    """
    units = [Unit(prompt - model_lookahead, prompt)] if prompt > model_lookahead else []
    end = prompt
    for hop in hops:
        end += hop
        units.append(Unit(end, min(end + lookahead, prompt + tokens)))
    return units


def stream_mel(models: Models, conditioning: Conditioning, tokens: Sequence[int], units: Sequence[Unit]) -> Tensor:
    """All mel after the prompt up to the last unit's end, as in a stream, which cannot change earlier frames.

    Each unit is cut into nearly equal blocks of at most a chunk of attention. A frame attends to everything before the
    end of its block. The lookahead of a unit's last tokens has only the tokens that existed then.

    tokens: of the sequence  →  [frames, bins] float32
    """
    flow = models.flow
    encoder, device = flow.encoder, flow.speaker_projection.weight.device
    row = _row(conditioning, tokens).to(device)
    embedded = flow.token_embedding(row.clamp(min=0))[None]
    heard = encoder.embed(embedded) if isinstance(encoder, TokenEncoder) else embedded
    ends = torch.tensor(_block_ends(units, flow.config.encoder.chunk), device=device)
    size, up = len(ends), flow.config.encoder.upsampling
    frame_ends = (ends * up).repeat_interleave(up)
    frame_mask = keys_before(frame_ends[None], size * up)
    mu = encoder.encode(
        embedded,
        torch.tensor([len(row)], device=device),
        size,
        (keys_before(ends[None], size), frame_mask),
        memory=(_CutShort(flow, heard, units), _Nothing()),
    )
    return _solve(flow, conditioning, mu, frame_mask)


def _solve(flow: Flow, conditioning: Conditioning, mu: Tensor, mask: Tensor) -> Tensor:
    config, frames = flow.config, mu.shape[1]
    prompt_mel = conditioning.flow_mel.to(mu.device)
    condition = torch.zeros(1, frames, config.num_mel_bins, device=mu.device)
    condition[0, : len(prompt_mel)] = prompt_mel[:frames] if len(prompt_mel) else 0.0
    path = Path(
        flow.estimator,
        FlowSchedule.euler(flow.estimator, config.num_steps),
        config.guidance,
        fixed_noise(config.num_mel_bins)[None, :frames].to(mu.device),
        mu,
        flow.speaker(conditioning.embedding.to(mu.device)[None]),
        condition,
        mask,
    )
    for number in range(config.num_steps):
        path.step(number)
    return path.x[0, len(prompt_mel) :]


class _Nothing:
    """A `Memory` of a row that is computed from its start: zeros before convolutions, no earlier keys."""

    tail = UPSAMPLING_KERNEL - 1

    def extend(self, first: int, x: Tensor) -> Tensor:
        """x with zeros before its start."""
        return pad(x, (0, 0, self.tail, 0))

    def recall(self, site: int, keys: Tensor) -> Tensor:
        """The keys as they are, since earlier keys do not exist."""
        return keys


class _CutShort(_Nothing):
    """Like `_Nothing`, but the lookahead convolution gets only the tokens that exist when a unit is computed."""

    tail = HISTORY_KERNEL - 1

    def __init__(self, flow: Flow, embedded: Tensor, units: Sequence[Unit]) -> None:
        """`embedded`: [1, tokens, size]."""
        starts = [0, *(unit.end for unit in units)]
        parts = [_look_ahead(flow, embedded, start, unit) for start, unit in zip(starts, units, strict=False)]
        self._seen = torch.cat(parts, dim=1)

    def extend(self, first: int, x: Tensor) -> Tensor:
        """The stored output with zeros before it; x, the lookahead convolution's output, is replaced."""
        assert x.shape == self._seen.shape
        return super().extend(first, self._seen)


def _look_ahead(flow: Flow, embedded: Tensor, start: int, unit: Unit) -> Tensor:
    """Output of the lookahead's convolution for the tokens from `start` to the unit's end."""
    reach = flow.config.encoder.lookahead
    known = embedded[:, start : min(unit.known, unit.end + reach)]
    missing = unit.end + reach - start - known.shape[1]
    y = flow.encoder.lookahead_conv(pad(known, (0, 0, 0, missing)).transpose(1, 2)).transpose(1, 2)
    return leaky_relu(y, _LOOKAHEAD_SLOPE)


def _block_ends(units: Sequence[Unit], most: int) -> list[int]:
    """The end of the block of each token in the row."""
    ends: list[int] = []
    for unit in units:
        start = len(ends)
        size = unit.end - start
        count = -(-size // most)
        for place in range(count):
            end = start + size * (place + 1) // count
            ends += [end] * (end - len(ends))
    return ends


def _row(conditioning: Conditioning, tokens: Sequence[int]) -> Tensor:
    return torch.cat((conditioning.flow_tokens, torch.tensor(list(tokens), dtype=torch.int64)))
