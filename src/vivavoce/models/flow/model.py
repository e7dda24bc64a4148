"""The flow of CosyVoice2: speech tokens, a prompt and a speaker → mel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from vivavoce.checkpoint.config import FlowConfig
from vivavoce.models.flow.matching import MAX_FRAMES, fixed_noise, solve
from vivavoce.models.flow.token_encoder import TokenEncoder
from vivavoce.models.flow.unet import UNet


@dataclass(frozen=True)
class FlowItem:
    """One row of a flow batch.

    tokens: [n] int64, the prompt's and then the target's (lookahead included if not `final`); prompt_mel:
    [prompt frames, bins], possibly of no frames; embedding: [speaker size]; final: no more tokens will follow.
    """

    tokens: Tensor
    prompt_mel: Tensor
    embedding: Tensor
    final: bool = True


class Flow(nn.Module):
    """Token encoder and velocity estimator, and the steps between them."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.num_tokens, config.encoder.input_size)
        self.speaker_projection = nn.Linear(config.speaker_size, config.num_mel_bins)
        self.encoder = TokenEncoder(config.encoder, config.num_mel_bins)
        self.estimator = UNet(config.estimator)

    def speaker(self, embedding: Tensor) -> Tensor:
        """embedding: [batch, speaker size]  →  [batch, bins]."""
        return self.speaker_projection(normalize(embedding, dim=1).to(self.speaker_projection.weight.dtype))

    def encode(self, tokens: Tensor, lengths: Tensor, final: Tensor, chunked: bool) -> tuple[Tensor, Tensor]:
        """tokens: [batch, n] int64; the rest as in `TokenEncoder.forward`  →  mu, frames of each row."""
        return self.encoder(self.token_embedding(tokens.clamp(min=0)), lengths, final, chunked)

    def lay_out(self) -> None:
        """Place the weights in memory as inference reads them; names, shapes, values and results stay."""
        self.encoder.lay_out()
        self.estimator.lay_out()

    def frames_of(self, item: FlowItem) -> int:
        """Mel frames that the item's tokens stand for, the prompt's included."""
        encoder = self.config.encoder
        return (len(item.tokens) - (0 if item.final else encoder.lookahead)) * encoder.upsampling

    def forward(self, items: Sequence[FlowItem], chunked: bool) -> list[Tensor]:
        """Mel of each item after its prompt's frames, [frames, bins] float32.

        The prompt's mel is given to the estimator as the first frames of its condition; the frames that the flow
        makes in their place are dropped.
        """
        device = self.speaker_projection.weight.device
        tokens = pad_sequence([item.tokens.to(device) for item in items], batch_first=True)
        lengths = torch.tensor([len(item.tokens) for item in items], device=device)
        final = torch.tensor([item.final for item in items], device=device)
        size = max(map(self.frames_of, items))
        if size > MAX_FRAMES:
            raise ValueError(f"{size} mel frames in one sequence, the flow has noise for {MAX_FRAMES}")
        mu, frames = self.encode(tokens, lengths, final, chunked)
        mu = mu[:, :size]
        condition = torch.zeros(len(items), size, self.config.num_mel_bins, device=device)
        for row, item in enumerate(items):
            if len(item.prompt_mel):
                condition[row, : len(item.prompt_mel)] = item.prompt_mel
        mel = solve(
            self.estimator,
            fixed_noise(self.config.num_mel_bins)[:size].to(device).expand(len(items), -1, -1),
            mu,
            self.speaker(torch.stack([item.embedding.to(device) for item in items])),
            condition,
            frames,
            chunked,
            self.config.num_steps,
            self.config.guidance,
        )
        return [mel[row, len(item.prompt_mel) : self.frames_of(item)] for row, item in enumerate(items)]
