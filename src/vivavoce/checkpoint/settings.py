"""Reads all sizes of a model from the settings files in its folder, and checks that they fit together.

Error messages contain the file and the full path of the setting in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from vivavoce.checkpoint.config import (
    MAX_BLOCKS,
    MAX_SIZE,
    CausalVocoderConfig,
    ConformerConfig,
    ConformerLMConfig,
    DiTConfig,
    FileKey,
    FlowConfig,
    Generation,
    HourglassConfig,
    LMConfig,
    LookaheadConfig,
    MelConfig,
    ModelConfig,
    SamplingDefaults,
    SilentTokens,
    TokenEncoderConfig,
    UNetConfig,
    Vocabulary,
    VocoderConfig,
    WholeFlowConfig,
)
from vivavoce.checkpoint.folder import BACKBONE, YAML_OF, detect_generation, read_card, read_json
from vivavoce.checkpoint.official_yaml import read_official_yaml
from vivavoce.errors import CheckpointError, UnsupportedModel
from vivavoce.rates import Rates

NUM_EULER_STEPS = 10

WHOLE_RATE = 50
"""Speech tokens per second of CosyVoice 1. The experimental model CosyVoice-300M-25Hz is not supported."""
OVERLAP_TOKENS = 20
"""Number of speech tokens that two consecutive chunks share in CosyVoice 1's official streaming."""
TABLE_POSITIONS = 5000
"""Initial length of the position table in CosyVoice 1's official code; there, the table can grow."""

Config = TypeVar("Config")


def read_config(folder: Path, flow_keys: Iterable[str]) -> ModelConfig:
    """Read a model's sizes. flow_keys: parameter names of flow.pt; only they show CosyVoice2's `num_up_blocks`."""
    generation = detect_generation(folder)
    name = YAML_OF[generation]
    root = Section(name, read_official_yaml(folder / name))
    kind = CausalVocoderConfig if generation is Generation.V3 else VocoderConfig
    sample_rate, vocoder = root.integer("sample_rate"), root.section("hift").read(kind)
    rates = Rates(sample_rate, vocoder.samples_per_frame, root.section("flow").integer("input_frame_rate"))
    if not rates.frames_per_token and generation is not Generation.V1:
        raise CheckpointError(
            f"{name}: sample_rate: {sample_rate} samples per second are not a whole number of {rates.samples_per_frame}"
            f"-sample frames for each of {rates.tokens_per_second} tokens; download the file again"
        )
    llm, mel, remedy = root.section("llm"), root.section("feat_extractor"), "the yaml file"
    card = read_card(folder)
    flow = replace(_FLOWS[generation](root.section("flow"), flow_keys), num_steps=card.flow_steps or NUM_EULER_STEPS)
    if generation is Generation.V1:
        lm: LMConfig | ConformerLMConfig = _conformer_lm(llm)
    else:
        lm, remedy = _backbone_lm(folder, llm, generation), f"the yaml file and {BACKBONE}/config.json"
    if card.silent is not None:
        lm = replace(lm, vocabulary=replace(lm.vocabulary, silent=card.silent))
    highest = mel.number("fmax", mel.integer("sampling_rate") / 2)
    config = ModelConfig(generation, rates, lm, flow, vocoder, mel.read(MelConfig, fmax_hz=highest))
    for contradiction in _contradictions(config):
        raise CheckpointError(f"model: {contradiction}; download {remedy} again")
    return config


class Section:
    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    def where(self, key: str) -> str:
        return f"{self.path}.{key}" if ":" in self.path else f"{self.path}: {key}"

    def section(self, key: str) -> Section:
        value = self._values.get(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a group of settings")
        return Section(self.where(key), value)

    def read(self, kind: type[Config], **known: Any) -> Config:
        """Read a dataclass: each field's `FileKey` is its place in this section; known: values of further fields."""
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if name not in known:
                (setting,) = hint.__metadata__
                known[name] = self._value(setting, hint.__origin__)
        return kind(**known)

    def _value(self, setting: FileKey, kind: Any) -> Any:
        *groups, key = setting.path.split(".")
        section = self
        for group in groups:
            section = section.section(group)
        if kind is int:
            return section.integer(key, setting.minimum, setting.maximum)
        if kind is float:
            return section.number(key)
        return section.integers(key) if kind == tuple[int, ...] else section._integer_rows(key)

    def integer(self, key: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        number = self.number(key)
        if number != int(number) or not minimum <= number <= maximum:
            raise self._wrong(key, f"a whole number from {minimum} to {maximum}")
        return int(number)

    def number(self, key: str, default: float | None = None) -> float:
        """Read a finite number, or `default` if it is null or absent. Text is accepted: YAML 1.1 has 1e-6 as text."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        try:
            if isinstance(value, bool) or value is None:
                raise ValueError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._wrong(key, "a number") from None
        if not math.isfinite(number):
            raise self._wrong(key, "a finite number")
        return number

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._values.get(key, default)
        fits = isinstance(value, list | tuple) and value
        if not fits or any(type(item) is not int or not 1 <= item <= MAX_SIZE for item in value):
            raise self._wrong(key, f"a list of whole numbers from 1 to {MAX_SIZE}")
        return tuple(value)

    def _integer_rows(self, key: str) -> tuple[tuple[int, ...], ...]:
        value = self._values.get(key)
        if not isinstance(value, list) or not value:
            raise self._wrong(key, "a list of lists")
        return tuple(Section(self.path, {key: row}).integers(key) for row in value)

    def _wrong(self, key: str, wanted: str) -> CheckpointError:
        found = repr(self._values[key])[:60] if key in self._values else "nothing"
        return CheckpointError(f"{self.where(key)}: expected {wanted}, found {found}; download the file again")


def vocabulary_of(generation: Generation, num_speech_tokens: int) -> Vocabulary:
    """Return the special ids of a generation, which follow the ids of speech tokens.

    CosyVoice 1 has only one special id (end), and no fill id. CosyVoice2 has three (end, task, fill); any of them ends
    decoding if text is not streamed. CosyVoice3 has 200; the first four are begin, end, task and fill."""
    size = num_speech_tokens
    if generation is Generation.V1:
        return Vocabulary(size, size + 1, sos=0, task=1, eos=size, fill=size, masked_before_minimum=size)
    if generation is Generation.V2:
        return Vocabulary(size, size + 3, sos=0, task=1, eos=size, fill=size + 2, masked_before_minimum=size)
    # Before the minimum length, the official code masks the first special id, begin, though CosyVoice3 ends with end.
    return Vocabulary(
        size, size + 200, sos=size, task=size + 2, eos=size + 1, fill=size + 3, masked_before_minimum=size,
        silent=SilentTokens((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323)),
    )  # fmt: skip


def _backbone_lm(folder: Path, llm: Section, generation: Generation) -> LMConfig:
    path = folder / BACKBONE / "config.json"
    if not path.is_file():
        raise CheckpointError(f"model: {BACKBONE}/config.json is missing; download the whole model folder")
    backbone = Section(f"{BACKBONE}/config.json", read_json(path))
    return lm_config(backbone, llm, vocabulary_of(generation, llm.integer("speech_token_size")))


def lm_config(backbone: Section, speech: Section, vocabulary: Vocabulary, **known: float) -> LMConfig:
    """Read the sizes of a Qwen2 language model. backbone: the section with Qwen2's sizes; speech: the section with
    `mix_ratio` and `sampling`; known: values of fields that `backbone` does not contain."""
    mix = speech.integers("mix_ratio", (5, 15))
    if len(mix) != 2:
        raise CheckpointError(
            f"{speech.where('mix_ratio')}: {list(mix)!s:.80} are not two numbers; download the file again"
        )
    return backbone.read(
        LMConfig,
        mix_text=mix[0],
        mix_speech=mix[1],
        vocabulary=vocabulary,
        sampling=speech.section("sampling").read(SamplingDefaults),
        **known,
    )


def _conformer_lm(llm: Section) -> ConformerLMConfig:
    return llm.read(
        ConformerLMConfig,
        text_encoder=llm.section("text_encoder").read(ConformerConfig),
        backbone=llm.section("llm").read(ConformerConfig),
        vocabulary=vocabulary_of(Generation.V1, llm.integer("speech_token_size")),
        sampling=llm.section("sampling").read(SamplingDefaults),
        max_positions=TABLE_POSITIONS,
    )


def _whole_flow(flow: Section, _: Iterable[str]) -> WholeFlowConfig:
    rate, estimator = flow.integer("input_frame_rate"), flow.section("decoder").section("estimator")
    if rate != WHOLE_RATE:
        raise UnsupportedModel(
            f"{flow.where('input_frame_rate')}: {rate}; CosyVoice 1 needs {WHOLE_RATE} speech tokens per second; "
            "use CosyVoice-300M, -SFT or -Instruct"
        )
    channels = estimator.integers("channels")
    if len(channels) != 2 or channels[0] != channels[1]:
        raise UnsupportedModel(f"{estimator.path}.channels: {channels!s:.80}; CosyVoice 1's U-Net has two equal levels")
    return flow.read(
        WholeFlowConfig,
        num_steps=NUM_EULER_STEPS,
        encoder=flow.section("encoder").read(ConformerConfig),
        estimator=estimator.read(HourglassConfig, channels=channels[0]),
        overlap=OVERLAP_TOKENS,
    )


def _flow(flow: Section, flow_keys: Iterable[str]) -> FlowConfig:
    estimator = flow.section("decoder").section("estimator")
    channels = estimator.integers("channels")
    if len(channels) != 1:
        raise UnsupportedModel(f"{estimator.path}.channels: {channels!s:.80}; a causal U-Net has one level of channels")
    up_blocks = {key.split(".")[2] for key in flow_keys if key.startswith("encoder.up_encoders.")}
    return flow.read(
        FlowConfig,
        num_steps=NUM_EULER_STEPS,
        encoder=flow.read(TokenEncoderConfig, num_up_blocks=len(up_blocks)),
        estimator=estimator.read(UNetConfig, channels=channels[0]),
    )


def _causal_flow(flow: Section, _: Iterable[str]) -> FlowConfig:
    estimator = flow.section("decoder").section("estimator").read(DiTConfig)
    encoder = flow.read(LookaheadConfig, chunk=estimator.chunk // flow.integer("token_mel_ratio"))
    return flow.read(FlowConfig, num_steps=NUM_EULER_STEPS, encoder=encoder, estimator=estimator)


_FLOWS: Mapping[Generation, Callable[[Section, Iterable[str]], FlowConfig]] = {
    Generation.V1: _whole_flow,
    Generation.V2: _flow,
    Generation.V3: _causal_flow,
}


def _contradictions(config: ModelConfig) -> Iterator[str]:
    lm, vocoder, rates, mel, flow = config.lm, config.vocoder, config.rates, config.mel, config.flow
    if isinstance(lm, ConformerLMConfig):
        yield from _of_conformer("llm.text_encoder", lm.text_encoder)
        yield from _of_conformer("llm.llm", lm.backbone)
        if lm.backbone.input_size != lm.hidden_size:
            yield f"llm.llm: input_size {lm.backbone.input_size} is not output_size {lm.hidden_size}"
    else:
        yield from _of_backbone(lm)
    if isinstance(flow, WholeFlowConfig):
        yield from _of_conformer("flow.encoder", flow.encoder)
        if flow.estimator.channels % 8:
            yield f"flow.decoder.estimator: channels {flow.estimator.channels} are not 8 equal groups"
    else:
        yield from _of_streaming_flow(flow, rates)
    for name, sample_rate in (("hift", vocoder.sample_rate), ("feat_extractor", mel.sample_rate)):
        if sample_rate != rates.sample_rate:
            yield f"{name}: sampling_rate {sample_rate} is not sample_rate {rates.sample_rate}"
    if mel.win_size > mel.n_fft:
        yield f"feat_extractor: win_size {mel.win_size} is above n_fft {mel.n_fft}"
    if not 0 <= mel.fmin_hz < mel.fmax_hz <= mel.sample_rate / 2:
        yield f"feat_extractor: fmin {mel.fmin_hz:g} and fmax {mel.fmax_hz:g} are not a band below half the sample rate"
    yield from _of_vocoder(vocoder)


def _of_backbone(lm: LMConfig) -> Iterator[str]:
    if lm.hidden_size % lm.num_heads:
        yield f"num_attention_heads {lm.num_heads} does not divide hidden_size {lm.hidden_size}"
    if lm.num_heads % lm.num_kv_heads:
        yield f"num_key_value_heads {lm.num_kv_heads} does not divide num_attention_heads {lm.num_heads}"
    if lm.head_dim % 2:
        yield f"hidden_size {lm.hidden_size} gives {lm.num_heads} heads an odd number of channels"
    if lm.rope_theta <= 0:
        yield f"rope_theta {lm.rope_theta:g} is not above 0"


def _of_conformer(name: str, conformer: ConformerConfig | TokenEncoderConfig) -> Iterator[str]:
    size, heads = conformer.hidden_size, conformer.num_heads
    if size % heads:
        yield f"{name}: attention_heads {heads} does not divide output_size {size}"
    if size % 2:
        yield f"{name}: output_size {size} is odd"


def _of_streaming_flow(flow: FlowConfig, rates: Rates) -> Iterator[str]:
    encoder = flow.encoder
    if isinstance(encoder, LookaheadConfig):
        yield from _of_causal_flow(flow, encoder)
    else:
        if encoder.num_up_blocks > MAX_BLOCKS:
            yield f"flow: encoder.up_encoders has {encoder.num_up_blocks} blocks, the limit is {MAX_BLOCKS}"
        yield from _of_conformer("flow.encoder", encoder)
    if encoder.upsampling != rates.frames_per_token:
        yield f"flow: token_mel_ratio {encoder.upsampling}, but the rates give {rates.frames_per_token}"


def _of_causal_flow(flow: FlowConfig, encoder: LookaheadConfig) -> Iterator[str]:
    bins, estimator = flow.num_mel_bins, flow.estimator
    if encoder.input_size != bins:
        yield f"flow.pre_lookahead_layer: in_channels {encoder.input_size} is not output_size {bins}"
    if estimator.out_channels != bins:
        yield f"flow.decoder.estimator: out_channels {estimator.out_channels} is not output_size {bins}"
    if estimator.head_dim % 2:
        yield f"flow.decoder.estimator: dim_head {estimator.head_dim} is odd"


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
