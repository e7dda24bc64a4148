"""What becomes of every input of `tensorrt_llm` that is no matter of course: the one table, for both runtimes.

The tensors are those of TensorRT-LLM's own backend, so that its clients need no change. An input is honoured, or has
no effect because a result cannot depend on it here, or is refused: nothing that would change the result is ignored.

There is one exception, for the sake of the deployment that the models were published with, whose requests always say
`temperature` 0.8 and `repetition_penalty` 1.1: this package's own sampling takes these two values without effect. It
draws at temperature 1 from the nucleus and forbids repetitions by counting them (repetition-aware sampling), which is
how the models were made to be sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from vivavoce.doors.triton.models.language_model.source import Flavour
from vivavoce.errors import InvalidRequest

_TOLERANCE = 1e-6
"""Relative; numbers are sent in float32."""


class Effect(str, Enum):
    """What an input does."""

    HONOURED = "honoured"
    NONE = "no effect"
    """A result cannot depend on it."""
    OWN = "the model's own"
    """It is in the model already, so that the same is taken, and anything else is refused."""
    REFUSED = "refused"
    """Unless it asks for nothing."""


@dataclass(frozen=True)
class InputRule:
    """vivavoce, llmapi: the effect with each runtime; why: what is said to whoever is refused; harmless: values that
    are taken all the same, because they ask for nothing, or are the published deployment's.
    """

    vivavoce: Effect
    llmapi: Effect
    why: str = ""
    harmless: tuple[float, ...] = ()

    def effect(self, flavour: Flavour) -> Effect:
        """With one runtime."""
        return self.vivavoce if flavour is Flavour.VIVAVOCE else self.llmapi


def _honoured() -> InputRule:
    return InputRule(Effect.HONOURED, Effect.HONOURED)


def _no_effect() -> InputRule:
    return InputRule(Effect.NONE, Effect.NONE)


def _refused(why: str, *harmless: float) -> InputRule:
    return InputRule(Effect.REFUSED, Effect.REFUSED, why, harmless)


def _llmapi_only(why: str, *harmless: float) -> InputRule:
    return InputRule(Effect.REFUSED, Effect.HONOURED, why, harmless)


_NO_ENCODER = "the model has no encoder; leave it out"
_NO_DRAFT = "draft tokens are not taken; leave it out"
_NO_TABLE = "the model has no table of prompt embeddings; leave it out"
_NO_MROPE = "the model turns positions by one number; leave it out"
_NO_LORA = "the model has no adapters; leave it out"
_NO_GUIDE = "speech tokens follow no grammar; leave it out"
_NO_LOGITS = "logits are not answered; leave it out"
_OWN_SAMPLING = (
    "this model's sampling counts repetitions and takes no penalty; leave it out, or serve the language model with "
    "llm_backend llmapi"
)

INPUT_RULES: Mapping[str, InputRule] = MappingProxyType(
    {
        # the prompt, and how much is wanted
        "input_ids": _honoured(),
        "input_lengths": _honoured(),
        "request_output_len": _honoured(),
        "min_length": _honoured(),
        "end_id": _honoured(),
        "exclude_input_in_output": _honoured(),
        "streaming": _honoured(),
        "stop": _honoured(),
        # sampling
        "random_seed": _honoured(),
        "runtime_top_k": _honoured(),
        "runtime_top_p": _honoured(),
        "temperature": _llmapi_only(
            "this model is sampled at temperature 1 (0.8 is taken without effect); use runtime_top_p or runtime_top_k, "
            "or serve the language model with llm_backend llmapi",
            1.0,
            0.8,
        ),
        "repetition_penalty": _llmapi_only(f"{_OWN_SAMPLING} (1.1 is taken without effect)", 1.0, 1.1),
        "presence_penalty": _llmapi_only(_OWN_SAMPLING, 0.0),
        "frequency_penalty": _llmapi_only(_OWN_SAMPLING, 0.0),
        "runtime_top_p_decay": _refused("top_p stays as it is from token to token; leave it out", 1.0),
        "embedding_bias": InputRule(Effect.OWN, Effect.HONOURED),
        "stop_words_list": _refused("speech ends by its own ids only; leave it out", 0, -1),
        "bad_words_list": _refused("no ids but the model's own are forbidden; leave it out", 0, -1),
        # one request, one sequence
        "beam_width": _refused("speech is sampled, not searched for; send 1 or leave it out", 1),
        "num_return_sequences": _refused("a request has one answer; send as many requests, with other seeds", 1),
        # what would have to be answered
        "return_log_probs": _refused("log-probabilities are not answered; leave it out", 0),
        "return_context_logits": _refused(_NO_LOGITS, 0),
        "return_generation_logits": _refused(_NO_LOGITS, 0),
        "return_perf_metrics": _refused("times are not answered; ask the server for its statistics", 0),
        # what other models have
        "encoder_input_features": _refused(_NO_ENCODER),
        "encoder_output_lengths": _refused(_NO_ENCODER),
        "decoder_input_ids": _refused(_NO_ENCODER),
        "decoder_input_lengths": _refused(_NO_ENCODER),
        "cross_attention_mask": _refused(_NO_ENCODER),
        "skip_cross_attn_blocks": _refused(_NO_ENCODER),
        "draft_input_ids": _refused(_NO_DRAFT),
        "draft_logits": _refused(_NO_DRAFT),
        "draft_acceptance_threshold": _refused(_NO_DRAFT),
        "prompt_embedding_table": _refused(_NO_TABLE),
        "prompt_table_extra_ids": _refused(_NO_TABLE),
        "prompt_vocab_size": _refused(_NO_TABLE, 0),
        "mrope_rotary_cos_sin": _refused(_NO_MROPE),
        "mrope_position_deltas": _refused(_NO_MROPE),
        "lora_task_id": _refused(_NO_LORA),
        "lora_weights": _refused(_NO_LORA),
        "lora_config": _refused(_NO_LORA),
        "guided_decoding_guide_type": _refused(_NO_GUIDE),
        "guided_decoding_guide": _refused(_NO_GUIDE),
        "context_phase_params": _refused("a prompt is read where it is continued; leave it out"),
        # pads, where answers of one length are wanted: each is sent in its own
        "pad_id": _no_effect(),
        # of a decay and of beams, which there are none of
        "runtime_top_p_min": _no_effect(),
        "runtime_top_p_reset_ids": _no_effect(),
        "len_penalty": _no_effect(),
        "early_stopping": _no_effect(),
        "beam_search_diversity_rate": _no_effect(),
        # how soon an answer comes, not which
        "retention_token_range_starts": _no_effect(),
        "retention_token_range_ends": _no_effect(),
        "retention_token_range_priorities": _no_effect(),
        "retention_token_range_durations_ms": _no_effect(),
        "retention_decode_priority": _no_effect(),
        "retention_decode_duration_ms": _no_effect(),
        "lookahead_window_size": _no_effect(),
        "lookahead_ngram_size": _no_effect(),
        "lookahead_verification_set_size": _no_effect(),
    }
)
"""Every input by its name."""


def check_inputs(backend: Any, request: Any, flavour: Flavour) -> None:
    """Refuse a request that asks for what the runtime cannot do.

    Raises:
        InvalidRequest: the message names the input.
    """
    for name, rule in INPUT_RULES.items():
        if rule.effect(flavour) is not Effect.REFUSED:
            continue
        tensor = backend.get_input_tensor_by_name(request, name)
        if tensor is not None and not _asks_for_nothing(tensor.as_numpy(), rule.harmless):
            raise InvalidRequest(f"{name}: {rule.why}")


def _asks_for_nothing(values: np.ndarray[Any, Any], harmless: tuple[float, ...]) -> bool:
    if not values.size:
        return True
    if not harmless or values.dtype.kind not in "fiub":
        return False
    known = np.asarray(harmless, dtype=np.float64)
    return bool(np.isclose(values.astype(np.float64).reshape(-1, 1), known, rtol=_TOLERANCE, atol=0).any(axis=1).all())
