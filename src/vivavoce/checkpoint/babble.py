"""A complete CosyVoice2 folder with random weights: it babbles, it does not speak.

It takes every path through the engine that a trained model takes, so a demo, a test or a measurement needs no
download. By default it is tiny.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vivavoce.checkpoint import babble_weights as weights
from vivavoce.checkpoint.babble_weights import NUM_MEL_BINS, SPEAKER_SIZE, TINY, Sizes, babble_state, draw
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE, CARD, SPEAKER_ENCODER, SPEECH_TOKENIZER, YAML_OF
from vivavoce.checkpoint.folder import SPEAKERS as SPEAKERS_FILE
from vivavoce.checkpoint.onnx_writer import FLOAT, INT32, Port, node, onnx_model
from vivavoce.checkpoint.spk2info import SpeakerEntry, write_spk2info
from vivavoce.errors import CheckpointError

SPEAKERS = ("babble-a", "babble-b")

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
    SPEECH_TOKENIZER,
    SPEAKER_ENCODER,
    SPEAKERS_FILE,
    YAML_OF[Generation.V2],
    *(f"{BACKBONE}/{name}" for name in ("config.json", "tokenizer_config.json", "vocab.json", "merges.txt")),
)
_WHISPER_BINS = 128
_FRAMES_PER_TOKEN = 4
_TOKEN_DIGITS, _TOKEN_BASE = 8, 3
"""A speech token is eight digits to the base three: 3 ** 8 = 6561."""
_QWEN2_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NUM_BYTES = 256


def make_babble_checkpoint(folder: Path, *, seed: int = 0, sizes: Sizes = TINY) -> Path:
    """Write the checkpoint and return `folder`, which appears complete or not at all.

    The same seed gives the same tensors. A folder that holds this very checkpoint is left as it is.

    Args:
        folder: where to; it must be absent, empty, or hold the same babble.
        seed: of all weights and of both speakers.
        sizes: of the networks.

    Raises:
        CheckpointError: `folder` holds something else, or the place cannot be written.
    """
    card = _json(_CARD_CONTENT | {"seed": seed} | ({} if sizes == TINY else {"sizes": asdict(sizes)}))
    if _holds(folder, card):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as workshop:
            new = Path(workshop) / "model"
            new.mkdir()
            _write_files(new, seed, sizes)
            (new / CARD).write_text(card, encoding="utf-8")
            os.replace(new, folder)
    except OSError as error:
        if _holds(folder, card):  # another process has just made the same
            return folder
        reason = "is in use for something else" if os.path.exists(folder) else f"cannot be written ({error.strerror})"
        raise CheckpointError(f"folder: {folder} {reason}; choose a folder that does not exist yet") from None
    return folder


def _holds(folder: Path, card: str) -> bool:
    """Whether the folder is this very checkpoint, and every file of it is there."""
    try:
        if (folder / CARD).read_text(encoding="utf-8", errors="replace") != card:
            return False
        return all((folder / name).stat().st_size > 0 for name in _FILES)
    except OSError:
        return False


def _write_files(folder: Path, seed: int, sizes: Sizes) -> None:
    for part in ("llm", "flow", "hift"):
        with (folder / f"{part}.pt").open("wb") as file:
            torch.save(babble_state(part, seed, sizes), file)
    speakers = {
        name: SpeakerEntry(torch.from_numpy(draw((SPEAKER_SIZE,), seed, f"speaker/{name}"))) for name in SPEAKERS
    }
    write_spk2info(folder / SPEAKERS_FILE, speakers)
    (folder / SPEAKER_ENCODER).write_bytes(_speaker_encoder(seed))
    (folder / SPEECH_TOKENIZER).write_bytes(_speech_tokenizer(seed))
    (folder / YAML_OF[Generation.V2]).write_text(_settings(sizes), encoding="utf-8")
    _write_backbone(folder / BACKBONE, sizes)


def _speaker_encoder(seed: int) -> bytes:
    """input [1, frames, 80] → output [1, 192]: the mean size of each band, mixed by a random matrix."""
    mix = draw((NUM_MEL_BINS, SPEAKER_SIZE), seed, "campplus") / np.float32(np.sqrt(NUM_MEL_BINS))
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
    mix = draw((_TOKEN_DIGITS, _WHISPER_BINS, _FRAMES_PER_TOKEN), seed, "speech_tokenizer")
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


def _write_backbone(folder: Path, sizes: Sizes) -> None:
    """The language model's settings and a byte-level Qwen2 tokenizer without merges: one token per UTF-8 byte."""
    folder.mkdir()
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
        "vocab.json": {symbol: number for number, symbol in enumerate(_byte_symbols())},
    }
    for name, content in files.items():
        (folder / name).write_text(_json(content), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


def _settings(sizes: Sizes) -> str:
    """cosyvoice2.yaml."""
    return f"""\
sample_rate: 24000
llm: !new:cosyvoice.llm.llm.Qwen2LM
    llm_input_size: {sizes.lm_width}
    llm_output_size: {sizes.lm_width}
    speech_token_size: {weights.NUM_SPEECH_TOKENS}
    mix_ratio: [5, 15]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder {{pretrain_path: ''}}
    sampling: !name:cosyvoice.utils.common.ras_sampling {{top_p: 0.8, top_k: 25, win_size: 10, tau_r: 0.1}}
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: {sizes.encoder_width}
    output_size: {NUM_MEL_BINS}
    spk_embed_dim: {SPEAKER_SIZE}
    vocab_size: {weights.NUM_SPEECH_TOKENS}
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
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: {NUM_MEL_BINS}
    base_channels: {sizes.vocoder_width}
    nb_harmonics: {weights.NUM_HARMONICS}
    sampling_rate: 24000
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: {list(weights.UPSAMPLE_RATES)}
    upsample_kernel_sizes: {list(weights.UPSAMPLE_KERNELS)}
    istft_params: {{n_fft: {weights.N_FFT}, hop_len: 4}}
    resblock_kernel_sizes: {list(weights.RESBLOCK_KERNELS)}
    resblock_dilation_sizes: {[list(weights.DILATIONS)] * 3}
    source_resblock_kernel_sizes: {list(weights.SOURCE_RESBLOCK_KERNELS)}
    source_resblock_dilation_sizes: {[list(weights.DILATIONS)] * 3}
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        in_channels: {NUM_MEL_BINS}
        cond_channels: {sizes.f0_width}
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    {{n_fft: 1920, num_mels: {NUM_MEL_BINS}, sampling_rate: 24000, hop_size: 480, win_size: 1920, fmin: 0, fmax: 8000}}
"""


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, those that print as themselves first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    num_others = _NUM_BYTES - len(printable)
    return [chr(byte) for byte in printable] + [chr(_NUM_BYTES + number) for number in range(num_others)]


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
