"""Make a complete checkpoint with random weights, for demos, tests and benchmarks without a download.

Its audio is noise, but it uses every part of the engine that a trained model uses. Matrices have a standard deviation
of 1/sqrt(inputs), so that signals keep their size from layer to layer and the audio is neither silent nor clipped.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from torch import Tensor

from vivavoce.checkpoint.config import CausalVocoderConfig, Generation, ModelConfig
from vivavoce.checkpoint.folder import BACKBONE, CARD, SPEAKER_ENCODER, YAML_OF, speech_tokenizer_of
from vivavoce.checkpoint.folder import SPEAKERS as SPEAKERS_FILE
from vivavoce.checkpoint.known_models import missing_files
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.spk2info import EMBEDDING_SIZE, NUM_MEL_BINS, SpeakerEntry, write_spk2info
from vivavoce.errors import CheckpointError
from vivavoce.models.generations import NETWORKS, NetworkPart
from vivavoce_runtimes.onnx_writer import FLOAT, INT32, Port, node, onnx_model

SPEAKERS = ("babble-a", "babble-b")
NUM_SPEECH_TOKENS = 6561


@dataclass(frozen=True)
class Sizes:
    """Sizes of the language model, the flow's encoder, its U-Net or DiT, and the vocoder. The defaults are tiny.

    A generation uses only the sizes of its own networks.
    """

    text_vocabulary: int = 288  # 256 bytes and the special tokens of Qwen2 and CosyVoice2, rounded up
    lm_width: int = 64
    lm_inner: int = 128
    lm_layers: int = 3
    lm_heads: int = 4
    lm_kv_heads: int = 2
    text_width: int = 32
    text_blocks: int = 2
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

_WHISPER_VOCABULARY = 51_866
# CosyVoice3 needs more: its special tokens include the phones of two languages.
TINY: SizesOf = {
    Generation.V1: Sizes(text_vocabulary=_WHISPER_VOCABULARY),
    Generation.V2: Sizes(),
    Generation.V3: Sizes(text_vocabulary=576),
}
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
_LM_300M = {"text_width": 512, "text_blocks": 6, "lm_width": 1_024, "lm_inner": 4_096, "lm_layers": 14, "lm_heads": 16}
_CONFORMER_300M = replace(_QWEN2_05B, text_vocabulary=_WHISPER_VOCABULARY, **_LM_300M)
RELEASE: SizesOf = {Generation.V1: _CONFORMER_300M, Generation.V2: _QWEN2_05B, Generation.V3: _QWEN2_05B}
"""The sizes of the published models CosyVoice-300M, CosyVoice2-0.5B and Fun-CosyVoice3-0.5B."""

_CARD_CONTENT = {
    "name": "babble",
    "description": "randomly initialised: it babbles, it does not speak",
    "trained": False,
    "scripts": ["Latin"],
}
QWEN2_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_TEXT_HEAD = "llm.model.lm_head.weight"
_ROTARY = "decoder.estimator.rotary_embed.inv_freq"
"""Rotary frequencies. The official DiT stores them in its file, although they can be computed."""
_END_LOGIT = 7.0
"""The end token's logit: a little below the largest of 6561 random logits, so speech ends soon after its minimum."""
_NEVER_LOGIT = -100.0
_END_GAIN = 3.0
"""Gain of the end token's row in a head without bias, so that its logit is sometimes the largest."""
_NORMED = re.compile(r"(conv_pre|conv_post|ups\.|resblocks|source_resblocks|f0_predictor\.condnet).*\.weight")
"""Weights of the vocoder's convolutions that are stored with weight norm, as two tensors each."""
_NORMS = r"norm\w*|\.out\.1|\.block\.[12]|length_regulator\.model\.(1|4|7|10)"
_DISTRIBUTIONS = (
    (r"(embedding|embed_tokens)\.weight$", 0.0, 1.0),
    (rf"({_NORMS})\.weight$", 1.0, 0.1),
    (rf"({_NORMS})\.bias$", 0.0, 0.1),
    (r"pos_bias_[uv]$", 0.0, 0.3),
    (r"m_source\.l_linear\.weight$", 0.0, 2.0),
    (r"\.alpha$", 1.0, 0.15),
    (r"conv_post\.bias$", -1.0, 0.3),
    (r"classifier\.bias$", 60.0, 1.0),
    (r"(attn_norm|norm_out)\.linear\.bias$", 0.0, 0.3),
    (r"\.bias$", 0.0, 0.05),
    (r"\.original1$", 0.0, 1.0),
)
"""(pattern of official names, mean, standard deviation) of tensors that are not matrices. The first match counts."""
_GAINS = (
    ("llm_decoder", 2.0),
    ("source_downs", 2.0),
    ("convs2", 0.5),
    ("conv_post", 0.25),
    ("condnet", 1.5),
    ("classifier", 150.0),  # gives a random pitch contour of some hundred hertz
)
"""(part of an official name, gain) for matrices. Without a match the gain is 1."""


def make_babble_checkpoint(
    folder: Path, generation: Generation = Generation.V2, *, seed: int = 0, sizes: SizesOf = TINY
) -> Path:
    """Write the checkpoint and return `folder`. After an error, no incomplete folder is left.

    The same seed gives the same tensors. A folder that already has this checkpoint is kept. CheckpointError: the folder
    has other content, or cannot be written.
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
        if _holds(folder, generation, card):  # another process made the checkpoint meanwhile
            return folder
        reason = "is in use for something else" if os.path.exists(folder) else f"cannot be written ({error.strerror})"
        raise CheckpointError(f"folder: {folder} {reason}; choose a folder that does not exist yet") from None
    return folder


def _holds(folder: Path, generation: Generation, card: str) -> bool:
    try:
        if (folder / CARD).read_text(encoding="utf-8", errors="replace") != card:
            return False
        whole = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.stat().st_size > 0}
        tokenizer = () if generation is Generation.V1 else ("merges.txt", "tokenizer_config.json")
        return not missing_files(generation, whole) and whole >= {
            SPEAKERS_FILE,
            *(f"{BACKBONE}/{x}" for x in tokenizer),
        }
    except OSError:
        return False


def _write_files(folder: Path, generation: Generation, seed: int, sizes: Sizes) -> None:
    config = write_settings(folder, generation, sizes)
    for network in NETWORKS[generation].values():
        with (folder / f"{network.part}.pt").open("wb") as file:
            torch.save(random_state(network, config, seed), file)
    speakers = {
        name: SpeakerEntry(torch.from_numpy(draw((EMBEDDING_SIZE,), seed, f"speaker/{name}"))) for name in SPEAKERS
    }
    write_spk2info(folder / SPEAKERS_FILE, speakers)
    (folder / SPEAKER_ENCODER).write_bytes(speaker_encoder(seed))
    (folder / speech_tokenizer_of(generation)).write_bytes(speech_tokenizer(generation, seed))


def random_state(network: NetworkPart, config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Make the state dict of a network: float32 tensors by official name.

    A tensor depends only on seed, network and name, not on the order or number of the other tensors.
    """
    own = network.outline(config).state_dict()
    shapes = {network.names.to_official(name): tuple(tensor.shape) for name, tensor in own.items()}
    for key in [key for key in shapes if _NORMED.fullmatch(key)]:
        shape, stem = shapes.pop(key), f"{key.removesuffix('.weight')}.parametrizations.weight.original"
        shapes |= {f"{stem}0": (shape[0], 1, 1), f"{stem}1": shape}
    state = {}
    for key, shape in shapes.items():
        mean, std = _distribution(key, shape, config)
        values = draw(shape, seed, f"{network.part}/{key}")
        state[key] = torch.from_numpy(values * np.float32(std) + np.float32(mean))
    if network.part == "llm":
        if _TEXT_HEAD in network.names.unused:  # the official file has a copy of the text embedding as a head
            state[_TEXT_HEAD] = state["llm.model.model.embed_tokens.weight"]
        # Only the end token can be sampled and end an utterance; other control tokens cannot.
        weight, bias, end = state["llm_decoder.weight"], state.get("llm_decoder.bias"), config.lm.vocabulary.eos
        stops, rare = slice(config.lm.vocabulary.num_speech_tokens, None), _END_GAIN * weight[end]
        weight[stops] = 0
        if bias is None:
            weight[end] = rare
        else:
            bias[stops], bias[end] = _NEVER_LOGIT, _END_LOGIT
    if _ROTARY in network.names.unused:
        size = config.flow.estimator.head_dim
        state[_ROTARY] = 1e4 ** -(torch.arange(0, size, 2) / size)
    return state


def _distribution(key: str, shape: tuple[int, ...], config: ModelConfig) -> tuple[float, float]:
    for pattern, mean, std in _DISTRIBUTIONS:
        if re.search(pattern, key):
            return mean, std
    gain = next((gain for name, gain in _GAINS if name in key), 1.0)
    if key.startswith("ups.") and not isinstance(config.vocoder, CausalVocoderConfig):
        gain = math.sqrt(config.vocoder.upsample_rates[int(key.split(".")[1])] / 2)
    if key.endswith(".original0"):  # weight norm: this tensor has the norms of the rows
        return gain, gain / 10
    return 0.0, gain / math.sqrt(math.prod(shape[1:]))


def release_config(generation: Generation) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        return write_settings(Path(folder), generation, RELEASE[generation])


def write_settings(folder: Path, generation: Generation, sizes: Sizes) -> ModelConfig:
    """Write the yaml, and for a Qwen2 language model its settings and a byte-level tokenizer without merges."""
    name = YAML_OF[generation]
    template = Template((files("vivavoce_bench") / "data" / name).read_text(encoding="utf-8"))
    (folder / name).write_text(template.substitute(asdict(sizes)), encoding="utf-8")
    if generation is not Generation.V1:
        _write_backbone(folder / BACKBONE, sizes)
    return read_config(folder, [f"encoder.up_encoders.{block}" for block in range(sizes.encoder_up_blocks)])


def _write_backbone(backbone: Path, sizes: Sizes) -> None:
    backbone.mkdir()
    symbols = byte_symbols()
    end, _, stop = range(len(symbols), len(symbols) + len(QWEN2_TOKENS))
    contents = {
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
    }
    for name, content in contents.items():
        (backbone / name).write_text(_json(content), encoding="utf-8")
    write_tokenizer(backbone, {symbol: number for number, symbol in enumerate(symbols)})


def byte_symbols() -> list[str]:
    """Return the characters for the 256 bytes: first printable bytes as themselves, then substitutes for all others."""
    return sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda symbol: (ord(symbol) > 0xFF, ord(symbol)))


def write_tokenizer(folder: Path, vocabulary: Mapping[str, int], merges: Iterable[tuple[str, ...]] = ()) -> None:
    """Write the files of a tokenizer like Qwen2's. Its special tokens get the ids after the vocabulary's ids."""
    flags = {**dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False), "special": True}
    special = {str(len(vocabulary) + place): {"content": token, **flags} for place, token in enumerate(QWEN2_TOKENS)}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": special,
        "additional_special_tokens": list(QWEN2_TOKENS[1:]),
        "eos_token": QWEN2_TOKENS[2],
        "pad_token": QWEN2_TOKENS[0],
        "model_max_length": 32768,
    }
    (folder / "vocab.json").write_text(_json(vocabulary), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(_json(settings), encoding="utf-8")
    lines = ["#version: 0.2", *map(" ".join, merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


_WHISPER_BINS = 128
_TOKEN_BASE = 3


def draw(shape: tuple[int, ...], seed: int, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return standard normal float32 values that depend only on `seed` and `name`."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return generator.standard_normal(shape, dtype=np.float32)


def speaker_encoder(seed: int) -> bytes:
    """Make an ONNX file: input [1, frames, 80] → output [1, 192], the bands' mean absolute values times a matrix."""
    mix = draw((NUM_MEL_BINS, EMBEDDING_SIZE), seed, "campplus") / np.float32(np.sqrt(NUM_MEL_BINS))
    return onnx_model(
        # The features are centred, so without absolute values the means of the bands would be zero.
        nodes=[
            node("Abs", ["input"], "size"),
            node("ReduceMean", ["size"], "bands", axes=[1], keepdims=0),
            node("MatMul", ["bands", "mix"], "output"),
        ],
        constants={"mix": mix},
        inputs=[Port("input", FLOAT, (1, "frames", NUM_MEL_BINS))],
        outputs=[Port("output", FLOAT, (1, EMBEDDING_SIZE))],
    )


def speech_tokenizer(generation: Generation, seed: int) -> bytes:
    """Make an ONNX file: feats [1, 128, frames], feats_length [1] → indices [1, ⌈feats_length / 4⌉ (CosyVoice 1: / 2)].

    Finite scalar quantisation (arXiv:2309.15505): the frames of a token are projected to 8 values (CosyVoice 1: 7).
    Each value is rounded to -1, 0 or 1, and the token is the number with these base-3 digits.
    """
    frames, digits = (2, 7) if generation is Generation.V1 else (4, 8)
    mix = draw((digits, _WHISPER_BINS, frames), seed, "speech_tokenizer")
    weights = np.array([[_TOKEN_BASE**digit] for digit in range(digits)], np.float32)
    constants = {
        "mix": mix * np.float32(2 / np.sqrt(_WHISPER_BINS * frames)),
        "one": np.ones(1, np.float32),
        "weights": weights,
        "last_axis": np.array([2], np.int64),
        "start": np.zeros(1, np.int32),
        "axis": np.ones(1, np.int32),
        "frames_before": np.array([frames - 1], np.int32),
        "frames": np.array([frames], np.int32),
    }
    return onnx_model(
        nodes=[
            node("Conv", ["feats", "mix"], "mixed", strides=[frames], pads=[0, frames - 1]),
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
