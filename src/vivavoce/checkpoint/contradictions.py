"""Sizes that cannot hold together: found before a network is built of them."""

from __future__ import annotations

from collections.abc import Iterator

from vivavoce.checkpoint.config import LMConfig, ModelConfig, VocoderConfig
from vivavoce.errors import CheckpointError


def check_sizes(config: ModelConfig) -> None:
    """Hold the settings of one checkpoint against one another.

    Raises:
        CheckpointError: they contradict one another; the message has the first pair of settings that does.
    """
    for contradiction in _contradictions(config):
        raise CheckpointError(f"model: {contradiction}; download the yaml file and CosyVoice-BlankEN/config.json again")


def _contradictions(config: ModelConfig) -> Iterator[str]:
    yield from _of_lm(config.lm)
    encoder, rates, mel = config.flow.encoder, config.rates, config.mel
    if encoder.hidden_size % encoder.num_heads:
        yield f"flow.encoder: attention_heads {encoder.num_heads} does not divide output_size {encoder.hidden_size}"
    if encoder.hidden_size % 2:
        yield f"flow.encoder: output_size {encoder.hidden_size} is odd"
    if encoder.upsampling != rates.frames_per_token:
        yield f"flow: token_mel_ratio {encoder.upsampling}, but the rates give {rates.frames_per_token}"
    for name, sample_rate in (("hift", config.vocoder.sample_rate), ("feat_extractor", mel.sample_rate)):
        if sample_rate != rates.sample_rate:
            yield f"{name}: sampling_rate {sample_rate} is not sample_rate {rates.sample_rate}"
    if mel.win_size > mel.n_fft:
        yield f"feat_extractor: win_size {mel.win_size} is above n_fft {mel.n_fft}"
    if not 0 <= mel.fmin_hz < mel.fmax_hz <= mel.sample_rate / 2:
        yield f"feat_extractor: fmin {mel.fmin_hz:g} and fmax {mel.fmax_hz:g} are no band below half the sample rate"
    yield from _of_vocoder(config.vocoder)


def _of_lm(lm: LMConfig) -> Iterator[str]:
    if lm.hidden_size % lm.num_heads:
        yield f"num_attention_heads {lm.num_heads} does not divide hidden_size {lm.hidden_size}"
    if lm.num_heads % lm.num_kv_heads:
        yield f"num_key_value_heads {lm.num_kv_heads} does not divide num_attention_heads {lm.num_heads}"
    if lm.head_dim % 2:
        yield f"hidden_size {lm.hidden_size} gives {lm.num_heads} heads an odd number of channels"
    if lm.rope_theta <= 0:
        yield f"rope_theta {lm.rope_theta:g} is not above 0"


def _of_vocoder(vocoder: VocoderConfig) -> Iterator[str]:
    rates, kernels = vocoder.upsample_rates, vocoder.upsample_kernels
    if len(kernels) != len(rates):
        yield f"hift: {len(kernels)} upsample_kernel_sizes for {len(rates)} upsample_rates"
    for rate, kernel in zip(rates, kernels, strict=False):
        if kernel < rate or (kernel - rate) % 2:
            yield f"hift: upsample_kernel_sizes has {kernel} for the rate {rate}, not larger by an even number"
    if vocoder.base_channels % 2 ** len(rates):
        yield f"hift: base_channels {vocoder.base_channels} cannot be halved for each of {len(rates)} upsample_rates"
    rows = len(vocoder.resblock_dilations)
    if rows != len(vocoder.resblock_kernels):
        yield f"hift: {rows} resblock_dilation_sizes for {len(vocoder.resblock_kernels)} resblock_kernel_sizes"
    source_kernels, source_rows = len(vocoder.source_resblock_kernels), len(vocoder.source_resblock_dilations)
    if not source_kernels == source_rows == len(rates):
        yield (
            f"hift: {source_kernels} source_resblock_kernel_sizes and {source_rows} source_resblock_dilation_sizes "
            f"for {len(rates)} upsample_rates"
        )
    for kernel in (*vocoder.resblock_kernels, *vocoder.source_resblock_kernels):
        if kernel % 2 == 0:
            yield f"hift: a resblock kernel of {kernel} is even"
    if vocoder.n_fft % 2 or vocoder.n_fft < vocoder.hop:
        yield f"hift: n_fft {vocoder.n_fft} is odd or below hop_len {vocoder.hop}"
