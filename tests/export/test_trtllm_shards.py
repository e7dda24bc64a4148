"""Sharded checkpoints, put together by a reader of its own: bytes, NumPy and TensorRT-LLM's rules, none of our code.

Names and rules are those of TensorRT-LLM 0.17's checkpoints (its documentation's "TensorRT-LLM Checkpoint"): rank = pp
rank · tp + tp rank, layers are numbered from 0 in each stage, q, k and v are split one by one, `attention.dense` and
`mlp.proj` along their inputs, all else along its outputs, tables along the vocabulary in equal pieces.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from trtllm_goldens import DATA

from vivavoce_export.hf_folder import open_hugging_face
from vivavoce_export.trtllm.convert import convert
from vivavoce_export.trtllm.options import ConvertOptions

Array = NDArray[np.float32]
SPLITS = {
    "fp16_tp2": ConvertOptions(dtype="float16", tp=2),
    "fp16_pp2": ConvertOptions(dtype="float16", pp=2),
    "fp16_tp2_pp2": ConvertOptions(dtype="float16", tp=2, pp=2),
    "fp16_tp4_kvdup": ConvertOptions(dtype="float16", tp=4),
    "fp16_tp2_embpar0": ConvertOptions(dtype="float16", tp=2, parallel_embedding=True),
}
MODELS = ("a_h64", "b_h128_tied")
ALONG_INPUTS = ("attention.dense.weight", "mlp.proj.weight")
NORMS = ("input_layernorm.weight", "post_layernorm.weight")


def tensors_of(path: Path) -> dict[str, Array]:
    """A safetensors file: the header's length, the header, the tensors' bytes."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, start, found = json.loads(content[8 : 8 + size]), 8 + size, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = content[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[entry["dtype"]]).astype(np.float32)
        found[name] = values.reshape(entry["shape"])
    return found


def whole_of(folder: Path) -> dict[str, Array]:
    """All matrices of a checkpoint, by TensorRT-LLM's names with the layers' numbers in the whole model."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head, per_stage, vocabulary = (
        config["hidden_size"] // heads,
        config["num_hidden_layers"] // pp,
        config["vocab_size"],
    )
    found: dict[str, Array] = {}
    for stage in range(pp):
        ranks = [tensors_of(folder / f"rank{stage * tp + rank}.safetensors") for rank in range(tp)]
        for name in ranks[0]:
            parts = [rank[name] for rank in ranks]
            if name.startswith("transformer.layers."):
                number, _, inner = name.removeprefix("transformer.layers.").partition(".")
                name = f"transformer.layers.{int(number) + stage * per_stage}.{inner}"
                if inner in NORMS:
                    found[name] = same(parts)
                elif inner in ALONG_INPUTS:
                    found[name] = np.concatenate(parts, axis=1)
                elif inner.startswith("attention.qkv."):
                    found[name] = qkv_of(parts, heads, kv_heads, head)
                else:
                    found[name] = np.concatenate(parts)
            elif name == "lm_head.weight" or (name.endswith("embedding.weight") and config["use_parallel_embedding"]):
                found[name] = np.concatenate(parts)[:vocabulary]
            else:
                found[name] = same(parts)
    return found


def same(parts: list[Array]) -> Array:
    """What every rank has whole."""
    assert all(np.array_equal(part, parts[0]) for part in parts)
    return parts[0]


def qkv_of(parts: list[Array], heads: int, kv_heads: int, head: int) -> Array:
    """q, k and v one after the other; with more ranks than key-value heads some have copies of one."""
    tp = len(parts)
    own_q, own_kv = heads // tp * head, max(1, kv_heads // tp) * head
    cut = [np.split(part, [own_q, own_q + own_kv]) for part in parts]
    q = [one[0] for one in cut]
    copies = max(1, tp // kv_heads)
    for place in (1, 2):
        for rank in range(tp):
            assert np.array_equal(cut[rank][place], cut[rank // copies * copies][place])
    k, v = ([cut[rank][place] for rank in range(0, tp, copies)] for place in (1, 2))
    return np.concatenate([*q, *k, *v])


def expected(model: str) -> dict[str, Array]:
    """The same of the Hugging Face folder that the checkpoints were made from."""
    hugging = tensors_of(DATA / model / "hf" / "model.safetensors")
    layers = 1 + max(int(name.split(".")[2]) for name in hugging if name.startswith("model.layers."))
    table = hugging["model.embed_tokens.weight"]
    found = {
        "transformer.vocab_embedding.weight": table,
        "transformer.ln_f.weight": hugging["model.norm.weight"],
        "lm_head.weight": hugging.get("lm_head.weight", table),
    }
    names = {
        "input_layernorm.weight": "input_layernorm.weight",
        "post_layernorm.weight": "post_attention_layernorm.weight",
        "attention.dense.weight": "self_attn.o_proj.weight",
        "mlp.fc.weight": "mlp.gate_proj.weight",
        "mlp.gate.weight": "mlp.up_proj.weight",
        "mlp.proj.weight": "mlp.down_proj.weight",
    }
    for layer in range(layers):
        theirs, ours = f"model.layers.{layer}.", f"transformer.layers.{layer}."
        found |= {ours + name: hugging[theirs + other] for name, other in names.items()}
        for kind in ("weight", "bias"):
            parts = [hugging[f"{theirs}self_attn.{one}_proj.{kind}"] for one in "qkv"]
            found[f"{ours}attention.qkv.{kind}"] = np.concatenate(parts)
    return found


def check(folder: Path, model: str) -> None:
    found, wanted = whole_of(folder), expected(model)
    derived = ("embed_positions", "embed_positions_for_gpt_attention", "rotary_inv_freq")
    found = {name: values for name, values in found.items() if not name.endswith(derived)}
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.array_equal(found[name], values.astype(np.float16).astype(np.float32)), name


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("model", MODELS)
def test_the_ranks_of_a_split_are_the_whole_model(model: str, name: str, tmp_path: Path) -> None:
    convert(open_hugging_face(DATA / model / "hf"), tmp_path / name, SPLITS[name])
    check(tmp_path / name, model)


@pytest.mark.skipif("VIVAVOCE_REFERENCE" not in os.environ, reason="VIVAVOCE_REFERENCE names no recorded checkpoints")
@pytest.mark.parametrize("name", SPLITS)
def test_so_are_those_of_the_recorded_checkpoints(name: str) -> None:
    check(Path(os.environ["VIVAVOCE_REFERENCE"]) / "trtllm" / "a_h64" / name, "a_h64")
