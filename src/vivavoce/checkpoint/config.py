"""What a checkpoint is made of, as frozen values: sizes, special ids, constants of the computation.

Numbers come from the checkpoint's own files (`read_config` in `folder.py`); nothing here knows a default size. Two
are not in the files: `FlowConfig.num_steps`, which is the official inference's, and the mix of text and speech
(`mix_text`, `mix_speech`) where the yaml leaves `mix_ratio` out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vivavoce.rates import Rates


class Generation(str, Enum):
    """The generations of the CosyVoice family; a folder's yaml file says which one it holds."""

    V1 = "v1"
    V2 = "v2"
    V3 = "v3"


@dataclass(frozen=True)
class Vocabulary:
    """Special ids of the speech language model, by meaning.

    `num_speech_tokens` (V) ids are speech; ids from V on control the decode. `sos` and `task` index the control
    embedding. `masked_before_minimum` is the one logit forbidden until the minimum length is reached.
    """

    num_speech_tokens: int
    num_logits: int
    sos: int
    task: int
    eos: int
    fill: int
    masked_before_minimum: int

    @property
    def stop_ids(self) -> range:
        """The ids that end a plain decode: all that are not speech."""
        return range(self.num_speech_tokens, self.num_logits)


@dataclass(frozen=True)
class SamplingDefaults:
    """Repetition-aware sampling as the checkpoint's yaml sets it (VALL-E 2, arXiv:2406.05370, section 4.2)."""

    top_p: float
    top_k: int
    win_size: int
    tau_r: float


@dataclass(frozen=True)
class LMConfig:
    """The Qwen2 backbone with CosyVoice2's speech embedding and head."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    text_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    mix_text: int
    """Text tokens per block of text-in streaming."""
    mix_speech: int
    """Speech tokens per block of text-in streaming."""
    vocabulary: Vocabulary
    sampling: SamplingDefaults

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class TokenEncoderConfig:
    """The upsampling conformer: speech tokens → mu."""

    input_size: int
    hidden_size: int
    num_heads: int
    feed_forward_size: int
    num_blocks: int
    num_up_blocks: int
    lookahead: int
    """Speech tokens read to the right of the last one that is emitted."""
    chunk: int
    """Speech tokens per attention chunk when streaming."""
    upsampling: int
    """Mel frames per speech token."""


@dataclass(frozen=True)
class UNetConfig:
    """The causal U-Net that estimates the flow's velocity."""

    in_channels: int
    out_channels: int
    channels: int
    num_blocks: int
    num_mid_blocks: int
    num_heads: int
    head_dim: int
    chunk: int
    """Mel frames per attention chunk when streaming."""


@dataclass(frozen=True)
class FlowConfig:
    """Speech tokens → mel by conditional flow matching (arXiv:2210.02747) with classifier-free guidance."""

    num_tokens: int
    num_mel_bins: int
    speaker_size: int
    guidance: float
    num_steps: int
    encoder: TokenEncoderConfig
    estimator: UNetConfig


@dataclass(frozen=True)
class VocoderConfig:
    """HiFT: harmonic source, transposed convolutions and an inverse STFT (HiFTNet, arXiv:2309.09493)."""

    sample_rate: int
    num_mel_bins: int
    base_channels: int
    num_harmonics: int
    sine_amplitude: float
    noise_std: float
    voiced_threshold_hz: float
    upsample_rates: tuple[int, ...]
    upsample_kernels: tuple[int, ...]
    n_fft: int
    hop: int
    resblock_kernels: tuple[int, ...]
    resblock_dilations: tuple[tuple[int, ...], ...]
    source_resblock_kernels: tuple[int, ...]
    source_resblock_dilations: tuple[tuple[int, ...], ...]
    leaky_slope: float
    audio_limit: float
    f0_channels: int
    f0_mel_bins: int

    @property
    def samples_per_frame(self) -> int:
        """Waveform samples per mel frame."""
        samples = self.hop
        for rate in self.upsample_rates:
            samples *= rate
        return samples


@dataclass(frozen=True)
class MelConfig:
    """The prompt's mel spectrogram (Slaney filterbank, natural logarithm)."""

    sample_rate: int
    n_fft: int
    win_size: int
    hop: int
    num_bins: int
    fmin_hz: float
    fmax_hz: float


@dataclass(frozen=True)
class ModelConfig:
    """All of one checkpoint."""

    generation: Generation
    rates: Rates
    lm: LMConfig
    flow: FlowConfig
    vocoder: VocoderConfig
    mel: MelConfig
