"""The variables of the model repository's templates: what each means, what it may be, what it is if nobody says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vivavoce.errors import InvalidRequest

TENSOR_TYPES = ("TYPE_FP16", "TYPE_BF16", "TYPE_FP32")
CHUNK_STRATEGIES = ("exponential", "time_based", "equal", "low_latency", "official")
"""The first three are the original deployment's."""

_SWITCHES = {"true": "true", "1": "true", "false": "false", "0": "false"}
_NUMBER = re.compile(r"\d+(\.\d+)?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Variable:
    """One `${name}` of the templates.

    default: what it is if nobody says; None: it must be given. An empty one leaves the choice to who reads it.
    check: a value as it is typed → as it is written into the file; raises ValueError with what is wanted.
    """

    name: str
    meaning: str
    default: str | None
    check: Callable[[str], str]

    def checked(self, value: str) -> str:
        """The value as it stands in a filled file.

        Raises:
            InvalidRequest: it cannot be one; the message says what it may be.
        """
        if self.default is None and not value:
            raise InvalidRequest(f"{self.name}: is empty; give a value")
        try:
            return self.check(value)
        except ValueError as wanted:
            raise InvalidRequest(f"{self.name}: {value!r} cannot be; give {wanted}") from None


def _text(value: str) -> str:
    if _UNPRINTABLE.search(value):
        raise ValueError("one line of text")
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _count(least: int) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not value.strip().isdecimal() or int(value) < least:
            raise ValueError(f"a whole number from {least} on")
        return str(int(value))

    return check


def _switch(value: str) -> str:
    # The documents write True, Triton's text format and the models read true.
    try:
        return _SWITCHES[value.strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _gigabytes(value: str) -> str:
    if value and not _NUMBER.fullmatch(value):
        raise ValueError("gigabytes such as 8, or nothing")
    return value


def _fraction(value: str) -> str:
    if not _NUMBER.fullmatch(value) or not 0 < float(value) <= 1:
        raise ValueError("a number above 0, and 1 at most")
    return value


def _one_of(*choices: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return check


_DEPLOYMENT = (
    Variable("model_dir", "The model's folder, in the official layout.", None, _text),
    Variable("llm_tokenizer_dir", "Folder of the text tokenizer; empty: the model's own.", "", _text),
    Variable("device", "Where the models compute: auto, cpu, cuda or cuda:N.", "auto", _text),
    Variable("triton_max_batch_size", "Requests that the server joins into a batch.", "16", _count(1)),
    Variable("max_queue_delay_microseconds", "How long a request waits for others of its batch.", "0", _count(0)),
    Variable("max_queue_size", "Requests that may wait for tensorrt_llm; 0: any number.", "0", _count(0)),
    Variable("decoupled_mode", "Whether audio is streamed.", "true", _switch),
    Variable("bls_instance_num", "Instances of cosyvoice2.", "4", _count(1)),
    Variable("dynamic_chunk_strategy", "How streams are cut.", "exponential", _one_of(*CHUNK_STRATEGIES)),
    Variable("use_spk2info_cache", "Speak in stored voices only.", "false", _switch),
    Variable("default_voice", "Who speaks if a request names nobody; empty: the model's first.", "", _text),
    Variable("voices_dir", "Where further voices are stored; empty: the user's own folder.", "", _text),
    Variable("memory_gb", "GPU memory that token2wav may take, its weights included; empty: a share.", "", _gigabytes),
    Variable("triton_backend", "What runs tensorrt_llm.", "python", _one_of("python", "tensorrtllm")),
    Variable("llm_backend", "What tensorrt_llm in Python computes with.", "vivavoce", _one_of("vivavoce", "llmapi")),
)

_ENGINE = (
    Variable("engine_dir", "Folder of the built engine, or of the merged Hugging Face model.", "", _text),
    Variable("tokenizer_dir", "Folder of the merged model's tokenizer.", "", _text),
    Variable("batching_strategy", "How the engine batches.", "inflight_fused_batching", _text),
    Variable("max_beam_width", "Beams of a request.", "1", _count(1)),
    Variable("max_tokens_in_paged_kv_cache", "Tokens that the engine's cache holds.", "2560", _count(1)),
    Variable("max_attention_window_size", "Tokens that a token looks back.", "2560", _count(1)),
    Variable("kv_cache_free_gpu_mem_fraction", "Share of the free GPU memory for the cache.", "0.5", _fraction),
    Variable("exclude_input_in_output", "Answer with new tokens only.", "true", _switch),
    Variable("enable_kv_cache_reuse", "Keep the cache of equal beginnings.", "false", _switch),
    Variable("logits_datatype", "Type of logits that are asked for.", "TYPE_FP32", _one_of(*TENSOR_TYPES)),
    Variable("encoder_input_features_data_type", "Unused here.", "TYPE_FP16", _one_of(*TENSOR_TYPES)),
)

_LEFT_TO_THE_ENGINE = (
    "batch_scheduler_policy",
    "cancellation_check_period_ms",
    "cross_kv_cache_fraction",
    "cuda_graph_cache_size",
    "cuda_graph_mode",
    "decoding_mode",
    "eagle_choices",
    "enable_chunked_context",
    "enable_context_fmha_fp32_acc",
    "encoder_engine_dir",
    "gpu_device_ids",
    "gpu_weights_percent",
    "guided_decoding_backend",
    "iter_stats_max_iterations",
    "kv_cache_host_memory_bytes",
    "kv_cache_onboard_blocks",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
    "lookahead_window_size",
    "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes",
    "lora_cache_max_adapter_size",
    "lora_cache_optimal_adapter_size",
    "lora_prefetch_dir",
    "medusa_choices",
    "multi_block_mode",
    "normalize_log_probs",
    "participant_ids",
    "request_stats_max_iterations",
    "sink_token_length",
    "speculative_decoding_fast_logits",
    "stats_check_period_ms",
    "xgrammar_tokenizer_info_path",
)
"""Settings of TensorRT-LLM that speech has no opinion on: empty, which its backend reads as not given."""

VARIABLES: Mapping[str, Variable] = MappingProxyType(
    {
        variable.name: variable
        for variable in (
            *_DEPLOYMENT,
            *_ENGINE,
            *(Variable(name, "TensorRT-LLM's own; empty: its default.", "", _text) for name in _LEFT_TO_THE_ENGINE),
        )
    }
)
"""Every variable by its name."""
