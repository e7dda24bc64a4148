"""A model folder in the official layout: which generation it holds, its files, its sizes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from vivavoce.checkpoint.config import (
    FlowConfig,
    Generation,
    LMConfig,
    MelConfig,
    ModelConfig,
    SamplingDefaults,
    TokenEncoderConfig,
    UNetConfig,
    Vocabulary,
    VocoderConfig,
)
from vivavoce.checkpoint.contradictions import check_sizes
from vivavoce.checkpoint.official_yaml import read_official_yaml
from vivavoce.checkpoint.settings_reader import MAX_BLOCKS, Section
from vivavoce.errors import CheckpointError, ModelNotFound, UnsupportedModel
from vivavoce.rates import Rates

YAML_OF = {
    Generation.V1: "cosyvoice.yaml",
    Generation.V2: "cosyvoice2.yaml",
    Generation.V3: "cosyvoice3.yaml",
}
SUPPORTED = (Generation.V2,)
BACKBONE = "CosyVoice-BlankEN"
CARD = "vivavoce.json"
SPEECH_TOKENIZER = "speech_tokenizer_v2.onnx"
SPEAKER_ENCODER = "campplus.onnx"
SPEAKERS = "spk2info.pt"
"""Built-in speakers; a folder may have none."""
NUM_EULER_STEPS = 10
"""Steps of the official inference; no checkpoint file holds the number."""


class TextStream(str, Enum):
    """How a model speaks a text that is still arriving."""

    INTERLEAVED = "interleaved"
    """Text and speech tokens in turn, in one sequence (`LMConfig.mix_text`, `mix_speech`): the official way."""
    SENTENCES = "sentences"
    """Each sentence as a whole once it is complete: for models that were hardly trained on the mix, or not at all."""


@dataclass(frozen=True)
class ModelCard:
    """What a folder's optional `vivavoce.json` says about its weights; official folders have none."""

    name: str
    description: str = ""
    trained: bool = True
    demo: bool = False
    """Trained to show how the program works, not how good its models sound."""
    scripts: frozenset[str] | None = None
    """Unicode scripts the model was trained to read; None: no restriction."""
    text_stream: TextStream = TextStream.INTERLEAVED


def detect_generation(folder: Path) -> Generation:
    """Tell the generation by the yaml file that exists, in the official order v1, v2, v3.

    Raises:
        ModelNotFound: `folder` is no folder.
        CheckpointError: it holds none of the three files.
        UnsupportedModel: it holds a generation that this version cannot run.
    """
    if not folder.is_dir():
        raise ModelNotFound(f"model: {str(folder)!r} is not a folder; give an official CosyVoice folder")
    for generation, name in YAML_OF.items():
        if (folder / name).is_file():
            if generation not in SUPPORTED:
                raise UnsupportedModel(
                    f"model: {folder.name} is a CosyVoice {generation.value} checkpoint ({name}); this version runs "
                    f"{', '.join(g.value for g in SUPPORTED)} only"
                )
            return generation
    raise CheckpointError(
        f"model: {folder.name} holds none of {', '.join(YAML_OF.values())}; download the whole model folder"
    )


def read_card(folder: Path) -> ModelCard:
    """Read `vivavoce.json` if the folder has one, else name the model after its folder.

    Raises:
        CheckpointError: the file is no JSON object, or `text_stream` in it is none of `TextStream`.
    """
    path = folder / CARD
    if not path.is_file():
        return ModelCard(name=folder.name)
    data = _read_json(path)
    scripts = data.get("scripts")
    return ModelCard(
        name=str(data.get("name", folder.name)),
        description=str(data.get("description", "")),
        trained=bool(data.get("trained", True)),
        demo=bool(data.get("demo", False)),
        scripts=frozenset(str(s) for s in scripts) if isinstance(scripts, list) else None,
        text_stream=_text_stream(data.get("text_stream", TextStream.INTERLEAVED)),
    )


def read_config(folder: Path, flow_keys: Iterable[str]) -> ModelConfig:
    """Read all sizes of a CosyVoice2 folder.

    Args:
        folder: the model folder.
        flow_keys: parameter names of flow.pt; the official yaml does not say how many conformer blocks follow
            the upsampling, the names do.

    Raises:
        CheckpointError: a setting is missing, of the wrong kind, out of its range (the message gives its path), or
            contradicts another one.
    """
    generation = detect_generation(folder)
    name = YAML_OF[generation]
    root = Section(name, read_official_yaml(folder / name))
    backbone_path = folder / BACKBONE / "config.json"
    if not backbone_path.is_file():
        raise CheckpointError(f"model: {BACKBONE}/config.json is missing; download the whole model folder")
    backbone = Section(f"{BACKBONE}/config.json", _read_json(backbone_path))
    sample_rate = root.integer("sample_rate")
    vocoder = _vocoder(root.section("hift"))
    try:
        rates = Rates(sample_rate, vocoder.samples_per_frame, root.section("flow").integer("input_frame_rate"))
    except ValueError as error:
        raise CheckpointError(f"{name}: sample_rate: {error}; download the file again") from None
    config = ModelConfig(
        generation=generation,
        rates=rates,
        lm=_lm(root.section("llm"), backbone),
        flow=_flow(root.section("flow"), flow_keys),
        vocoder=vocoder,
        mel=_mel(root.section("feat_extractor")),
    )
    check_sizes(config)
    return config


def _text_stream(value: object) -> TextStream:
    try:
        return TextStream(value)
    except ValueError:
        known = ", ".join(stream.value for stream in TextStream)
        raise CheckpointError(
            f"{CARD}: text_stream: expected one of {known}, found {repr(value)[:60]}; correct it, or leave it out "
            f"for {TextStream.INTERLEAVED.value}"
        ) from None


def _lm(llm: Section, backbone: Section) -> LMConfig:
    num_tokens = llm.integer("speech_token_size")
    mix = llm.integers("mix_ratio", (5, 15))
    if len(mix) != 2:
        raise CheckpointError(f"{llm.path}.mix_ratio: {list(mix)} are not two numbers; download the file again")
    sampling = llm.section("sampling")
    return LMConfig(
        hidden_size=backbone.integer("hidden_size"),
        intermediate_size=backbone.integer("intermediate_size"),
        num_layers=backbone.integer("num_hidden_layers", maximum=MAX_BLOCKS),
        num_heads=backbone.integer("num_attention_heads"),
        num_kv_heads=backbone.integer("num_key_value_heads"),
        text_vocab_size=backbone.integer("vocab_size"),
        rms_norm_eps=backbone.number("rms_norm_eps"),
        rope_theta=backbone.number("rope_theta"),
        max_positions=backbone.integer("max_position_embeddings"),
        mix_text=mix[0],
        mix_speech=mix[1],
        # CosyVoice2: three ids after the speech tokens (end, task, fill), all of which end a plain decode.
        vocabulary=Vocabulary(
            num_speech_tokens=num_tokens,
            num_logits=num_tokens + 3,
            sos=0,
            task=1,
            eos=num_tokens,
            fill=num_tokens + 2,
            masked_before_minimum=num_tokens,
        ),
        sampling=SamplingDefaults(
            top_p=sampling.number("top_p"),
            top_k=sampling.integer("top_k"),
            win_size=sampling.integer("win_size", minimum=0),
            tau_r=sampling.number("tau_r"),
        ),
    )


def _flow(flow: Section, flow_keys: Iterable[str]) -> FlowConfig:
    encoder, decoder = flow.section("encoder"), flow.section("decoder")
    estimator = decoder.section("estimator")
    channels = estimator.integers("channels")
    if len(channels) != 1:
        raise UnsupportedModel(f"{estimator.path}.channels: {list(channels)}; a causal U-Net has one level of channels")
    up_blocks = {key.split(".")[2] for key in flow_keys if key.startswith("encoder.up_encoders.")}
    ratio = flow.integer("token_mel_ratio")
    return FlowConfig(
        num_tokens=flow.integer("vocab_size"),
        num_mel_bins=flow.integer("output_size"),
        speaker_size=flow.integer("spk_embed_dim"),
        guidance=decoder.section("cfm_params").section("content").number("inference_cfg_rate"),
        num_steps=NUM_EULER_STEPS,
        encoder=TokenEncoderConfig(
            input_size=encoder.integer("input_size"),
            hidden_size=encoder.integer("output_size"),
            num_heads=encoder.integer("attention_heads"),
            feed_forward_size=encoder.integer("linear_units"),
            num_blocks=encoder.integer("num_blocks", maximum=MAX_BLOCKS),
            num_up_blocks=len(up_blocks),
            lookahead=flow.integer("pre_lookahead_len"),
            chunk=encoder.integer("static_chunk_size"),
            upsampling=ratio,
        ),
        estimator=UNetConfig(
            in_channels=estimator.integer("in_channels"),
            out_channels=estimator.integer("out_channels"),
            channels=channels[0],
            num_blocks=estimator.integer("n_blocks", maximum=MAX_BLOCKS),
            num_mid_blocks=estimator.integer("num_mid_blocks", minimum=0, maximum=MAX_BLOCKS),
            num_heads=estimator.integer("num_heads"),
            head_dim=estimator.integer("attention_head_dim"),
            chunk=estimator.integer("static_chunk_size"),
        ),
    )


def _vocoder(hift: Section) -> VocoderConfig:
    istft, f0 = hift.section("istft_params"), hift.section("f0_predictor")
    return VocoderConfig(
        sample_rate=hift.integer("sampling_rate"),
        num_mel_bins=hift.integer("in_channels"),
        base_channels=hift.integer("base_channels"),
        num_harmonics=hift.integer("nb_harmonics", minimum=0),
        sine_amplitude=hift.number("nsf_alpha"),
        noise_std=hift.number("nsf_sigma"),
        voiced_threshold_hz=hift.number("nsf_voiced_threshold"),
        upsample_rates=hift.integers("upsample_rates"),
        upsample_kernels=hift.integers("upsample_kernel_sizes"),
        n_fft=istft.integer("n_fft"),
        hop=istft.integer("hop_len"),
        resblock_kernels=hift.integers("resblock_kernel_sizes"),
        resblock_dilations=hift.integer_rows("resblock_dilation_sizes"),
        source_resblock_kernels=hift.integers("source_resblock_kernel_sizes"),
        source_resblock_dilations=hift.integer_rows("source_resblock_dilation_sizes"),
        leaky_slope=hift.number("lrelu_slope"),
        audio_limit=hift.number("audio_limit"),
        f0_channels=f0.integer("cond_channels"),
        f0_mel_bins=f0.integer("in_channels"),
    )


def _mel(mel: Section) -> MelConfig:
    sample_rate = mel.integer("sampling_rate")
    return MelConfig(
        sample_rate=sample_rate,
        n_fft=mel.integer("n_fft"),
        win_size=mel.integer("win_size"),
        hop=mel.integer("hop_size"),
        num_bins=mel.integer("num_mels"),
        fmin_hz=mel.number("fmin"),
        fmax_hz=mel.number("fmax", sample_rate / 2),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(f"{path.name}: not valid JSON; download the file again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: holds no settings; download the file again")
    return data
