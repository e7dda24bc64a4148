"""Make random ONNX files for a checkpoint's speaker encoder and speech tokenizer."""

from __future__ import annotations

import zlib

import numpy as np

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.spk2info import EMBEDDING_SIZE, NUM_MEL_BINS
from vivavoce_runtimes.onnx_writer import FLOAT, INT32, Port, node, onnx_model

_WHISPER_BINS = 128
_TOKEN_BASE = 3


def draw(shape: tuple[int, ...], seed: int, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Standard normal float32 values that depend on `seed` and `name` only."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return generator.standard_normal(shape, dtype=np.float32)


def speaker_encoder(seed: int) -> bytes:
    """input [1, frames, 80] → output [1, 192]: the mean absolute value of each band times a random matrix."""
    mix = draw((NUM_MEL_BINS, EMBEDDING_SIZE), seed, "campplus") / np.float32(np.sqrt(NUM_MEL_BINS))
    return onnx_model(
        # The features are centred, so the bands' means without absolute values are zero.
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
    """feats [1, 128, frames], feats_length [1] → indices [1, ceil(feats_length / 4)], CosyVoice 1: / 2.

    Finite scalar quantisation (arXiv:2309.15505): the frames of a token are projected to 8 values (CosyVoice 1: 7),
    each is rounded to -1, 0 or 1, and the token is the number with these base-3 digits.
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
