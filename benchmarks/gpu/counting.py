"""Operations and bytes that a stage cannot do without, counted from a model's sizes."""

from __future__ import annotations

from vivavoce.checkpoint.config import LMConfig
from vivavoce.models.flow.unet import UNet
from vivavoce.models.vocoder.hift import HiFT


def estimator_flops(estimator: UNet, rows: int, frames: int, past: int = 0) -> float:
    """Operations of the products of one call of the flow's estimator, every new frame seeing all the row's frames.

    rows: guidance's doubling included; frames: new ones of each row; past: those before them, read as state.
    """
    # The time embedding is the same for all requests, and made once.
    weights = sum(
        parameter.numel()
        for name, parameter in estimator.named_parameters()
        if parameter.dim() > 1 and "time" not in name
    )
    config, levels = estimator.config, 2 + estimator.config.num_mid_blocks
    attention = levels * config.num_blocks * 2 * config.num_heads * config.head_dim
    return 2.0 * rows * frames * (weights + attention * (past + frames))


def decode_bytes(config: LMConfig, slots: int, positions: int, width: int) -> float:
    """Bytes that a decode step reads at least: weights once, keys and values of every slot.

    positions: that each slot looks back on; width: bytes of a number.
    """
    size, inner = config.hidden_size, config.num_heads * config.head_dim
    keys = 2 * config.num_kv_heads * config.head_dim
    layer = size * (2 * inner + keys) + 3 * size * config.intermediate_size
    ids = config.vocabulary.num_speech_tokens + len(config.vocabulary.stop_ids)
    weights = config.num_layers * layer + ids * size
    return width * (weights + float(slots) * positions * config.num_layers * keys)


def vocoder_flops(vocoder: HiFT, seconds: float) -> float:
    """Operations of the convolutions for that much audio."""
    config = vocoder.config
    rate = config.sample_rate / config.samples_per_frame
    total = rate * (_weights(vocoder.f0) + vocoder.conv_pre.weight.numel())
    per_stage = len(config.resblock_kernels)
    for stage, factor in enumerate(config.upsample_rates):
        total += rate * vocoder.ups[stage].weight.numel()  # type: ignore[operator]
        rate *= factor
        blocks = (*vocoder.resblocks[stage * per_stage : (stage + 1) * per_stage], vocoder.source_resblocks[stage])
        total += rate * (sum(map(_weights, blocks)) + vocoder.source_downs[stage].weight.numel())  # type: ignore[operator]
    return 2.0 * seconds * (total + rate * vocoder.conv_post.weight.numel())


def _weights(module: object) -> int:
    parameters = module.named_parameters()  # type: ignore[attr-defined]
    return sum(parameter.numel() for _, parameter in parameters if parameter.dim() > 1)
