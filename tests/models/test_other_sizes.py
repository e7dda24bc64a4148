"""Checkpoints of other sizes than the recorded ones: they load, run, and compute alone what they compute together.

Greedy decoding is held against a plain loop in float64, without caches, that reads official weights by official names
and shares no code with the package.
"""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

from benchmarks.plain.flow import FlowInput, whole_mels
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import Conditioning, EngineRequest, InputMode, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import Models, build_models

PARITY = Path(__file__).parents[1] / "data" / "parity"
NUM_SPEECH_TOKENS = 6561
SMALL = EngineSettings(slots=4, state_bytes=64 << 20)


@dataclass(frozen=True)
class Variant:
    """How a checkpoint differs from v2-tiny.

    yaml: (pattern, replacement), each must fit; shapes: (pattern of a key, its whole shape or {old size: new size}),
    the first that fits counts; dropped: pattern of keys that are left out; backbone: the language model's settings.
    """

    yaml: tuple[tuple[str, str], ...] = ()
    shapes: tuple[tuple[str, list[int] | dict[int, int]], ...] = ()
    dropped: str = "(?!)"
    backbone: dict[str, float] = field(default_factory=dict)
    options: tuple[str, ...] = ()


VARIANTS = {
    "language_model": Variant(
        backbone={
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "num_hidden_layers": 2,
            "intermediate_size": 160,
            "vocab_size": 700,
            "rope_theta": 1e4,
            "rms_norm_eps": 1e-3,
        },
        shapes=((r"^(llm|speech_embedding)", {64: 96, 128: 160, 32: 48, 592: 700}),),
        dropped=r"layers\.2\.",
    ),
    "flow": Variant(
        yaml=(
            (r"(CausalMaskedDiffWithXvec\n    input_size:) 64", r"\1 32"),
            (r"(rel_selfattn'\n        input_size:) 64", r"\1 32"),
            (r"(UpsampleConformerEncoder\n        output_size:) 64", r"\1 48"),
            ("attention_heads: 4", "attention_heads: 3"),
            ("linear_units: 128", "linear_units: 96"),
            ("num_blocks: 2", "num_blocks: 1"),
            ("chunk_size: 25", "chunk_size: 10"),
            ("inference_cfg_rate: 0.7", "inference_cfg_rate: 0.5"),
            (r"channels: \[64\]", "channels: [32]"),
            ("attention_head_dim: 32", "attention_head_dim: 8"),
            (r"(?<!num_)n_blocks: 2", "n_blocks: 1"),
            ("num_mid_blocks: 3", "num_mid_blocks: 2"),
            ("num_heads: 2", "num_heads: 3"),
        ),
        shapes=(
            (r"^input_embedding", [NUM_SPEECH_TOKENS, 32]),
            (r"^encoder\.embed\.out\.0\.weight", [48, 32]),
            (r"\.pos_bias_[uv]", [3, 16]),
            (r"^encoder", {64: 48, 128: 96}),
            (r"attn1\.to_[qkv]", [24, 32]),
            (r"attn1\.to_out\.0\.weight", [32, 24]),
            (r"^decoder\.estimator", {64: 32, 256: 128, 128: 64}),
        ),
        dropped=r"^encoder\.encoders\.1\.|up_encoders\.[23]\.|mid_blocks\.2\.|blocks\.\d\.1\.1\.",
    ),
    "vocoder": Variant(
        yaml=(
            ("base_channels: 64", "base_channels: 32"),
            ("nb_harmonics: 8", "nb_harmonics: 6"),
            (r"upsample_rates: \[8, 5, 3\]", "upsample_rates: [5, 8, 3]"),
            (r"upsample_kernel_sizes: \[16, 11, 7\]", "upsample_kernel_sizes: [11, 16, 7]"),
            ("cond_channels: 32", "cond_channels: 48"),
            ("audio_limit: 0.99", "audio_limit: 0.8"),
            ("lrelu_slope: 0.1", "lrelu_slope: 0.2"),
            ("nsf_alpha: 0.1", "nsf_alpha: 0.2"),
            ("fmax: 8000", "fmax: null"),
        ),
        shapes=(
            (r"^m_source.*weight", [1, 7]),
            (r"^ups\.0.*original1", [32, 16, 11]),
            (r"^ups\.1.*original1", [16, 8, 16]),
            (r"^ups\.2.*original1", [8, 4, 7]),
            (r"^source_downs\.0\.weight", [16, 18, 48]),
            (r"^f0_predictor", {32: 48}),
            (r"^(conv_|ups|source_downs|source_resblocks|resblocks)", {64: 32, 32: 16, 16: 8, 8: 4}),
        ),
        options=("--legacy-weight-norm",),
    ),
    "lookahead": Variant(
        yaml=(("pre_lookahead_len: 3", "pre_lookahead_len: 2"), (r"mix_ratio: \[5, 15\]", "mix_ratio: [4, 12]")),
        shapes=((r"pre_lookahead_layer\.conv1\.weight", [64, 64, 3]),),
    ),
}


class Checkpoint(NamedTuple):
    """A variant's networks, and what the plain loop reads: the backbone's settings and llm.pt in float64."""

    models: Models
    backbone: dict[str, float]
    llm: dict[str, torch.Tensor]


@pytest.fixture(scope="module", params=list(VARIANTS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param)
    backbone = write(VARIANTS[request.param], folder)
    llm = torch.load(folder / "llm.pt", weights_only=True)
    models = build_models(folder, torch.device("cpu"))
    return Checkpoint(models, backbone, {key: value.double() for key, value in llm.items()})


def write(variant: Variant, folder: Path) -> dict[str, float]:
    """Write the variant's checkpoint to `folder` with the reference's own maker; the backbone's settings."""
    manifest = json.loads((PARITY / "manifests" / "v2-tiny.json").read_text(encoding="utf-8"))
    for pattern, replacement in variant.yaml:
        manifest["yaml"]["text"], found = re.subn(pattern, replacement, manifest["yaml"]["text"])
        assert found, pattern
    manifest["hf_config"].update(variant.backbone)
    for file, rows in manifest["files"].items():
        kept = [row for row in rows if not re.search(variant.dropped, row["key"])]
        manifest["files"][file] = [row | {"shape": resized(row, variant)} for row in kept]
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_checkpoint", str(path), str(folder), "--seed", "5", *variant.options])
        runpy.run_path(str(PARITY / "make_checkpoint.py"), run_name="__main__")
    return manifest["hf_config"]


def resized(row: dict, variant: Variant) -> list[int]:
    for pattern, shape in variant.shapes:
        if re.search(pattern, row["key"]):
            return shape if isinstance(shape, list) else [shape.get(size, size) for size in row["shape"]]
    return row["shape"]


def ids(count: int, below: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, below, count).tolist())


def voice(prompt_text: tuple[int, ...] = (), prompt_speech: tuple[int, ...] = ()) -> Conditioning:
    """A voice whose flow hears the same prompt as its language model."""
    return Conditioning(
        embedding=torch.randn(192, generator=torch.Generator().manual_seed(0)),
        lm_prompt_text=prompt_text,
        lm_prompt_tokens=prompt_speech,
        flow_tokens=torch.tensor(prompt_speech, dtype=torch.int64),
        flow_mel=torch.zeros(2 * len(prompt_speech), 80),
    )


@pytest.mark.slow
def test_greedy_decoding(checkpoint):
    def greedy(scores, state):
        return scores.argmax(dim=-1)

    prompted = voice(ids(4, 500, 2), ids(9, NUM_SPEECH_TOKENS, 3))
    requests = [
        SegmentRequest(voice, text=text, sampling=SamplingParams(max_ratio=5.0))
        for voice, text in (
            (prompted, ids(6, 500, 1)),
            (voice(), ids(2, 500, 4)),
            (voice((), ids(17, NUM_SPEECH_TOKENS, 6)), ids(4, 500, 5)),
        )
    ]
    with Engine(checkpoint.models, SMALL, official=True, chooser=greedy) as engine:
        spoken = engine.submit(EngineRequest(tuple(requests))).result()
    assert [list(tokens) for tokens in spoken.tokens] == [plain_decode(checkpoint, one, ratio=5) for one in requests]


@pytest.mark.parametrize("chunked", [False, True])
@torch.inference_mode()
@pytest.mark.slow
def test_flow_together_and_alone(checkpoint, chunked):
    flow = checkpoint.models.flow
    generator = torch.Generator().manual_seed(0)
    ahead = checkpoint.models.config.flow.encoder.lookahead
    items = [
        FlowInput(
            torch.tensor(ids(tokens + prompt, NUM_SPEECH_TOKENS, tokens)),
            torch.randn(2 * prompt, 80, generator=generator),
            torch.randn(192, generator=generator),
            final,
        )
        for tokens, prompt, final in ((21, 0, True), (14, 9, False), (ahead + 1, 4, False))
    ]
    mels = whole_mels(flow, items, chunked)
    assert [len(mel) for mel in mels] == [42, 2 * (14 - ahead), 2]
    for mel, item in zip(mels, items, strict=True):
        torch.testing.assert_close(mel, whole_mels(flow, [item], chunked)[0], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_frames_of_a_chunk_do_not_change_when_more_arrives(checkpoint):
    flow, encoder = checkpoint.models.flow, checkpoint.models.config.flow.encoder
    tokens, embedding = torch.tensor(ids(4 * encoder.chunk, NUM_SPEECH_TOKENS, 7)), torch.ones(192)
    prompt = torch.randn(2 * encoder.chunk, 80, generator=torch.Generator().manual_seed(5))
    whole = whole_mels(flow, [FlowInput(tokens, prompt, embedding)], True)[0]
    for spoken in (encoder.chunk, 2 * encoder.chunk):
        head = FlowInput(tokens[: encoder.chunk + spoken + encoder.lookahead], prompt, embedding, final=False)
        torch.testing.assert_close(whole_mels(flow, [head], True)[0], whole[: 2 * spoken], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_vocoder_together_and_alone(checkpoint):
    vocoder = checkpoint.models.vocoder
    generator = torch.Generator().manual_seed(0)
    mel = torch.randn(2, 80, 13, generator=generator) - 2
    lengths = torch.tensor([13, 9])
    # Phases are sums of pitches: the last bit of a pitch shows in the waveform, so the pitch is compared by itself.
    f0 = vocoder.f0(mel, lengths)
    source = vocoder.source(f0, torch.randn(2, 13 * vocoder.config.samples_per_frame, 1, generator=generator))
    waves = vocoder.decode(mel, source, lengths)
    for row, frames in enumerate(lengths.tolist()):
        one, samples = mel[row : row + 1, :, :frames], frames * vocoder.config.samples_per_frame
        torch.testing.assert_close(f0[row, :frames], vocoder.f0(one, None)[0], atol=1e-2, rtol=0)
        alone = vocoder.decode(one, source[row : row + 1, :, :samples])[0]
        assert alone.shape == (samples,)
        assert alone.std() > 1e-3
        torch.testing.assert_close(waves[row, :samples], alone, atol=5e-5, rtol=0)


@pytest.mark.slow
def test_whole_and_streamed_speech(checkpoint):
    models = checkpoint.models
    sampling = SamplingParams(min_ratio=3.0, max_ratio=3.0)
    request = SegmentRequest(voice((65, 66), ids(20, NUM_SPEECH_TOKENS, 1)), text=ids(12, 256, 2), sampling=sampling)
    with Engine(models, SMALL) as engine:
        whole = engine.submit(EngineRequest((request,))).result()
        assert len(whole.samples) == len(whole.tokens[0]) * 2 * models.config.vocoder.samples_per_frame
        for policy in (ChunkPolicy.low_latency(), ChunkPolicy.official()):
            handle = engine.submit(EngineRequest((request,), policy))
            chunks = list(handle)
            assert len(chunks) > 1
            assert sum(len(chunk.samples) for chunk in chunks) == len(whole.samples)
            assert handle.result().tokens == whole.tokens
        first = replace(request, text=request.text[:7])
        arriving = engine.submit(EngineRequest((first,), ChunkPolicy.low_latency(), InputMode.TOKENS))
        arriving.text.push(request.text[7:])
        arriving.text.close()
        pieces = list(arriving)
    assert pieces[-1].final
    assert all(np.isfinite(piece.samples).all() for piece in pieces)


@pytest.mark.slow
def test_a_stream_of_blocks_is_the_same_with_and_without_state(checkpoint):
    """The past that is read from memory is the past that would be computed again, for every shape of the networks."""
    tokens = ids(60, NUM_SPEECH_TOKENS, 8)
    request = SegmentRequest(voice((), ids(33, NUM_SPEECH_TOKENS, 1)), speech_tokens=tokens)
    spoken = []
    for settings in (SMALL, EngineSettings(slots=4, state_bytes=0)):
        with Engine(checkpoint.models, settings, source_noise=False) as engine:
            spoken.append(engine.submit(EngineRequest((request,), ChunkPolicy.low_latency())).result().samples)
    kept, recomputed = spoken
    assert kept.shape == recomputed.shape
    error = np.sqrt(np.square(kept - recomputed).mean() / np.square(recomputed).mean())
    assert error < 0.02


def linear(state: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    y = x @ state[f"{name}.weight"].T
    return y + state[f"{name}.bias"] if f"{name}.bias" in state else y


def plain_decode(checkpoint: Checkpoint, request: SegmentRequest, ratio: int) -> list[int]:
    """Greedy decoding by the official rules; every step computes the whole sequence anew."""
    state = checkpoint.llm
    text, speech, control = (
        state[f"{name}.weight"] for name in ("llm.model.model.embed_tokens", "speech_embedding", "llm_embedding")
    )
    given = request.conditioning
    texts = text[[*given.lm_prompt_text, *request.text]]
    rows = [control[:1], texts, control[1:], speech[list(given.lm_prompt_tokens)]]
    x, decoded = torch.cat(rows), []
    for step in range(ratio * len(request.text)):
        scores = linear(state, "llm_decoder", plain_qwen2(checkpoint, x)[-1])
        if step < 2 * len(request.text):
            scores[NUM_SPEECH_TOKENS] = -math.inf
        best = int(scores.argmax())
        if best >= NUM_SPEECH_TOKENS:
            break
        decoded.append(best)
        x = torch.cat((x, speech[[best]]))
    return decoded


def plain_qwen2(checkpoint: Checkpoint, x: torch.Tensor) -> torch.Tensor:
    state, config = checkpoint.llm, checkpoint.backbone
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    rate = config["rope_theta"] ** -(torch.arange(0, size, 2, dtype=x.dtype) / size)
    turn = torch.polar(torch.ones(len(x), size // 2, dtype=x.dtype), torch.arange(len(x))[:, None] * rate)

    def norm(name, x):
        return x / (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * state[f"{name}.weight"]

    def rotated(x):
        turned = torch.complex(*x.chunk(2, dim=-1)) * turn
        return torch.cat((turned.real, turned.imag), dim=-1)

    future = torch.ones(len(x), len(x)).triu(1).bool()
    for layer in range(config["num_hidden_layers"]):
        name = f"llm.model.model.layers.{layer}"
        h = norm(f"{name}.input_layernorm", x)
        query, key, value = (linear(state, f"{name}.self_attn.{part}_proj", h).split(size, dim=-1) for part in "qkv")
        out = []
        for head in range(heads):
            group = head * groups // heads
            scores = rotated(query[head]) @ rotated(key[group]).T / math.sqrt(size)
            out.append(scores.masked_fill(future, -math.inf).softmax(-1) @ value[group])
        x = x + linear(state, f"{name}.self_attn.o_proj", torch.cat(out, dim=-1))
        h = norm(f"{name}.post_attention_layernorm", x)
        gate = silu(linear(state, f"{name}.mlp.gate_proj", h))
        x = x + linear(state, f"{name}.mlp.down_proj", gate * linear(state, f"{name}.mlp.up_proj", h))
    return norm("llm.model.model.norm", x)
