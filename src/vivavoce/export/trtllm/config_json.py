"""`config.json` of a TensorRT-LLM checkpoint: the keys that its loader wants, and no others."""

from __future__ import annotations

from typing import Any

import torch

from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.sizes import QwenSizes

_GPUS_PER_NODE = 8
_GROUP_SIZE = 128
_SEQUENCE_LENGTH = 8192
_USUAL_ALPHA = 0.5
WEIGHT_ONLY = {"int8": "W8A16", "int4": "W4A16"}


def checkpoint_config(sizes: QwenSizes, options: ConvertOptions, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`.

    `mapping` and `quantization` become keyword arguments in the loader: one key more than it knows is an error.
    """
    return {
        "architecture": "Qwen2ForCausalLM",
        "dtype": str(dtype).removeprefix("torch."),
        "logits_dtype": "float32",
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_size": sizes.head_size,
        "hidden_act": "silu",
        "norm_epsilon": sizes.rms_norm_eps,
        "max_position_embeddings": sizes.max_positions,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": sizes.rope_theta,
        "rotary_scaling": None,
        "rotary_embedding_dim": sizes.head_size,
        "seq_length": _SEQUENCE_LENGTH,
        "qwen_type": "qwen2",
        "tie_word_embeddings": sizes.tied,
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


def build_command(checkpoint: str, engine: str, dtype: torch.dtype) -> tuple[str, ...]:
    """What turns a checkpoint into an engine, where TensorRT-LLM is installed: program and arguments."""
    return (
        "trtllm-build",
        "--checkpoint_dir",
        checkpoint,
        "--output_dir",
        engine,
        "--max_batch_size",
        "16",
        "--max_num_tokens",
        "32768",
        "--gemm_plugin",
        str(dtype).removeprefix("torch."),
    )


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
