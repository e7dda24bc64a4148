"""The model `tensorrt_llm` in Python: merged ids in, merged ids of speech tokens out.

The tensors are those of TensorRT-LLM's backend. Unsupported inputs that would change the result are refused. Exceptions
are `temperature` 0.8 and `repetition_penalty` 1.1, which the published deployment always sends: our repetition-aware
nucleus sampling at temperature 1 ignores these two values. The outputs are `output_ids` [1, 1, n] INT32 (new ids,
without end ids, because published clients would take end ids for speech), `sequence_length` [1, 1] INT32 (n), and
`batch_index` and `sequence_index` [1, 1] INT32 (0).

If the model is decoupled, a request with `streaming` gets ids as they are sampled. Its last response has the final flag
and may have no ids. A request without `streaming` gets one response. A request ends if its client disconnects, or if a
request with `stop` and the same id arrives, because the server does not report when a calling model gives up. If the
model is not decoupled, the requests of a batch run together.

The tokens come from a source: our language model, or TensorRT-LLM's LLM API. The source's `start(request)` runs on the
event loop and returns a stream, with an async iterator of tokens and `cancel`. A merged id is a token + `first_id`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import SamplingDefaults
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import TokenHandle
from vivavoce.engine.request import SamplingParams, TokenRequest, speech_prompt
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest, ModelNotFound, RequestCancelled
from vivavoce.frontend.model_choice import choose_dtype
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.build import LanguageConfig, LanguageModel, build_language_model, prepare_device
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_runtimes.trtllm import LLMTokens, import_trtllm, open_llm
from vivavoce_triton.models.backend import AsyncModel, Inputs, Parameters, answer

_TOLERANCE = 1e-6
"""Relative tolerance when numbers that arrive as float32 are compared."""
_INT32_MAX = 2**31 - 1


class Refusal(NamedTuple):
    """Why an input is refused. harmless: accepted values; llmapi: whether TensorRT-LLM's LLM API supports the input."""

    why: str
    harmless: tuple[float, ...] = ()
    llmapi: bool = False


_LACKING = {
    "the model has no encoder": "encoder_input_features encoder_output_lengths decoder_input_ids decoder_input_lengths "
    "cross_attention_mask skip_cross_attn_blocks",
    "draft tokens are not supported": "draft_input_ids draft_logits draft_acceptance_threshold",
    "the model has no table of prompt embeddings": "prompt_embedding_table prompt_table_extra_ids",
    "the model rotates by one-dimensional positions": "mrope_rotary_cos_sin mrope_position_deltas",
    "the model has no adapters": "lora_task_id lora_weights lora_config",
    "speech tokens follow no grammar": "guided_decoding_guide_type guided_decoding_guide",
    "prefill and decoding run in the same model": "context_phase_params",
}
_NO_LOGITS = "logits are not returned; leave it out"
_OWN_SAMPLING = (
    "this model's sampling counts repetitions and has no penalty; leave it out, or serve the language model with "
    "llm_backend llmapi"
)
_OWN_TEMPERATURE = (
    "this model is sampled at temperature 1 (0.8 is accepted without effect); use runtime_top_p or runtime_top_k, or "
    "serve the language model with llm_backend llmapi"
)
REFUSED: Mapping[str, Refusal] = MappingProxyType(
    {
        **{name: Refusal(f"{why}; leave it out") for why, names in _LACKING.items() for name in names.split()},
        "temperature": Refusal(_OWN_TEMPERATURE, (1.0, 0.8), llmapi=True),
        "repetition_penalty": Refusal(f"{_OWN_SAMPLING} (1.1 is accepted without effect)", (1.0, 1.1), llmapi=True),
        "presence_penalty": Refusal(_OWN_SAMPLING, (0.0,), llmapi=True),
        "frequency_penalty": Refusal(_OWN_SAMPLING, (0.0,), llmapi=True),
        "runtime_top_p_decay": Refusal("top_p does not change from token to token; leave it out", (1.0,)),
        "stop_words_list": Refusal("only the model's own end ids end speech; leave it out", (0, -1)),
        "bad_words_list": Refusal("only the model itself forbids ids; leave it out", (0, -1)),
        "beam_width": Refusal("speech is sampled without beam search; send 1 or leave it out", (1,)),
        "num_return_sequences": Refusal("a request has one response; send several requests with different seeds", (1,)),
        "return_log_probs": Refusal("log-probabilities are not returned; leave it out", (0,)),
        "return_context_logits": Refusal(_NO_LOGITS, (0,)),
        "return_generation_logits": Refusal(_NO_LOGITS, (0,)),
        "return_perf_metrics": Refusal("times are not returned; read the server's statistics", (0,)),
        "prompt_vocab_size": Refusal("the model has no table of prompt embeddings; leave it out", (0,)),
    }
)
"""Unsupported inputs by name. All other inputs take effect, or cannot change the result."""


def check_inputs(backend: Any, request: Any, *, llmapi: bool) -> None:
    """Raise `InvalidRequest` for an input that the runtime does not support; the message names the input."""
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
    """Split `<|sos|>` text `<|task_id|>` speech into text ids and speech tokens 0 … V − 1. `InvalidRequest`: bad id."""
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
    """A request for speech tokens. A field that is None has the model's default.

    prompt: merged ids; max_tokens, min_tokens: speech tokens; may_end: if False, generate exactly max_tokens; top_k: 0
    for all ids; embedding_bias: [rows of the merged head] float32, added to logits; with_prompt: whether to return the
    prompt before the new ids; outputs: names of the wanted outputs, empty for all.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    may_end: bool
    seed: int
    top_p: float | None
    top_k: int | None
    penalties: Mapping[str, float]
    """Penalties of the request that the runtime supports."""
    embedding_bias: NDArray[np.float32] | None
    streaming: bool
    with_prompt: bool
    outputs: frozenset[str]


def read_tokens_request(
    inputs: Inputs, vocabulary: MergedVocabulary, *, llmapi: bool, excludes_prompt: bool
) -> TokensRequest:
    """Read a request. excludes_prompt: default of `exclude_input_in_output`. `InvalidRequest`: an input is wrong."""
    ids = inputs.ids("input_ids")
    if ids is None:
        raise InvalidRequest("input_ids: is missing; send the prompt")
    prompt = ids[: _required(inputs, "input_lengths", len(ids), "send the number of input_ids that count")]
    read_prompt(vocabulary, prompt)
    seed, streaming = inputs.whole("random_seed", 0, 2**64 - 1) or 0, inputs.switch("streaming")
    least = inputs.whole("min_length", 0, _INT32_MAX)
    lowest = {"temperature": 0.001, "repetition_penalty": 0.001, "presence_penalty": -100, "frequency_penalty": -100}
    penalties = {name: inputs.real(name, low, 100.0) for name, low in lowest.items()} if llmapi else {}
    return TokensRequest(
        prompt=prompt,
        max_tokens=_required(inputs, "request_output_len", _INT32_MAX, "send the largest number of tokens"),
        min_tokens=1 if least is None else least,
        may_end=_may_end(inputs, vocabulary),
        seed=seed - 2**64 if seed >> 63 else seed,  # read the bits of the number as a signed number
        top_p=inputs.real("runtime_top_p", 0.001, 1.0),
        top_k=inputs.whole("runtime_top_k", 0, 10_000),
        penalties={name: value for name, value in penalties.items() if value is not None},
        embedding_bias=_bias(inputs),
        streaming=streaming,
        # Streams return only new tokens, without the prompt, as in TensorRT-LLM's backend.
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
            f"end_id: {end} is not an end id of this model; send {ends[0]}, or -1 for the largest number of tokens"
        )
    return end != -1


def _bias(inputs: Inputs) -> NDArray[np.float32] | None:
    values = inputs.array("embedding_bias")
    if values is None:
        return None
    bias = np.array(values, np.float32).reshape(-1)
    # A bias of −∞ forbids the id.
    if np.isnan(bias).any() or (bias == np.inf).any():
        raise InvalidRequest("embedding_bias: holds NaN or +∞; send numbers, or −∞ for forbidden ids")
    return bias


_FORBIDDEN = -1e4
"""Ids with a bias of at most this value are never sampled, because some clients send −1e4 in place of −∞."""
_CACHE_SETTINGS = {
    "free_gpu_memory_fraction": ("kv_cache_free_gpu_mem_fraction", float, "a number above 0, 1 at most"),
    "max_tokens": ("max_tokens_in_paged_kv_cache", int, "a whole number"),
}


class EngineSource:
    """Generates tokens with this package's engine."""

    llmapi = False

    def __init__(self, engine: Engine, vocabulary: MergedVocabulary) -> None:
        self.engine, self.vocabulary, self.first_id = engine, vocabulary, vocabulary.speech(0)
        bias = engine.models.lm.speech_head.bias
        self._bias: NDArray[np.float32] = np.zeros(len(vocabulary.head), np.float32)
        if bias is not None:
            self._bias += bias.detach().float().cpu().numpy()

    @classmethod
    def load(cls, parameters: Parameters, streams: int | None = None) -> EngineSource:
        """Load `model_dir`, or the merged folder `gpt_model_path`. streams: number to warm up for, None for any."""
        device, wanted = parameters.device, "one above 0, 1 at most"
        share = parameters.number("kv_cache_free_gpu_mem_fraction", float, wanted)
        merged = parameters.path("gpt_model_path")
        if merged is not None and any(merged.glob("model*.safetensors")):
            model, vocabulary = _merged(merged, device)
        else:
            folder = parameters.model_folder
            model = build_language_model(folder, device, choose_dtype("auto", device))
            text_size, own = len(TextTokenizer.from_folder(folder / BACKBONE)), model.config.lm.vocabulary
            vocabulary = MergedVocabulary(text_size, own.num_speech_tokens, model.config.generation)
        engine = Engine(model, EngineSettings(slots_share=share))
        engine.warm_up(streams=streams)
        return cls(engine, vocabulary)

    def start(self, request: TokensRequest) -> TokenHandle:
        """Start generating. `InvalidRequest`: too long for a slot, or a foreign bias; `Overloaded`: too many wait."""
        self._check_bias(request.embedding_bias)
        vocabulary = self.engine.models.config.lm.vocabulary
        rows = speech_prompt(vocabulary, *read_prompt(self.vocabulary, request.prompt))
        room = self.engine.memory.capacity - len(rows) - 1
        if request.max_tokens > room:
            way_out = f"ask for {room} or fewer" if room > 0 else "use a shorter text or reference"
            raise InvalidRequest(
                f"request_output_len: {request.max_tokens} beside {len(rows)} ids of prompt, there is room for "
                f"{max(0, room)}; {way_out}"
            )
        top_k = vocabulary.num_logits if request.top_k == 0 else request.top_k
        least, ends = min(request.min_tokens, request.max_tokens), None if request.may_end else ()
        sampling = SamplingParams(top_p=request.top_p, top_k=top_k)
        return self.engine.submit(TokenRequest(rows, request.max_tokens, least, ends, sampling, request.seed))

    def close(self) -> None:
        self.engine.close(drain=False)

    def _check_bias(self, bias: NDArray[np.float32] | None) -> None:
        """Accept a bias that equals this model's own bias; refuse any other."""
        if bias is None or not bias.any():
            return
        first, end = self.vocabulary.head.start, self.vocabulary.head.stop
        others = np.concatenate((bias[:first], bias[end:]))
        own = len(bias) >= self.vocabulary.size and np.allclose(bias[first:end], self._bias, rtol=1e-2, atol=1e-3)
        if not (own and (others <= _FORBIDDEN).all()):
            raise InvalidRequest(
                "embedding_bias: is not this model's own bias, which is applied already; leave it out, or serve "
                "the language model with llm_backend llmapi"
            )


def _merged(folder: Path, device: torch.device) -> tuple[LanguageModel, MergedVocabulary]:
    from vivavoce_export.hf_folder import read_merged, read_vocabulary, speech_lm

    prepare_device(device)
    dtype = choose_dtype("auto", device)
    (config, state), vocabulary = read_merged(folder), read_vocabulary(folder)
    lm = speech_lm(config, state, dtype).to(device)
    return LanguageModel(LanguageConfig(config, vocabulary.generation), lm, device, dtype), vocabulary


class LLMSource:
    """Generates tokens with `tensorrt_llm.LLM`. api: the module tensorrt_llm; sampling: defaults for requests.

    bias: [rows of the head] float32, the default for requests. It forbids text ids: a plain Qwen2 has no bias itself.
    """

    llmapi, first_id = True, 0

    def __init__(
        self, api: Any, llm: Any, vocabulary: MergedVocabulary, sampling: SamplingDefaults, bias: torch.Tensor
    ) -> None:
        self._api, self._llm, self.vocabulary, self._sampling, self._bias = api, llm, vocabulary, sampling, bias

    @classmethod
    def load(cls, parameters: Parameters, most: int) -> LLMSource:
        """Load `gpt_model_path`. most: number of concurrent requests. `MissingDependency`: no suitable TensorRT-LLM."""
        from vivavoce_export.hf_folder import open_hugging_face, read_lm_config, read_vocabulary
        from vivavoce_export.merged_lm import no_bias

        folder = parameters.path("gpt_model_path")
        if folder is None or not folder.is_dir():
            name = parameters["gpt_model_path"]
            raise ModelNotFound(f"gpt_model_path: {name!r} is not a folder; set engine_dir to the merged model")
        vocabulary, merged = read_vocabulary(folder), open_hugging_face(folder)
        bias, speech = no_bias(vocabulary, merged.sizes.vocab_size), slice(vocabulary.head.start, vocabulary.head.stop)
        if merged.bias is not None:
            bias[speech] = merged.bias[speech]
        cache = {name: parameters.number(*given) for name, given in _CACHE_SETTINGS.items()}
        if parameters["enable_kv_cache_reuse"]:
            cache["enable_block_reuse"] = parameters.switch("enable_kv_cache_reuse")
        api = import_trtllm()
        llm = open_llm(api, folder, most, cache)
        return cls(api, llm, vocabulary, read_lm_config(folder, vocabulary).sampling, bias)

    def start(self, request: TokensRequest) -> LLMTokens:
        """Start generating. `InvalidRequest`: the bias does not have the head's size."""
        params = self._params(request)
        result = self._llm.generate_async(list(request.prompt), sampling_params=params, streaming=True)
        return LLMTokens(result, self.vocabulary.eos_ids)

    def close(self) -> None:
        self._llm.shutdown()

    def _params(self, request: TokensRequest) -> Any:
        first, *others = self.vocabulary.eos_ids
        bias = self._bias if request.embedding_bias is None else torch.from_numpy(request.embedding_bias)
        if len(bias) != len(self._bias):
            raise InvalidRequest(
                f"embedding_bias: {len(bias)} numbers, the head has {len(self._bias)} rows; send a number per row, or "
                "leave it out for the model's own bias"
            )
        if not request.may_end:
            bias = bias.clone()
            bias[[first, *others]] = -torch.inf
        return self._api.SamplingParams(
            max_tokens=request.max_tokens,
            min_tokens=min(request.min_tokens, request.max_tokens),
            top_p=self._sampling.top_p if request.top_p is None else request.top_p,
            top_k=self._sampling.top_k if request.top_k is None else request.top_k,
            end_id=first if request.may_end else -1,
            pad_id=first,
            seed=request.seed % 2**64,  # read the bits of the number as an unsigned number
            embedding_bias=bias,
            detokenize=False,
            **request.penalties,
            **({"stop_token_ids": others} if request.may_end else {}),
        )


_SOURCES: Mapping[str, type[EngineSource] | type[LLMSource]] = {"vivavoce": EngineSource, "llmapi": LLMSource}


class TensorrtLLM(AsyncModel):
    """Serves the tokens of a source. batched: tensors have a batch dimension; excludes_prompt: default for requests."""

    def __init__(
        self, backend: Any, source: EngineSource | LLMSource, *, decoupled: bool, excludes_prompt: bool, batched: bool
    ) -> None:
        super().__init__(backend, "vivavoce-tensorrt-llm", decoupled=decoupled)
        self._source, self._excludes_prompt = source, excludes_prompt
        self._leading = (1, 1) if batched else (1,)
        self._running: dict[str, set[TokenHandle | LLMTokens]] = {}
        """Request id → its streams, for requests with `stop`. Only the event loop uses this."""

    @classmethod
    def load(cls, given: Parameters, backend: Any) -> TensorrtLLM:
        """Load the model. `VivavoceError`: a parameter, folder or runtime cannot be used."""
        name = given["llm_backend"] or "vivavoce"
        if name not in _SOURCES:
            raise InvalidRequest(f"llm_backend: {name!r} is unknown; use one of {', '.join(_SOURCES)}")
        excludes, most = given.switch("exclude_input_in_output"), given.max_batch_size
        source = _SOURCES[name].load(given, max(1, most))
        return cls(backend, source, decoupled=given.decoupled, excludes_prompt=excludes, batched=most > 0)

    def close(self) -> None:
        super().close()
        self._source.close()

    async def answers(self, request: Any, left: Callable[[], bool]) -> AsyncGenerator[tuple[Any, bool], None]:
        """Yield new ids as they are sampled, or all ids at once. A request that was stopped gets no response."""
        inputs, request_id = Inputs(self._backend, request), request.request_id()
        if self._decoupled and inputs.switch("stop"):
            if not request_id:
                raise InvalidRequest("stop: the request has no id; give it the id of the request that should end")
            for stream in self._running.get(request_id, ()):
                stream.cancel()
            return
        ask = self._read(inputs)
        ids = list(ask.prompt) if ask.with_prompt else []
        try:
            async with aclosing(self._drawn(ask, request_id, left)) as pieces:
                async for piece in pieces:
                    if ask.streaming:
                        yield self._answer(ask, piece), False
                    else:
                        ids += piece
        except RequestCancelled:
            if self._decoupled:
                return
            raise
        yield self._answer(ask, ids), True

    def _read(self, inputs: Inputs) -> TokensRequest:
        check_inputs(self._backend, inputs.request, llmapi=self._source.llmapi)
        for name in () if self._decoupled else ("stop", "streaming"):
            if inputs.switch(name):
                raise InvalidRequest(
                    f"{name}: this model is not decoupled: a request has one response; send false or leave it out"
                )
        return read_tokens_request(
            inputs, self._source.vocabulary, llmapi=self._source.llmapi, excludes_prompt=self._excludes_prompt
        )

    async def _drawn(
        self, ask: TokensRequest, request_id: str, left: Callable[[], bool]
    ) -> AsyncGenerator[list[int], None]:
        """Yield merged ids. `RequestCancelled`: the client disconnected, or another request stopped this one."""
        stream = self._source.start(ask)
        same_id = self._running.setdefault(request_id, set())
        same_id.add(stream)
        try:
            async with self.watched(left, stream.cancel), aclosing(stream.__aiter__()) as pieces:
                async for piece in pieces:
                    yield [self._source.first_id + one for one in piece]
        finally:
            stream.cancel()
            same_id.discard(stream)
            if not same_id:
                self._running.pop(request_id, None)

    def _answer(self, ask: TokensRequest, ids: Sequence[int]) -> Any:
        leading = self._leading
        tensors = {
            "output_ids": np.array(ids, np.int32).reshape(*leading, len(ids)),
            "sequence_length": np.full(leading, len(ids), np.int32),
            "batch_index": np.zeros(leading, np.int32),
            "sequence_index": np.zeros(leading, np.int32),
        }
        # Leave out outputs that were not requested, because the server (2.51) frees them without holding the GIL.
        return answer(self._backend, **{name: tensors[name] for name in tensors if name in (ask.outputs or tensors)})
