"""Sizes, special ids and constants of a checkpoint, as frozen dataclasses.

`read_config` in `settings.py` reads the numbers from the checkpoint's files; this module has no default sizes. A
field's `FileKey` is its place in the official file. The files may lack these numbers: `FlowConfig.num_steps`, a
constant of the official code that a model card can replace, and `mix_text` and `mix_speech`, if the yaml has no
`mix_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, NamedTuple

from vivavoce.errors import UnsupportedModel
from vivavoce.rates import Rates

MAX_SIZE = 1 << 20
MAX_ADAPTER_RANK = 256
MAX_BLOCKS = 256


class Generation(str, Enum):
    V1 = "v1"
    V2 = "v2"
    V3 = "v3"


class FileKey(NamedTuple):
    """The path of a field's value in a settings file, with dots between groups, and the limits of an int field."""

    path: str
    minimum: int = 1
    maximum: int = MAX_SIZE


@dataclass(frozen=True)
class SilentTokens:
    """The ids of a model's silent speech tokens, and how many of them in a row are spoken; the others are dropped.

    longest: the limit in speech, which is 0.2 s in the official code; first: the limit before a request's first sound.
    """

    ids: tuple[int, ...] = ()
    longest: int = 5
    first: int = 5

    @property
    def run_at_start(self) -> int:
        """The `run` for `spoken` at the start of a sequence."""
        return self.longest - self.first

    def spoken(self, ids: Sequence[int], run: int) -> tuple[list[int], int]:
        """Return the indices of the ids that are spoken, and the new `run`.

        run: number of silent tokens in a row before `ids`, dropped ones included.
        """
        places = []
        for place, one in enumerate(ids):
            run = run + 1 if one in self.ids else 0
            if run <= self.longest:
                places.append(place)
        return places, run


@dataclass(frozen=True)
class Vocabulary:
    """The special ids of the speech language model.

    Ids below `num_speech_tokens` are speech tokens; later ids control decoding. `sos` and `task` are rows of the
    control embedding, which is a separate table, or in CosyVoice3 the table of all ids. The logit of
    `masked_before_minimum` is masked until the minimum length is reached.
    """

    num_speech_tokens: int
    num_logits: int
    sos: int
    task: int
    eos: int
    fill: int
    masked_before_minimum: int
    silent: SilentTokens = field(default=SilentTokens(), repr=False)  # the text is hashed to identify the network

    @property
    def has_own_controls(self) -> bool:
        return self.sos < self.num_speech_tokens

    @cached_property
    def stop_ids(self) -> range:
        return range(self.num_speech_tokens, self.num_logits)


@dataclass(frozen=True)
class SamplingDefaults:
    """Settings of repetition-aware sampling in the checkpoint's yaml (VALL-E 2, arXiv:2406.05370, section 4.2)."""

    top_p: Annotated[float, FileKey("top_p")]
    top_k: Annotated[int, FileKey("top_k")]
    win_size: Annotated[int, FileKey("win_size", minimum=0)]
    tau_r: Annotated[float, FileKey("tau_r")]


@dataclass(frozen=True)
class Qwen2Config:
    hidden_size: Annotated[int, FileKey("hidden_size")]
    intermediate_size: Annotated[int, FileKey("intermediate_size")]
    num_layers: Annotated[int, FileKey("num_hidden_layers", maximum=MAX_BLOCKS)]
    num_heads: Annotated[int, FileKey("num_attention_heads")]
    num_kv_heads: Annotated[int, FileKey("num_key_value_heads")]
    rms_norm_eps: Annotated[float, FileKey("rms_norm_eps")]
    rope_theta: Annotated[float, FileKey("rope_theta")]
    max_positions: Annotated[int, FileKey("max_position_embeddings")]

    @cached_property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class LMConfig(Qwen2Config):
    """Qwen2 with CosyVoice2's speech embedding and head. With streamed text, blocks of `mix_text` text tokens and
    `mix_speech` speech tokens alternate."""

    text_vocab_size: Annotated[int, FileKey("vocab_size")]
    mix_text: int
    mix_speech: int
    vocabulary: Vocabulary
    sampling: SamplingDefaults


@dataclass(frozen=True)
class ConformerConfig:
    input_size: Annotated[int, FileKey("input_size")]
    hidden_size: Annotated[int, FileKey("output_size")]
    num_heads: Annotated[int, FileKey("attention_heads")]
    feed_forward_size: Annotated[int, FileKey("linear_units")]
    num_blocks: Annotated[int, FileKey("num_blocks", maximum=MAX_BLOCKS)]


@dataclass(frozen=True)
class ConformerLMConfig:
    """CosyVoice 1's language model; max_positions: maximum length of a sequence, which is a limit of this program."""

    text_vocab_size: Annotated[int, FileKey("text_token_size")]
    speaker_size: Annotated[int, FileKey("spk_embed_dim")]
    text_encoder: ConformerConfig
    backbone: ConformerConfig
    vocabulary: Vocabulary
    sampling: SamplingDefaults
    max_positions: int

    @property
    def hidden_size(self) -> int:
        return self.backbone.hidden_size

    @property
    def num_layers(self) -> int:
        return self.backbone.num_blocks

    @property
    def num_heads(self) -> int:
        return self.backbone.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.backbone.num_heads

    @property
    def head_dim(self) -> int:
        return self.backbone.hidden_size // self.backbone.num_heads


@dataclass(frozen=True)
class TokenEncoderConfig:
    """CosyVoice2's token encoder. lookahead: number of later speech tokens that a token's output needs. chunk: speech
    tokens per chunk of attention. upsampling: mel frames per token."""

    input_size: Annotated[int, FileKey("encoder.input_size")]
    hidden_size: Annotated[int, FileKey("encoder.output_size")]
    num_heads: Annotated[int, FileKey("encoder.attention_heads")]
    feed_forward_size: Annotated[int, FileKey("encoder.linear_units")]
    num_blocks: Annotated[int, FileKey("encoder.num_blocks", maximum=MAX_BLOCKS)]
    num_up_blocks: int
    lookahead: Annotated[int, FileKey("pre_lookahead_len")]
    chunk: Annotated[int, FileKey("encoder.static_chunk_size")]
    upsampling: Annotated[int, FileKey("token_mel_ratio")]


@dataclass(frozen=True)
class LookaheadConfig:
    """CosyVoice3's lookahead layer, in place of `TokenEncoderConfig`; channels: channels between its convolutions."""

    input_size: Annotated[int, FileKey("pre_lookahead_layer.in_channels")]
    channels: Annotated[int, FileKey("pre_lookahead_layer.channels")]
    lookahead: Annotated[int, FileKey("pre_lookahead_len")]
    upsampling: Annotated[int, FileKey("token_mel_ratio")]
    chunk: int


@dataclass(frozen=True)
class HourglassConfig:
    """CosyVoice 1's U-Net; its inner level has half the mel rate, and its attention covers the whole sequence."""

    in_channels: Annotated[int, FileKey("in_channels")]
    out_channels: Annotated[int, FileKey("out_channels")]
    channels: int
    num_blocks: Annotated[int, FileKey("n_blocks", maximum=MAX_BLOCKS)]
    num_mid_blocks: Annotated[int, FileKey("num_mid_blocks", minimum=0, maximum=MAX_BLOCKS)]
    num_heads: Annotated[int, FileKey("num_heads")]
    head_dim: Annotated[int, FileKey("attention_head_dim")]


@dataclass(frozen=True)
class UNetConfig(HourglassConfig):
    """CosyVoice2's causal U-Net, which estimates the flow's velocity; chunk: mel frames per chunk of attention."""

    chunk: Annotated[int, FileKey("static_chunk_size")]


@dataclass(frozen=True)
class DiTConfig:
    size: Annotated[int, FileKey("dim")]
    num_blocks: Annotated[int, FileKey("depth", maximum=MAX_BLOCKS)]
    num_heads: Annotated[int, FileKey("heads")]
    head_dim: Annotated[int, FileKey("dim_head")]
    expansion: Annotated[int, FileKey("ff_mult")]
    out_channels: Annotated[int, FileKey("out_channels")]
    chunk: Annotated[int, FileKey("static_chunk_size")]

    @property
    def in_channels(self) -> int:
        return 4 * self.out_channels


@dataclass(frozen=True)
class FlowConfig:
    """The flow: speech tokens → mel by conditional flow matching (arXiv:2210.02747) with classifier-free guidance."""

    num_tokens: Annotated[int, FileKey("vocab_size")]
    num_mel_bins: Annotated[int, FileKey("output_size")]
    speaker_size: Annotated[int, FileKey("spk_embed_dim")]
    guidance: Annotated[float, FileKey("decoder.cfm_params.content.inference_cfg_rate")]
    num_steps: int
    encoder: TokenEncoderConfig | LookaheadConfig
    estimator: UNetConfig | DiTConfig


@dataclass(frozen=True)
class WholeFlowConfig(FlowConfig):
    """CosyVoice 1's flow. overlap: number of speech tokens at a chunk's end that the next chunk contains again."""

    encoder: ConformerConfig  # type: ignore[assignment]  # CosyVoice 1 has no other settings
    estimator: HourglassConfig  # type: ignore[assignment]
    overlap: int


@dataclass(frozen=True)
class VocoderConfig:
    """HiFT: harmonic source, transposed convolutions and an inverse STFT (HiFTNet, arXiv:2309.09493)."""

    sample_rate: Annotated[int, FileKey("sampling_rate")]
    num_mel_bins: Annotated[int, FileKey("in_channels")]
    base_channels: Annotated[int, FileKey("base_channels")]
    num_harmonics: Annotated[int, FileKey("nb_harmonics", minimum=0)]
    sine_amplitude: Annotated[float, FileKey("nsf_alpha")]
    noise_std: Annotated[float, FileKey("nsf_sigma")]
    voiced_threshold_hz: Annotated[float, FileKey("nsf_voiced_threshold")]
    upsample_rates: Annotated[tuple[int, ...], FileKey("upsample_rates")]
    upsample_kernels: Annotated[tuple[int, ...], FileKey("upsample_kernel_sizes")]
    n_fft: Annotated[int, FileKey("istft_params.n_fft")]
    hop: Annotated[int, FileKey("istft_params.hop_len")]
    resblock_kernels: Annotated[tuple[int, ...], FileKey("resblock_kernel_sizes")]
    resblock_dilations: Annotated[tuple[tuple[int, ...], ...], FileKey("resblock_dilation_sizes")]
    source_resblock_kernels: Annotated[tuple[int, ...], FileKey("source_resblock_kernel_sizes")]
    source_resblock_dilations: Annotated[tuple[tuple[int, ...], ...], FileKey("source_resblock_dilation_sizes")]
    leaky_slope: Annotated[float, FileKey("lrelu_slope")]
    audio_limit: Annotated[float, FileKey("audio_limit")]
    f0_channels: Annotated[int, FileKey("f0_predictor.cond_channels")]
    f0_mel_bins: Annotated[int, FileKey("f0_predictor.in_channels")]

    @cached_property
    def samples_per_frame(self) -> int:
        return self.hop * math.prod(self.upsample_rates)


@dataclass(frozen=True)
class CausalVocoderConfig(VocoderConfig):
    """CosyVoice3's causal HiFT. lookahead: number of later mel frames that its first convolution reads."""

    lookahead: Annotated[int, FileKey("conv_pre_look_right")]


def qwen2_of(lm: LMConfig | ConformerLMConfig) -> LMConfig:
    """Return `lm` if it is based on Qwen2; raise UnsupportedModel for CosyVoice 1's language model."""
    if isinstance(lm, ConformerLMConfig):
        raise UnsupportedModel("model: the language model of CosyVoice 1 is not Qwen2; take a CosyVoice 2 or 3 folder")
    return lm


@dataclass(frozen=True)
class MelConfig:
    sample_rate: Annotated[int, FileKey("sampling_rate")]
    n_fft: Annotated[int, FileKey("n_fft")]
    win_size: Annotated[int, FileKey("win_size")]
    hop: Annotated[int, FileKey("hop_size")]
    num_bins: Annotated[int, FileKey("num_mels")]
    fmin_hz: Annotated[float, FileKey("fmin")]
    fmax_hz: float


@dataclass(frozen=True)
class ModelConfig:
    generation: Generation
    rates: Rates
    lm: LMConfig | ConformerLMConfig
    flow: FlowConfig
    vocoder: VocoderConfig
    mel: MelConfig
