"""A complete folder of a generation with random weights of any size: it babbles, it does not speak.

It takes every path through the engine that a trained model takes, so a demo, a test or a measurement needs no download.
Matrices get 1/sqrt(inputs), so that signals keep their size from layer to layer and the vocoder's output is noise of a
speaker's loudness, neither silent nor clipped.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.config import CausalVocoderConfig, Generation, ModelConfig, Vocabulary
from vivavoce.checkpoint.folder import BACKBONE, CARD, SPEAKER_ENCODER, YAML_OF, speech_tokenizer_of
from vivavoce.checkpoint.folder import SPEAKERS as SPEAKERS_FILE
from vivavoce.checkpoint.onnx_writer import FLOAT, INT32, Port, node, onnx_model
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.spk2info import SpeakerEntry, write_spk2info
from vivavoce.errors import CheckpointError
from vivavoce.models.generations import NETWORKS, NetworkPart

SPEAKERS = ("babble-a", "babble-b")
NUM_SPEECH_TOKENS = 6561
NUM_MEL_BINS = 80
SPEAKER_SIZE = 192


@dataclass(frozen=True)
class Sizes:
    """Of the networks: the language model's, the flow's encoder and its U-Net or DiT, the vocoder's; by default tiny
    ones. A generation takes those of its own networks.
    """

    text_vocabulary: int = 288  # 256 bytes, the special tokens of Qwen2 and CosyVoice2, rounded up
    lm_width: int = 64
    lm_inner: int = 128
    lm_layers: int = 3
    lm_heads: int = 4
    lm_kv_heads: int = 2
    encoder_width: int = 64
    encoder_inner: int = 128
    encoder_heads: int = 4
    encoder_blocks: int = 2
    encoder_up_blocks: int = 4
    unet_width: int = 64
    unet_heads: int = 2
    unet_head_dim: int = 32
    unet_blocks: int = 2
    unet_mid_blocks: int = 3
    lookahead_inner: int = 96
    dit_width: int = 64
    dit_heads: int = 2
    dit_head_dim: int = 32
    dit_blocks: int = 3
    vocoder_width: int = 64
    f0_width: int = 32


SizesOf = Mapping[Generation, Sizes]

# CosyVoice3 has the phones of two languages among its special tokens.
TINY: SizesOf = {Generation.V2: Sizes(), Generation.V3: Sizes(text_vocabulary=576)}
_QWEN2_05B = Sizes(
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
    lookahead_inner=1_024,
    dit_width=1_024,
    dit_heads=16,
    dit_head_dim=64,
    dit_blocks=22,
    vocoder_width=512,
    f0_width=512,
)
RELEASE: SizesOf = {Generation.V2: _QWEN2_05B, Generation.V3: _QWEN2_05B}
"""As CosyVoice2-0.5B and Fun-CosyVoice3-0.5B were published."""

_CARD_CONTENT = {
    "name": "babble",
    "description": "randomly initialised: it babbles, it does not speak",
    "trained": False,
    "scripts": ["Latin"],
}
_FILES = (
    "llm.pt",
    "flow.pt",
    "hift.pt",
    SPEAKER_ENCODER,
    SPEAKERS_FILE,
    *(f"{BACKBONE}/{name}" for name in ("config.json", "tokenizer_config.json", "vocab.json", "merges.txt")),
)
_WHISPER_BINS = 128
_FRAMES_PER_TOKEN = 4
_TOKEN_DIGITS, _TOKEN_BASE = 8, 3
"""A speech token is eight digits to the base three: 3 ** 8 = 6561."""
_QWEN2_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NUM_BYTES = 256

_ROTARY = "decoder.estimator.rotary_embed.inv_freq"
"""Frequencies that the official DiT keeps in its file, and computes."""
_END_LOGIT = 7.0
"""Close below the best of 6561 random logits: past the minimum length an utterance ends after some ten tokens."""
_NEVER_LOGIT = -100.0
_END_GAIN = 6.0
"""Of the end where the head has no bias: now and then it is above the best."""
_NORMED = re.compile(r"(conv_pre|conv_post|ups\.|resblocks|source_resblocks|f0_predictor\.condnet).*\.weight")
"""Convolutions of the vocoder that are kept as weight norm's two tensors."""
_DISTRIBUTIONS = (
    (r"(embedding|embed_tokens)\.weight$", 0.0, 1.0),
    (r"(norm\w*|\.out\.1|\.block\.2)\.weight$", 1.0, 0.1),
    (r"(norm\w*|\.out\.1|\.block\.2)\.bias$", 0.0, 0.1),
    (r"pos_bias_[uv]$", 0.0, 0.3),
    (r"m_source\.l_linear\.weight$", 0.0, 2.0),
    (r"\.alpha$", 1.0, 0.15),
    (r"conv_post\.bias$", -1.0, 0.3),
    (r"classifier\.bias$", 60.0, 1.0),
    (r"(attn_norm|norm_out)\.linear\.bias$", 0.0, 0.3),
    (r"\.bias$", 0.0, 0.05),
    (r"\.original1$", 0.0, 1.0),
)
"""What is no matrix: a pattern of official names, mean and standard deviation; the first row that fits wins."""
_GAINS = (
    ("llm_decoder", 2.0),
    ("source_downs", 2.0),
    ("convs2", 0.5),
    ("conv_post", 0.25),
    ("condnet", 1.5),
    ("classifier", 150.0),  # the pitch in hertz: a random contour of some hundred
)
"""Of matrices, by a part of their official names; 1 of all others, but for the vocoder's transposed convolutions."""


def make_babble_checkpoint(
    folder: Path, generation: Generation = Generation.V2, *, seed: int = 0, sizes: SizesOf = TINY
) -> Path:
    """Write the checkpoint and return `folder`, which appears complete or not at all.

    The same seed gives the same tensors. A folder that holds this very checkpoint is left as it is; CheckpointError: it
    holds something else, or the place cannot be written.
    """
    own = {} if sizes == TINY else {"sizes": asdict(sizes[generation])}
    card = _json(_CARD_CONTENT | {"seed": seed} | own)
    if _holds(folder, generation, card):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as workshop:
            new = Path(workshop) / "model"
            new.mkdir()
            _write_files(new, generation, seed, sizes[generation])
            (new / CARD).write_text(card, encoding="utf-8")
            os.replace(new, folder)
    except OSError as error:
        if _holds(folder, generation, card):  # another process has just made the same
            return folder
        reason = "is in use for something else" if os.path.exists(folder) else f"cannot be written ({error.strerror})"
        raise CheckpointError(f"folder: {folder} {reason}; choose a folder that does not exist yet") from None
    return folder


def _holds(folder: Path, generation: Generation, card: str) -> bool:
    """Whether the folder is this very checkpoint, and every file of it is there."""
    try:
        if (folder / CARD).read_text(encoding="utf-8", errors="replace") != card:
            return False
        files = (*_FILES, YAML_OF[generation], speech_tokenizer_of(generation))
        return all((folder / name).stat().st_size > 0 for name in files)
    except OSError:
        return False


def _write_files(folder: Path, generation: Generation, seed: int, sizes: Sizes) -> None:
    config = write_settings(folder, generation, sizes)
    for network in NETWORKS[generation].values():
        with (folder / f"{network.part}.pt").open("wb") as file:
            torch.save(random_state(network, config, seed), file)
    speakers = {
        name: SpeakerEntry(torch.from_numpy(_draw((SPEAKER_SIZE,), seed, f"speaker/{name}"))) for name in SPEAKERS
    }
    write_spk2info(folder / SPEAKERS_FILE, speakers)
    (folder / SPEAKER_ENCODER).write_bytes(_speaker_encoder(seed))
    (folder / speech_tokenizer_of(generation)).write_bytes(_speech_tokenizer(seed))


def random_state(network: NetworkPart, config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """The state dict of a network: float32 tensors by official name.

    A tensor depends on seed, network and name alone, not on the order or number of the others.
    """
    with torch.device("meta"):
        own = network.build(config).state_dict()
    shapes = {network.names.to_official(name): tuple(tensor.shape) for name, tensor in own.items()}
    for key in [key for key in shapes if _NORMED.fullmatch(key)]:
        shape, stem = shapes.pop(key), f"{key.removesuffix('.weight')}.parametrizations.weight.original"
        shapes |= {f"{stem}0": (shape[0], 1, 1), f"{stem}1": shape}
    state = {}
    for key, shape in shapes.items():
        mean, std = _distribution(key, shape, config)
        values = _draw(shape, seed, f"{network.part}/{key}")
        state[key] = torch.from_numpy(values * np.float32(std) + np.float32(mean))
    if network.part == "llm":
        # The official file repeats the text embedding as an (unused) text head.
        state["llm.model.lm_head.weight"] = state["llm.model.model.embed_tokens.weight"]
        _let_only_the_end_stop(state, config.lm.vocabulary)
    if _ROTARY in network.names.unused:
        size = config.flow.estimator.head_dim
        state[_ROTARY] = 1e4 ** -(torch.arange(0, size, 2) / size)
    return state


def _let_only_the_end_stop(llm: dict[str, Tensor], vocabulary: Vocabulary) -> None:
    weight, bias, end = llm["llm_decoder.weight"], llm.get("llm_decoder.bias"), vocabulary.eos
    rare = weight[end] * (_END_GAIN / dict(_GAINS)["llm_decoder"])
    weight[vocabulary.num_speech_tokens :] = 0
    if bias is None:
        weight[end] = rare
    else:
        bias[vocabulary.num_speech_tokens :] = _NEVER_LOGIT
        bias[end] = _END_LOGIT


def _distribution(key: str, shape: tuple[int, ...], config: ModelConfig) -> tuple[float, float]:
    for pattern, mean, std in _DISTRIBUTIONS:
        if re.search(pattern, key):
            return mean, std
    gain = next((gain for name, gain in _GAINS if name in key), 1.0)
    if key.startswith("ups.") and not isinstance(config.vocoder, CausalVocoderConfig):
        gain = math.sqrt(config.vocoder.upsample_rates[int(key.split(".")[1])] / 2)
    if key.endswith(".original0"):  # the norms of weight norm's rows
        return gain, gain / 10
    return 0.0, gain / math.sqrt(math.prod(shape[1:]))


def _draw(shape: tuple[int, ...], seed: int, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Standard normal float32 values that depend on `seed` and `name` only."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return generator.standard_normal(shape, dtype=np.float32)


def _speaker_encoder(seed: int) -> bytes:
    """input [1, frames, 80] → output [1, 192]: the mean size of each band, mixed by a random matrix."""
    mix = _draw((NUM_MEL_BINS, SPEAKER_SIZE), seed, "campplus") / np.float32(np.sqrt(NUM_MEL_BINS))
    return onnx_model(
        # The bands' means are zero already (the features are centred), hence their absolute values.
        nodes=[
            node("Abs", ["input"], "size"),
            node("ReduceMean", ["size"], "bands", axes=[1], keepdims=0),
            node("MatMul", ["bands", "mix"], "output"),
        ],
        constants={"mix": mix},
        inputs=[Port("input", FLOAT, (1, "frames", NUM_MEL_BINS))],
        outputs=[Port("output", FLOAT, (1, SPEAKER_SIZE))],
    )


def _speech_tokenizer(seed: int) -> bytes:
    """feats [1, 128, frames], feats_length [1] → indices [1, ceil(feats_length / 4)].

    Four frames are mixed into eight numbers, each is rounded to -1, 0 or 1, and these are read as a number to the
    base three (finite scalar quantisation, arXiv:2309.15505).
    """
    inputs = _WHISPER_BINS * _FRAMES_PER_TOKEN
    mix = _draw((_TOKEN_DIGITS, _WHISPER_BINS, _FRAMES_PER_TOKEN), seed, "speech_tokenizer")
    weights = np.array([[_TOKEN_BASE**digit] for digit in range(_TOKEN_DIGITS)], np.float32)
    constants = {
        "mix": mix * np.float32(2 / np.sqrt(inputs)),
        "one": np.ones(1, np.float32),
        "weights": weights,
        "last_axis": np.array([2], np.int64),
        "start": np.zeros(1, np.int32),
        "axis": np.ones(1, np.int32),
        "frames_before": np.array([_FRAMES_PER_TOKEN - 1], np.int32),
        "frames": np.array([_FRAMES_PER_TOKEN], np.int32),
    }
    return onnx_model(
        nodes=[
            node("Conv", ["feats", "mix"], "mixed", strides=[_FRAMES_PER_TOKEN], pads=[0, _FRAMES_PER_TOKEN - 1]),
            node("Tanh", ["mixed"], "bounded"),
            node("Round", ["bounded"], "rounded"),
            node("Add", ["rounded", "one"], "digits"),
            node("Transpose", ["digits"], "by_token", perm=[0, 2, 1]),
            node("MatMul", ["by_token", "weights"], "column"),
            node("Squeeze", ["column", "last_axis"], "values"),
            node("Cast", ["values"], "all_indices", to=INT32),
            node("Add", ["feats_length", "frames_before"], "frames_up"),
            node("Div", ["frames_up", "frames"], "num_tokens"),
            node("Slice", ["all_indices", "start", "num_tokens", "axis"], "indices"),
        ],
        constants=constants,
        inputs=[Port("feats", FLOAT, (1, _WHISPER_BINS, "frames")), Port("feats_length", INT32, (1,))],
        outputs=[Port("indices", INT32, (1, "tokens"))],
    )


def write_settings(folder: Path, generation: Generation, sizes: Sizes) -> ModelConfig:
    """Write the yaml, the language model's settings and a byte-level Qwen2 tokenizer without merges."""
    (folder / YAML_OF[generation]).write_text(_settings(generation, sizes), encoding="utf-8")
    _write_backbone(folder / BACKBONE, sizes)
    return read_config(folder, [f"encoder.up_encoders.{block}" for block in range(sizes.encoder_up_blocks)])


def _write_backbone(backbone: Path, sizes: Sizes) -> None:
    backbone.mkdir()
    # GPT-2's printable stand-ins for the 256 bytes, those that print as themselves first.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = [*printable, *range(_NUM_BYTES, 2 * _NUM_BYTES - len(printable))]
    end, _, stop = range(_NUM_BYTES, _NUM_BYTES + len(_QWEN2_TOKENS))
    flags = {**dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False), "special": True}
    files = {
        "config.json": {
            "model_type": "qwen2",
            "hidden_size": sizes.lm_width,
            "intermediate_size": sizes.lm_inner,
            "num_hidden_layers": sizes.lm_layers,
            "num_attention_heads": sizes.lm_heads,
            "num_key_value_heads": sizes.lm_kv_heads,
            "vocab_size": sizes.text_vocabulary,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
            "bos_token_id": end,
            "eos_token_id": stop,
        },
        "generation_config.json": {"bos_token_id": end, "pad_token_id": end, "eos_token_id": [stop, end]},
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "added_tokens_decoder": {
                str(_NUM_BYTES + number): {"content": token, **flags} for number, token in enumerate(_QWEN2_TOKENS)
            },
            "additional_special_tokens": list(_QWEN2_TOKENS[1:]),
            "eos_token": _QWEN2_TOKENS[2],
            "pad_token": _QWEN2_TOKENS[0],
            "model_max_length": 32768,
        },
        "vocab.json": {chr(symbol): number for number, symbol in enumerate(symbols)},
    }
    for name, content in files.items():
        (backbone / name).write_text(_json(content), encoding="utf-8")
    (backbone / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


def _settings(generation: Generation, sizes: Sizes) -> str:
    """The yaml of a generation that has a Qwen2 language model."""
    causal = generation is Generation.V3
    llm, flow = ("CosyVoice3LM", _causal_flow(sizes)) if causal else ("Qwen2LM", _flow(sizes))
    vocoder = "CausalHiFTGenerator\n    conv_pre_look_right: 4" if causal else "HiFTGenerator"
    pitch, top = ("CausalConvRNNF0Predictor", "null") if causal else ("ConvRNNF0Predictor", "8000")
    return f"""\
sample_rate: 24000
llm: !new:cosyvoice.llm.llm.{llm}
    llm_input_size: {sizes.lm_width}
    llm_output_size: {sizes.lm_width}
    speech_token_size: {NUM_SPEECH_TOKENS}
    mix_ratio: [5, 15]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder {{pretrain_path: ''}}
    sampling: !name:cosyvoice.utils.common.ras_sampling {{top_p: 0.8, top_k: 25, win_size: 10, tau_r: 0.1}}
{flow}hift: !new:cosyvoice.hifigan.generator.{vocoder}
    in_channels: {NUM_MEL_BINS}
    base_channels: {sizes.vocoder_width}
    nb_harmonics: 8
    sampling_rate: 24000
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 5, 3]
    upsample_kernel_sizes: [16, 11, 7]
    istft_params: {{n_fft: 16, hop_len: 4}}
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.{pitch}
        in_channels: {NUM_MEL_BINS}
        cond_channels: {sizes.f0_width}
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    {{n_fft: 1920, num_mels: {NUM_MEL_BINS}, sampling_rate: 24000, hop_size: 480, win_size: 1920, fmin: 0, fmax: {top}}}
"""


def _flow(sizes: Sizes) -> str:
    return f"""\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: {sizes.encoder_width}
    output_size: {NUM_MEL_BINS}
    spk_embed_dim: {SPEAKER_SIZE}
    vocab_size: {NUM_SPEECH_TOKENS}
    input_frame_rate: 25
    token_mel_ratio: 2
    pre_lookahead_len: 3
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        input_size: {sizes.encoder_width}
        output_size: {sizes.encoder_width}
        attention_heads: {sizes.encoder_heads}
        linear_units: {sizes.encoder_inner}
        num_blocks: {sizes.encoder_blocks}
        static_chunk_size: 25
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        cfm_params: !new:omegaconf.DictConfig {{content: {{t_scheduler: cosine, inference_cfg_rate: 0.7}}}}
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: {4 * NUM_MEL_BINS}
            out_channels: {NUM_MEL_BINS}
            channels: [{sizes.unet_width}]
            attention_head_dim: {sizes.unet_head_dim}
            num_heads: {sizes.unet_heads}
            n_blocks: {sizes.unet_blocks}
            num_mid_blocks: {sizes.unet_mid_blocks}
            static_chunk_size: 50
"""


def _causal_flow(sizes: Sizes) -> str:
    return f"""\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithDiT
    input_size: {NUM_MEL_BINS}
    output_size: {NUM_MEL_BINS}
    spk_embed_dim: {SPEAKER_SIZE}
    vocab_size: {NUM_SPEECH_TOKENS}
    input_frame_rate: 25
    token_mel_ratio: 2
    pre_lookahead_len: 3
    pre_lookahead_layer: !new:cosyvoice.transformer.upsample_encoder.PreLookaheadLayer
        in_channels: {NUM_MEL_BINS}
        channels: {sizes.lookahead_inner}
        pre_lookahead_len: 3
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        cfm_params: !new:omegaconf.DictConfig {{content: {{t_scheduler: cosine, inference_cfg_rate: 0.7}}}}
        estimator: !new:cosyvoice.flow.DiT.dit.DiT
            dim: {sizes.dit_width}
            depth: {sizes.dit_blocks}
            heads: {sizes.dit_heads}
            dim_head: {sizes.dit_head_dim}
            ff_mult: 2
            mel_dim: {NUM_MEL_BINS}
            mu_dim: {NUM_MEL_BINS}
            spk_dim: {NUM_MEL_BINS}
            out_channels: {NUM_MEL_BINS}
            static_chunk_size: 50
"""


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
