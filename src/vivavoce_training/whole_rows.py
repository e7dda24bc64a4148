"""The flow's networks over padded batches of whole rows, as in training; inference computes rows chunk by chunk."""

from __future__ import annotations

import torch
from torch import Tensor

from vivavoce.models.flow.dit import LookaheadEncoder
from vivavoce.models.flow.model import Flow
from vivavoce.models.flow.unet import TokenEncoder, VelocityContext, VelocityEstimator
from vivavoce.models.layers import valid_positions


def visible_keys(lengths: Tensor, size: int, chunk: int | None) -> Tensor:
    """Return where queries may attend to keys. With `chunk`, query i attends to its own chunk and earlier chunks: keys
    j < (i // chunk + 1) · chunk. lengths: [batch] int → [batch, 1, size or 1 queries, size keys] bool."""
    keys = valid_positions(lengths, size)[:, None, None, :]
    if chunk is None:
        return keys
    position = torch.arange(size, device=lengths.device)
    chunk_end = (position // chunk + 1) * chunk
    # Let padding queries attend to their row's keys, too, because attention without any key gives NaN.
    return keys & (position[None, :] < chunk_end[:, None])


def encode(flow: Flow, tokens: Tensor, lengths: Tensor, final: Tensor, chunked: bool) -> tuple[Tensor, Tensor]:
    """Look up tokens [batch, tokens] int64, and run `encode_embedded` on them."""
    return encode_embedded(flow.encoder, flow.token_embedding(tokens.clamp(min=0)), lengths, final, chunked)


def encode_embedded(
    encoder: TokenEncoder | LookaheadEncoder, x: Tensor, lengths: Tensor, final: Tensor, chunked: bool
) -> tuple[Tensor, Tensor]:
    """Encode a padded batch of whole rows → mu [batch, frames, mel bins] and the frames of each row, [batch].

    x: [batch, tokens, input], embedded tokens including lookahead. lengths: [batch] int64, tokens of each row. final:
    [batch] bool; if False, the row's last `lookahead` tokens get no frames. chunked: attend chunk by chunk, as in
    streaming, instead of to the whole row.
    """
    config, size = encoder.config, x.shape[1]
    kept = torch.where(final, lengths, lengths - config.lookahead)
    frames = kept * config.upsampling
    chunk = config.chunk if chunked else None
    token_mask = visible_keys(kept, size, chunk)
    frame_mask = visible_keys(frames, size * config.upsampling, chunk and chunk * config.upsampling)
    return encoder.encode(x, lengths, size, (token_mask, frame_mask)), frames


def velocity(
    estimator: VelocityEstimator,
    x: Tensor,
    mu: Tensor,
    speaker: Tensor,
    condition: Tensor,
    t: Tensor,
    lengths: Tensor,
    chunked: bool,
) -> Tensor:
    """Estimate the velocity [batch, frames, bins]. x, mu, condition: [batch, frames, bins]: the solution so far, the
    encoded tokens, and the prompt's mel followed by zeros. speaker: [batch, bins], projected. t: [batch] float32.
    lengths: [batch] int64; frames do not attend beyond them. chunked: attend chunk by chunk, as in streaming.
    """
    mask = visible_keys(lengths, x.shape[1], estimator.config.chunk if chunked else None)
    features = torch.cat((x, mu, speaker[:, None].expand_as(mu), condition), dim=-1)
    return estimator.velocity(features, VelocityContext(estimator.time_biases(t), mask))
