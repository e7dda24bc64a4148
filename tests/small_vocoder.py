"""A vocoder of few and small layers for what runs in Triton's interpreter, whose time is the number of operations."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from vivavoce.checkpoint.config import CausalVocoderConfig, VocoderConfig
from vivavoce.models.build import Models
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT


def causal_of(config: VocoderConfig) -> CausalHiFT:
    """CosyVoice3's vocoder of the same sizes."""
    sizes = {field.name: getattr(config, field.name) for field in fields(config)}
    return CausalHiFT(CausalVocoderConfig(**(sizes | {"lookahead": 4})))


def with_small_vocoder(models: Models, *, causal: bool = False) -> Models:
    """The models with a vocoder of 48 samples per frame; its voice is loud, its pitch both above and below voicing.

    causal: CosyVoice3's in the place of CosyVoice2's.
    """
    config = replace(
        models.config.vocoder,
        base_channels=32,
        upsample_rates=(4, 3),
        upsample_kernels=(8, 7),
        resblock_kernels=(3, 5),
        resblock_dilations=((1, 3), (2,)),
        source_resblock_kernels=(3, 5),
        source_resblock_dilations=((1,), (2,)),
        f0_channels=16,
    )
    generator = torch.Generator().manual_seed(4)
    vocoder: HiFT | CausalHiFT = HiFT(config)
    if causal:
        vocoder = causal_of(config)
    vocoder.eval().requires_grad_(False)
    for name, weight in vocoder.named_parameters():
        if name.endswith("alpha"):
            weight.copy_(0.5 + torch.rand(weight.shape, generator=generator))
        elif weight.dim() > 1:
            scale = weight[0].numel() ** -0.5
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
        else:
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    vocoder.f0.out.weight.mul_(60)
    vocoder.f0.out.bias.fill_(60)
    return replace(models, vocoder=vocoder)
