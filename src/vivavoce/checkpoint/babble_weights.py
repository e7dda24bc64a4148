"""Random weights of a CosyVoice2 of any size under the official parameter names.

Every parameter is a row (name, shape, mean, standard deviation). Matrices get 1/sqrt(inputs), so that signals keep
their size from layer to layer and the vocoder's output is noise of a speaker's loudness, neither silent nor clipped.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

NUM_SPEECH_TOKENS = 6561
NUM_MEL_BINS = 80
SPEAKER_SIZE = 192
NUM_HARMONICS = 8
N_FFT = 16
UPSAMPLE_RATES, UPSAMPLE_KERNELS = (8, 5, 3), (16, 11, 7)
RESBLOCK_KERNELS, SOURCE_RESBLOCK_KERNELS = (3, 7, 11), (7, 7, 11)
DILATIONS = (1, 3, 5)


@dataclass(frozen=True)
class Sizes:
    """Of the networks: `lm_…` the language model, `encoder_…` and `unet_…` the flow, the rest the vocoder."""

    text_vocabulary: int
    lm_width: int
    lm_inner: int
    lm_layers: int
    lm_heads: int
    lm_kv_heads: int
    encoder_width: int
    encoder_inner: int
    encoder_heads: int
    encoder_blocks: int
    encoder_up_blocks: int
    unet_width: int
    unet_heads: int
    unet_head_dim: int
    unet_blocks: int
    unet_mid_blocks: int
    vocoder_width: int
    f0_width: int


TINY = Sizes(
    text_vocabulary=288,  # 256 bytes, the special tokens of Qwen2 and CosyVoice2, rounded up
    lm_width=64,
    lm_inner=128,
    lm_layers=3,
    lm_heads=4,
    lm_kv_heads=2,
    encoder_width=64,
    encoder_inner=128,
    encoder_heads=4,
    encoder_blocks=2,
    encoder_up_blocks=4,
    unet_width=64,
    unet_heads=2,
    unet_head_dim=32,
    unet_blocks=2,
    unet_mid_blocks=3,
    vocoder_width=64,
    f0_width=32,
)
RELEASE = Sizes(
    text_vocabulary=151_936,
    lm_width=896,
    lm_inner=4_864,
    lm_layers=24,
    lm_heads=14,
    lm_kv_heads=2,
    encoder_width=512,
    encoder_inner=2_048,
    encoder_heads=8,
    encoder_blocks=6,
    encoder_up_blocks=4,
    unet_width=256,
    unet_heads=8,
    unet_head_dim=64,
    unet_blocks=4,
    unet_mid_blocks=12,
    vocoder_width=512,
    f0_width=512,
)
"""As CosyVoice2-0.5B was published."""

_NUM_CONTROL = 3
_END_LOGIT = 7.0
"""Close below the best of 6561 random logits: past the minimum length an utterance ends after some ten tokens."""
_NEVER_LOGIT = -100.0
_BIAS_STD = 0.05
_NORM_STD = 0.1


class Row(NamedTuple):
    """One parameter and the normal distribution that fills it."""

    key: str
    shape: tuple[int, ...]
    mean: float
    std: float


def babble_state(part: str, seed: int, sizes: Sizes = TINY) -> dict[str, Tensor]:
    """The state dict of "llm", "flow" or "hift": float32 tensors by official name.

    A tensor depends on seed, part and name alone, not on the order or number of the others.
    """
    rows = {"llm": _language_model, "flow": _flow, "hift": _vocoder}[part](sizes)
    state = {row.key: _draw(row, part, seed) for row in rows}
    if part == "llm":
        # The official file repeats the text embedding as an (unused) text head.
        state["llm.model.lm_head.weight"] = state["llm.model.model.embed_tokens.weight"]
        state["llm_decoder.weight"][NUM_SPEECH_TOKENS:] = 0
        state["llm_decoder.bias"][NUM_SPEECH_TOKENS:] = _NEVER_LOGIT
        state["llm_decoder.bias"][NUM_SPEECH_TOKENS] = _END_LOGIT
    return state


def draw(shape: tuple[int, ...], seed: int, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Standard normal float32 values that depend on `seed` and `name` only."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return generator.standard_normal(shape, dtype=np.float32)


def _draw(row: Row, part: str, seed: int) -> Tensor:
    values = draw(row.shape, seed, f"{part}/{row.key}")
    return torch.from_numpy(values * np.float32(row.std) + np.float32(row.mean))


def _language_model(sizes: Sizes) -> Iterator[Row]:
    width, num_outputs = sizes.lm_width, NUM_SPEECH_TOKENS + _NUM_CONTROL
    kv_width = width // sizes.lm_heads * sizes.lm_kv_heads
    yield _embedding("llm_embedding", 2, width)
    yield _embedding("llm.model.model.embed_tokens", sizes.text_vocabulary, width)
    for layer in range(sizes.lm_layers):
        key = f"llm.model.model.layers.{layer}"
        for name, outputs in (("q", width), ("k", kv_width), ("v", kv_width)):
            yield from _dense(f"{key}.self_attn.{name}_proj", outputs, width)
        yield from _dense(f"{key}.self_attn.o_proj", width, width, bias=False)
        for name in ("gate", "up"):
            yield from _dense(f"{key}.mlp.{name}_proj", sizes.lm_inner, width, bias=False)
        yield from _dense(f"{key}.mlp.down_proj", width, sizes.lm_inner, bias=False)
        for name in ("input", "post_attention"):
            yield Row(f"{key}.{name}_layernorm.weight", (width,), 1.0, _NORM_STD)
    yield Row("llm.model.model.norm.weight", (width,), 1.0, _NORM_STD)
    yield from _dense("llm_decoder", num_outputs, width, gain=2.0)
    yield _embedding("speech_embedding", num_outputs, width)


def _flow(sizes: Sizes) -> Iterator[Row]:
    width = sizes.encoder_width
    yield _embedding("input_embedding", NUM_SPEECH_TOKENS, width)
    yield from _dense("spk_embed_affine_layer", NUM_MEL_BINS, SPEAKER_SIZE)
    for name in ("embed", "up_embed"):
        yield from _dense(f"encoder.{name}.out.0", width, width)
        yield from _norm(f"encoder.{name}.out.1", width)
    yield from _norm("encoder.after_norm", width)
    yield from _dense("encoder.pre_lookahead_layer.conv1", width, width, 4)
    yield from _dense("encoder.pre_lookahead_layer.conv2", width, width, 3)
    yield from _dense("encoder.up_layer.conv", width, width, 5)
    for block in range(sizes.encoder_blocks):
        yield from _conformer_block(f"encoder.encoders.{block}", sizes)
    for block in range(sizes.encoder_up_blocks):
        yield from _conformer_block(f"encoder.up_encoders.{block}", sizes)
    yield from _dense("encoder_proj", NUM_MEL_BINS, width)
    yield from _unet(sizes)


def _conformer_block(key: str, sizes: Sizes) -> Iterator[Row]:
    width, heads, inner = sizes.encoder_width, sizes.encoder_heads, sizes.encoder_inner
    for name in ("pos_bias_u", "pos_bias_v"):
        yield Row(f"{key}.self_attn.{name}", (heads, width // heads), 0.0, 0.3)
    for name in ("q", "k", "v", "out"):
        yield from _dense(f"{key}.self_attn.linear_{name}", width, width)
    yield from _dense(f"{key}.self_attn.linear_pos", width, width, bias=False)
    yield from _dense(f"{key}.feed_forward.w_1", inner, width)
    yield from _dense(f"{key}.feed_forward.w_2", width, inner)
    yield from _norm(f"{key}.norm_ff", width)
    yield from _norm(f"{key}.norm_mha", width)


def _unet(sizes: Sizes) -> Iterator[Row]:
    estimator, channels, inputs = "decoder.estimator", sizes.unet_width, 4 * NUM_MEL_BINS
    inner, time = sizes.unet_heads * sizes.unet_head_dim, 4 * channels
    yield from _dense(f"{estimator}.time_mlp.linear_1", time, inputs)
    yield from _dense(f"{estimator}.time_mlp.linear_2", time, time)
    levels = [("down_blocks.0", inputs), ("up_blocks.0", 2 * channels)]
    levels += [(f"mid_blocks.{block}", channels) for block in range(sizes.unet_mid_blocks)]
    for level, level_inputs in levels:
        yield from _resnet(f"{estimator}.{level}.0", channels, level_inputs, time)
        for block in range(sizes.unet_blocks):
            yield from _transformer_block(f"{estimator}.{level}.1.{block}", channels, inner)
        if not level.startswith("mid"):
            yield from _dense(f"{estimator}.{level}.2", channels, channels, 3)
    yield from _dense(f"{estimator}.final_block.block.0", channels, channels, 3)
    yield from _norm(f"{estimator}.final_block.block.2", channels)
    yield from _dense(f"{estimator}.final_proj", NUM_MEL_BINS, channels, 1)


def _resnet(key: str, channels: int, inputs: int, time: int) -> Iterator[Row]:
    yield from _dense(f"{key}.mlp.1", channels, time)
    for name, block_inputs in (("block1", inputs), ("block2", channels)):
        yield from _dense(f"{key}.{name}.block.0", channels, block_inputs, 3)
        yield from _norm(f"{key}.{name}.block.2", channels)
    yield from _dense(f"{key}.res_conv", channels, inputs, 1)


def _transformer_block(key: str, channels: int, inner: int) -> Iterator[Row]:
    yield from _norm(f"{key}.norm1", channels)
    for name in ("to_q", "to_k", "to_v"):
        yield from _dense(f"{key}.attn1.{name}", inner, channels, bias=False)
    yield from _dense(f"{key}.attn1.to_out.0", channels, inner)
    yield from _norm(f"{key}.norm3", channels)
    yield from _dense(f"{key}.ff.net.0.proj", 4 * channels, channels)
    yield from _dense(f"{key}.ff.net.2", channels, 4 * channels)


def _vocoder(sizes: Sizes) -> Iterator[Row]:
    spectrum, width, f0_width = N_FFT + 2, sizes.vocoder_width, sizes.f0_width
    yield Row("m_source.l_linear.weight", (1, NUM_HARMONICS + 1), 0.0, 2.0)
    yield Row("m_source.l_linear.bias", (1,), 0.0, _BIAS_STD)
    yield from _normed_conv("conv_pre", (width, NUM_MEL_BINS, 7))
    for stage, (rate, kernel) in enumerate(zip(UPSAMPLE_RATES, UPSAMPLE_KERNELS, strict=True)):
        channels = width >> (stage + 1)
        # A transposed convolution: weight norm and shape count the input channels first.
        shape = (2 * channels, channels, kernel)
        yield from _normed_conv(f"ups.{stage}", shape, gain=math.sqrt(rate / 2), outputs=channels)
        stride = math.prod(UPSAMPLE_RATES[stage + 1 :])
        down_kernel = 1 if stride == 1 else 2 * stride
        yield from _dense(f"source_downs.{stage}", channels, spectrum, down_kernel, gain=2.0)
        source_kernel = SOURCE_RESBLOCK_KERNELS[stage]
        yield from _resblock(f"source_resblocks.{stage}", channels, source_kernel)
        for number, block_kernel in enumerate(RESBLOCK_KERNELS):
            block = stage * len(RESBLOCK_KERNELS) + number
            yield from _resblock(f"resblocks.{block}", channels, block_kernel)
    last = width >> len(UPSAMPLE_RATES)
    yield from _normed_conv("conv_post", (spectrum, last, 7), gain=0.25, bias=(-1.0, 0.3))
    for number in range(5):
        shape = (f0_width, f0_width if number else NUM_MEL_BINS, 3)
        yield from _normed_conv(f"f0_predictor.condnet.{2 * number}", shape, gain=1.5)
    # The pitch in hertz: a random contour of some hundred hertz.
    f0_std = 150 / math.sqrt(f0_width)
    yield Row("f0_predictor.classifier.weight", (1, f0_width), 0.0, f0_std)
    yield Row("f0_predictor.classifier.bias", (1,), 60.0, 1.0)


def _resblock(key: str, channels: int, kernel: int) -> Iterator[Row]:
    for number in range(len(DILATIONS)):
        for half, gain in ((1, 1.0), (2, 0.5)):
            yield from _normed_conv(f"{key}.convs{half}.{number}", (channels, channels, kernel), gain=gain)
            yield Row(f"{key}.activations{half}.{number}.alpha", (channels,), 1.0, 0.15)


def _dense(key: str, *shape: int, gain: float = 1.0, bias: bool = True) -> Iterator[Row]:
    """A linear layer or a convolution: [outputs, inputs] or [outputs, inputs, kernel]."""
    yield Row(f"{key}.weight", shape, 0.0, gain / math.sqrt(math.prod(shape[1:])))
    if bias:
        yield Row(f"{key}.bias", shape[:1], 0.0, _BIAS_STD)


def _normed_conv(
    key: str,
    shape: tuple[int, int, int],
    gain: float = 1.0,
    bias: tuple[float, float] = (0.0, _BIAS_STD),
    outputs: int | None = None,
) -> Iterator[Row]:
    """A convolution kept as weight norm's two tensors: the norm of each first-axis row, and its direction."""
    yield Row(f"{key}.bias", (outputs or shape[0],), *bias)
    yield Row(f"{key}.parametrizations.weight.original0", (shape[0], 1, 1), gain, gain / 10)
    yield Row(f"{key}.parametrizations.weight.original1", shape, 0.0, 1.0)


def _norm(key: str, width: int) -> Iterable[Row]:
    return (
        Row(f"{key}.weight", (width,), 1.0, _NORM_STD),
        Row(f"{key}.bias", (width,), 0.0, _NORM_STD),
    )


def _embedding(key: str, rows: int, width: int) -> Row:
    return Row(f"{key}.weight", (rows, width), 0.0, 1.0)
