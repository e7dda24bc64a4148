"""Read the input tensors of a request to `tensorrt_llm`, for both runtimes.

The tensors are those of TensorRT-LLM's backend. Unsupported inputs that would change the result are refused, except for
`temperature` 0.8 and `repetition_penalty` 1.1, which the published deployment always sends: our repetition-aware
nucleus sampling at temperature 1 ignores these two values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.models.backend import Inputs

_TOLERANCE = 1e-6
"""Relative tolerance for numbers that arrive as float32."""
_INT32_MAX = 2**31 - 1


class Refusal(NamedTuple):
    """A refused input; harmless: accepted values; llmapi: TensorRT-LLM's LLM API supports the input."""

    why: str
    harmless: tuple[float, ...] = ()
    llmapi: bool = False


_LACKING = {
    "the model has no encoder": "encoder_input_features encoder_output_lengths decoder_input_ids decoder_input_lengths "
    "cross_attention_mask skip_cross_attn_blocks",
    "draft tokens are not taken": "draft_input_ids draft_logits draft_acceptance_threshold",
    "the model has no table of prompt embeddings": "prompt_embedding_table prompt_table_extra_ids",
    "the model turns positions by one number": "mrope_rotary_cos_sin mrope_position_deltas",
    "the model has no adapters": "lora_task_id lora_weights lora_config",
    "speech tokens follow no grammar": "guided_decoding_guide_type guided_decoding_guide",
    "a prompt is read where it is continued": "context_phase_params",
}
_NO_LOGITS = "logits are not answered; leave it out"
_OWN_SAMPLING = (
    "this model's sampling counts repetitions and takes no penalty; leave it out, or serve the language model with "
    "llm_backend llmapi"
)
_OWN_TEMPERATURE = (
    "this model is sampled at temperature 1 (0.8 is taken without effect); use runtime_top_p or runtime_top_k, or "
    "serve the language model with llm_backend llmapi"
)
REFUSED: Mapping[str, Refusal] = MappingProxyType(
    {
        **{name: Refusal(f"{why}; leave it out") for why, names in _LACKING.items() for name in names.split()},
        "temperature": Refusal(_OWN_TEMPERATURE, (1.0, 0.8), llmapi=True),
        "repetition_penalty": Refusal(f"{_OWN_SAMPLING} (1.1 is taken without effect)", (1.0, 1.1), llmapi=True),
        "presence_penalty": Refusal(_OWN_SAMPLING, (0.0,), llmapi=True),
        "frequency_penalty": Refusal(_OWN_SAMPLING, (0.0,), llmapi=True),
        "runtime_top_p_decay": Refusal("top_p stays as it is from token to token; leave it out", (1.0,)),
        "stop_words_list": Refusal("speech ends by its own ids only; leave it out", (0, -1)),
        "bad_words_list": Refusal("no ids but the model's own are forbidden; leave it out", (0, -1)),
        "beam_width": Refusal("speech is sampled, not searched for; send 1 or leave it out", (1,)),
        "num_return_sequences": Refusal("a request has one answer; send as many requests, with other seeds", (1,)),
        "return_log_probs": Refusal("log-probabilities are not answered; leave it out", (0,)),
        "return_context_logits": Refusal(_NO_LOGITS, (0,)),
        "return_generation_logits": Refusal(_NO_LOGITS, (0,)),
        "return_perf_metrics": Refusal("times are not answered; ask the server for its statistics", (0,)),
        "prompt_vocab_size": Refusal("the model has no table of prompt embeddings; leave it out", (0,)),
    }
)
"""Unsupported inputs by name; all other inputs are honoured or have no effect."""


def check_inputs(backend: Any, request: Any, *, llmapi: bool) -> None:
    """`InvalidRequest` names an input that the runtime does not support."""
    for name, rule in REFUSED.items():
        tensor = None if llmapi and rule.llmapi else backend.get_input_tensor_by_name(request, name)
        if tensor is not None and not _asks_for_nothing(tensor.as_numpy(), rule.harmless):
            raise InvalidRequest(f"{name}: {rule.why}")


def _asks_for_nothing(values: NDArray[Any], harmless: tuple[float, ...]) -> bool:
    if not values.size:
        return True
    if not harmless or values.dtype.kind not in "fiub":
        return False
    known = np.asarray(harmless, dtype=np.float64)
    return bool(np.isclose(values.astype(np.float64).reshape(-1, 1), known, rtol=_TOLERANCE, atol=0).any(axis=1).all())


def read_prompt(vocabulary: MergedVocabulary, ids: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parse `<|sos|>`, text, `<|task_id|>`, speech; return (text ids, speech tokens 0 … V − 1); or `InvalidRequest`."""
    if not ids or ids[0] != vocabulary.sos:
        found = str(ids[0]) if ids else "nothing"
        raise InvalidRequest(f"input_ids: begin with {found}, not with <|sos|> ({vocabulary.sos}); put it first")
    if vocabulary.task not in ids:
        raise InvalidRequest(f"input_ids: no <|task_id|> ({vocabulary.task}); put it after the text")
    end = list(ids).index(vocabulary.task)
    text, speech, first = tuple(ids[1:end]), tuple(ids[end + 1 :]), vocabulary.speech(0)
    if not text:
        raise InvalidRequest("input_ids: no text between <|sos|> and <|task_id|>; give some")
    for part, index, low, beyond, what in (
        (text, 1, 0, vocabulary.text_size, "text"),
        (speech, end + 1, first, first + vocabulary.num_speech_tokens, "speech"),
    ):
        wrong = next((count for count, one in enumerate(part) if not low <= one < beyond), None)
        if wrong is not None:
            raise InvalidRequest(
                f"input_ids: {part[wrong]} at place {index + wrong} is not a {what} id of this model ({low} … "
                f"{beyond - 1}); use the tokenizer of its merged folder"
            )
    return text, tuple(one - first for one in speech)


@dataclass(frozen=True, eq=False)
class TokensRequest:
    """A request for speech tokens; None: the model's default.

    prompt: merged ids; max_tokens, min_tokens: of speech; may_end: False gives exactly max_tokens;
    top_k: 0 for all ids; embedding_bias: [rows of the merged head] float32, added to logits; outputs: empty for all.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    may_end: bool
    seed: int
    top_p: float | None
    top_k: int | None
    penalties: Mapping[str, float]
    """Penalties that the request has and the runtime supports."""
    embedding_bias: NDArray[np.float32] | None
    streaming: bool
    with_prompt: bool
    outputs: frozenset[str]


def read_tokens_request(
    inputs: Inputs, vocabulary: MergedVocabulary, *, llmapi: bool, excludes_prompt: bool
) -> TokensRequest:
    """`InvalidRequest`: an input is missing or out of range; excludes_prompt: default for requests."""
    ids = inputs.ids("input_ids")
    if ids is None:
        raise InvalidRequest("input_ids: is missing; send the prompt")
    prompt = ids[: _required(inputs, "input_lengths", len(ids), "send how many of input_ids count")]
    read_prompt(vocabulary, prompt)
    seed, streaming = inputs.whole("random_seed", 0, 2**64 - 1) or 0, inputs.switch("streaming")
    least = inputs.whole("min_length", 0, _INT32_MAX)
    lowest = {"temperature": 0.001, "repetition_penalty": 0.001, "presence_penalty": -100, "frequency_penalty": -100}
    penalties = {name: inputs.real(name, low, 100.0) for name, low in lowest.items()} if llmapi else {}
    return TokensRequest(
        prompt=prompt,
        max_tokens=_required(inputs, "request_output_len", _INT32_MAX, "send how many tokens there may be"),
        min_tokens=1 if least is None else least,
        may_end=_may_end(inputs, vocabulary),
        seed=seed - 2**64 if seed >> 63 else seed,  # reinterpret the bits as a signed number
        top_p=inputs.real("runtime_top_p", 0.001, 1.0),
        top_k=inputs.whole("runtime_top_k", 0, 10_000),
        penalties={name: value for name, value in penalties.items() if value is not None},
        embedding_bias=_bias(inputs),
        streaming=streaming,
        # Streams have new tokens only, as in TensorRT-LLM's backend.
        with_prompt=not (streaming or inputs.switch("exclude_input_in_output", excludes_prompt)),
        outputs=frozenset(inputs.request.requested_output_names()),
    )


def _required(inputs: Inputs, name: str, high: int, way_out: str) -> int:
    value = inputs.whole(name, 1, high)
    if value is None:
        raise InvalidRequest(f"{name}: is missing; {way_out}")
    return value


def _may_end(inputs: Inputs, vocabulary: MergedVocabulary) -> bool:
    end, ends = inputs.whole("end_id", -1, _INT32_MAX), vocabulary.eos_ids
    if end is not None and end not in (-1, *ends):
        raise InvalidRequest(
            f"end_id: {end} ends no speech of this model; send {ends[0]}, or -1 for as many tokens as may be"
        )
    return end != -1


def _bias(inputs: Inputs) -> NDArray[np.float32] | None:
    values = inputs.array("embedding_bias")
    if values is None:
        return None
    bias = np.array(values, np.float32).reshape(-1)
    # −∞ forbids an id.
    if np.isnan(bias).any() or (bias == np.inf).any():
        raise InvalidRequest("embedding_bias: holds no numbers, or +∞; send numbers, or −∞ for what may not be")
    return bias
