"""The settings files of the merged model: two as for every Qwen2, and one for what these have no place for."""

from __future__ import annotations

from typing import Any

import torch

from vivavoce.checkpoint.config import LMConfig
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary

TEMPERATURE = 1.0


def model_config(config: LMConfig, vocabulary: MergedVocabulary, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`: a plain Qwen2.

    transformers 5 has new names for the rotary base and the dtype; other readers know the old ones, so both are there.
    """
    name = str(dtype).removeprefix("torch.")
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "vocab_size": vocabulary.padded_size,
        "tie_word_embeddings": False,
        "bos_token_id": vocabulary.sos,
        "eos_token_id": list(vocabulary.eos_ids),
        "dtype": name,
        "torch_dtype": name,
    }


def generation_config(config: LMConfig, vocabulary: MergedVocabulary, pad_id: int | None) -> dict[str, Any]:
    """The content of `generation_config.json`: the model's own nucleus, and what ends speech."""
    return {
        "do_sample": True,
        "temperature": TEMPERATURE,
        "top_p": config.sampling.top_p,
        "top_k": config.sampling.top_k,
        "bos_token_id": vocabulary.sos,
        "eos_token_id": list(vocabulary.eos_ids),
        "pad_token_id": pad_id,
    }


def speech_settings(config: LMConfig) -> dict[str, Any]:
    """The content of `speech_lm.json`: CosyVoice2's own settings, by the names of its yaml."""
    sampling = config.sampling
    return {
        "mix_ratio": [config.mix_text, config.mix_speech],
        "sampling": {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "win_size": sampling.win_size,
            "tau_r": sampling.tau_r,
        },
    }
