"""The options of a conversion, and the checkpoint's `config.json`, made from them and from the model's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce_export.files import AUTO, DTYPES, check_dtype
from vivavoce_export.merged_lm import QwenSizes

BITS = {"int8": 8, "int4": 4}
GPU_LAYOUTS = ("sm80", "sm90")
"""sm80: for GPUs of compute capability 7.5 to 8.9. sm90: for Hopper, a layout that only TensorRT-LLM 0.17 reads."""
WEIGHT_ONLY_MULTIPLE = 64
"""TensorRT-LLM's kernels for int8 and int4 weights need matrix sizes that are multiples of this."""


@dataclass(frozen=True)
class ConvertOptions:
    """Raises `InvalidRequest` if a value is out of its range or two values contradict each other."""

    dtype: str = AUTO
    """float16, bfloat16, float32, or auto, which means float16 for a source in float32, else the source's dtype."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    weight_only: str | None = None
    """int8 or int4: quantise the large matrices. trtllm-build does it, unless `prequantize` is set."""
    prequantize: str | None = None
    """One of `GPU_LAYOUTS`: this conversion quantises the matrices, with the byte order of that GPU generation."""
    int8_kv_cache: bool = False
    parallel_embedding: bool = False
    """Split the embedding along the vocabulary, over the tensor-parallel GPUs."""
    smoothquant: float | None = None
    """SmoothQuant's alpha (arXiv:2211.10438): the share of the inputs' range that moves into the weights."""
    per_token: bool = False
    """Scale each row of the inputs by its own range while the engine runs; otherwise by the calibrated range."""
    per_channel: bool = False

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        for name, value in (("tp-size", self.tp), ("pp-size", self.pp), ("cp-size", self.cp)):
            if value < 1:
                raise InvalidRequest(f"{name}: {value} is below 1; give the number of GPUs")
        if self.cp > 1:
            raise InvalidRequest(
                f"cp-size: {self.cp} is not supported: this model's attention cannot be split along the text; "
                "leave it at 1, use --tp-size or --pp-size"
            )
        if self.weight_only is not None and self.weight_only not in BITS:
            raise InvalidRequest(f"weight-only-precision: {self.weight_only!r} is unknown; use {' or '.join(BITS)}")
        if self.prequantize is not None and self.prequantize not in GPU_LAYOUTS:
            raise InvalidRequest(f"prequantize: {self.prequantize!r} is unknown; use {' or '.join(GPU_LAYOUTS)}")
        if self.prequantize is not None and self.weight_only is None:
            raise InvalidRequest("prequantize: there is nothing to quantise; add --use-weight-only, or leave it out")
        if self.smoothquant is None:
            if self.per_token or self.per_channel:
                raise InvalidRequest("per-token, per-channel: belong to --smoothquant; add it, or leave them out")
        elif not 0 < self.smoothquant < 1:
            raise InvalidRequest(f"smoothquant: {self.smoothquant:g} is not between 0 and 1; 0.5 is usual")
        elif self.weight_only is not None:
            raise InvalidRequest("smoothquant: excludes --use-weight-only, both quantise the weights; choose one")

    @property
    def world(self) -> int:
        return self.tp * self.pp

    @property
    def needs_calibration(self) -> bool:
        return self.smoothquant is not None or self.int8_kv_cache

    def check_fits(self, sizes: QwenSizes) -> None:
        """Refuse a split that does not fit this model. The error has the reason and the possible splits."""
        if reason := _why_not_split(self.tp, sizes):
            fitting = [str(tp) for tp in range(1, sizes.num_heads + 1) if _why_not_split(tp, sizes) is None]
            raise InvalidRequest(f"tp-size: {self.tp} {reason}; use {' or '.join(fitting)}")
        if sizes.num_layers % self.pp:
            fitting = [str(pp) for pp in range(1, sizes.num_layers + 1) if sizes.num_layers % pp == 0]
            raise InvalidRequest(
                f"pp-size: {self.pp} does not divide the {sizes.num_layers} layers; use {', '.join(fitting)}"
            )
        if self.weight_only is not None and (reason := _why_not_weight_only(self.tp, sizes)):
            raise InvalidRequest(
                f"use-weight-only: {reason}; leave it out, or choose another --tp-size if that is the cause"
            )


def _why_not_split(tp: int, sizes: QwenSizes) -> str | None:
    if sizes.num_heads % tp:
        return f"does not divide the {sizes.num_heads} attention heads"
    if sizes.num_kv_heads % tp and tp % sizes.num_kv_heads:
        return f"neither divides the {sizes.num_kv_heads} key-value heads nor is a multiple of them"
    if sizes.intermediate_size % tp:
        return f"does not divide the {sizes.intermediate_size} channels of the MLP"
    return None


def _why_not_weight_only(tp: int, sizes: QwenSizes) -> str | None:
    kv_heads = max(sizes.num_kv_heads // tp, 1)
    widths = {
        "qkv": (sizes.num_heads // tp + 2 * kv_heads) * sizes.head_dim,
        "attention": sizes.hidden_size // tp,
        "hidden_size": sizes.hidden_size,
        "MLP": sizes.intermediate_size // tp,
    }
    for name, width in widths.items():
        if width % WEIGHT_ONLY_MULTIPLE:
            return (
                f"the kernels take multiples of {WEIGHT_ONLY_MULTIPLE} channels, and {name} has {width} on each GPU "
                f"at tp-size {tp}"
            )
    return None


def chosen_dtype(options: ConvertOptions, source: torch.dtype) -> torch.dtype:
    if options.dtype != AUTO:
        return DTYPES[options.dtype]
    return source if source in (torch.float16, torch.bfloat16) else torch.float16


_GPUS_PER_NODE = 8
_GROUP_SIZE = 128
_SEQUENCE_LENGTH = 8192
_USUAL_ALPHA = 0.5
WEIGHT_ONLY = {"int8": "W8A16", "int4": "W4A16"}
SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "norm_epsilon",
    "rope_theta": "rotary_base",
    "max_positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
}


def checkpoint_config(sizes: QwenSizes, options: ConvertOptions, dtype: torch.dtype) -> dict[str, Any]:
    """Make the checkpoint's `config.json`. TensorRT-LLM fails on unknown keys in `mapping` and `quantization`."""
    return {
        "architecture": "Qwen2ForCausalLM",
        "dtype": str(dtype).removeprefix("torch."),
        "logits_dtype": "float32",
        **{theirs: getattr(sizes, ours) for ours, theirs in SIZES.items()},
        "head_size": sizes.head_dim,
        "hidden_act": "silu",
        "position_embedding_type": "rope_gpt_neox",
        "rotary_scaling": None,
        "rotary_embedding_dim": sizes.head_dim,
        "seq_length": _SEQUENCE_LENGTH,
        "qwen_type": "qwen2",
        "attn_bias": True,
        "mlp_bias": False,
        "use_parallel_embedding": options.parallel_embedding,
        "embedding_sharding_dim": 0,
        "disable_weight_only_quant_plugin": False,
        "mapping": {
            "world_size": options.world,
            "tp_size": options.tp,
            "pp_size": options.pp,
            "cp_size": options.cp,
            "moe_tp_size": options.tp,
            "moe_ep_size": 1,
            "gpus_per_node": _GPUS_PER_NODE,
        },
        "quantization": {
            "quant_algo": _algorithm(options),
            "kv_cache_quant_algo": "INT8" if options.int8_kv_cache else None,
            "group_size": _GROUP_SIZE,
            "smoothquant_val": _USUAL_ALPHA if options.smoothquant is None else options.smoothquant,
            "clamp_val": None,
            "has_zero_point": False,
            "pre_quant_scale": False,
            "exclude_modules": None,
        },
    }


def read_checkpoint_config(config: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[QwenSizes, ConvertOptions]:
    """Return the sizes and options from which `config.json` was made; record: holds the options that it lacks."""
    try:
        mapping, quantization = config["mapping"], config["quantization"]
        algorithm = quantization["quant_algo"] or ""
        options = ConvertOptions(
            dtype=config["dtype"],
            tp=mapping["tp_size"],
            pp=mapping["pp_size"],
            weight_only={value: name for name, value in WEIGHT_ONLY.items()}.get(algorithm),
            prequantize=record.get("options", {}).get("prequantize"),
            int8_kv_cache=quantization["kv_cache_quant_algo"] == "INT8",
            parallel_embedding=config["use_parallel_embedding"],
            smoothquant=quantization["smoothquant_val"] if "_SQ_" in algorithm else None,
            per_token="PER_TOKEN" in algorithm,
            per_channel="PER_CHANNEL" in algorithm,
        )
        return QwenSizes(**{ours: config[theirs] for ours, theirs in SIZES.items()}), options
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"config.json: {error} is missing or wrong; convert the model again") from None


def build_command(checkpoint: str, engine: str, dtype: str) -> tuple[str, ...]:
    """Return the program and arguments that build an engine from a checkpoint, on a machine with TensorRT-LLM."""
    limits = ("--max_batch_size", "16", "--max_num_tokens", "32768")
    return "trtllm-build", "--checkpoint_dir", checkpoint, "--output_dir", engine, *limits, "--gemm_plugin", dtype


def _algorithm(options: ConvertOptions) -> str | None:
    if options.weight_only is not None:
        return WEIGHT_ONLY[options.weight_only]
    if options.smoothquant is None:
        return None
    weights = "PER_CHANNEL" if options.per_channel else "PER_TENSOR"
    if options.per_token:
        inputs = "_PER_TOKEN"
    else:
        inputs = "_PER_TENSOR" if options.per_channel else ""
    return f"W8A8_SQ_{weights}{inputs}_PLUGIN"
