"""The model `tensorrt_llm` over this package's own language model, driven as the server drives it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_backend import (
    PATIENCE_S,
    RESPONSE_COMPLETE_FINAL,
    FakeBackend,
    InferenceRequest,
    InferenceResponse,
    TritonError,
    initialize_args,
    output,
    refused,
)

from tests.engine.engine_helpers import voice
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.language_model.engine_source import EngineSource
from vivavoce.doors.triton.models.language_model.input_rules import INPUT_RULES, Effect
from vivavoce.doors.triton.models.language_model.inputs import InputReader
from vivavoce.doors.triton.models.language_model.source import Flavour, Sampling
from vivavoce.doors.triton.models.tensorrt_llm import TensorrtLLM
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import SamplingParams, SpeechRequest, SynthesisRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.token_engine import TokenEngine, TokenSettings
from vivavoce.errors import InvalidRequest, ModelNotFound, RequestCancelled
from vivavoce.export.hf.write import export_hf
from vivavoce.models.build import LanguageModel, Models, build_language_model
from vivavoce.service.text.tokenizer import TextTokenizer

BACKEND = FakeBackend()
VOICE = voice()
CONTRACT = json.loads((Path(__file__).parents[2] / "data" / "triton" / "models.json").read_text("utf-8"))
DTYPES = {"INT32": np.int32, "INT64": np.int64, "UINT64": np.uint64, "UINT8": np.uint8, "BOOL": np.bool_}
DTYPES |= {"FP32": np.float32, "FP16": np.float16}


@pytest.fixture(scope="module")
def vocabulary(babble: Path) -> MergedVocabulary:
    return MergedVocabulary(len(TextTokenizer.from_folder(babble / "CosyVoice-BlankEN")), 6561)


@pytest.fixture(scope="module")
def lm(babble: Path) -> LanguageModel:
    return build_language_model(babble, torch.device("cpu"))


def serve(lm: LanguageModel, vocabulary: MergedVocabulary, *, decoupled: bool = True, **settings: Any) -> TensorrtLLM:
    """As `load`, without its seconds."""
    engine = TokenEngine(lm, TokenSettings(**{"slots": 4, **settings}))
    reader = InputReader(BACKEND, Flavour.VIVAVOCE, vocabulary, decoupled=decoupled, excludes_prompt=True)
    return TensorrtLLM(BACKEND, EngineSource(engine, vocabulary), reader, batched=True)


@pytest.fixture(scope="module")
def streaming(lm: LanguageModel, vocabulary: MergedVocabulary) -> Iterator[TensorrtLLM]:
    model = serve(lm, vocabulary)
    yield model
    model.close()


@pytest.fixture(scope="module")
def offline(lm: LanguageModel, vocabulary: MergedVocabulary) -> Iterator[TensorrtLLM]:
    model = serve(lm, vocabulary, decoupled=False)
    yield model
    model.close()


def prompt(vocabulary: MergedVocabulary, size: int = 3) -> list[int]:
    speech = [vocabulary.speech(one) for one in VOICE.lm_prompt_tokens]
    return [vocabulary.sos, *VOICE.lm_prompt_text, *range(65, 65 + size), vocabulary.task, *speech]


def tensor(name: str, *values: Any) -> np.ndarray:
    """[1, n], as the contract types it."""
    (kind,) = [one["type"] for one in CONTRACT["tensorrt_llm"]["inputs"] if one["name"] == name]
    return np.array([values], DTYPES.get(kind, object if kind == "STRING" else np.float32))


def ask(ids: list[int], request_id: str = "", **given: Any) -> InferenceRequest:
    """A client's request, as the published deployment's; None leaves an input out."""
    values: dict[str, Any] = {
        "input_lengths": len(ids),
        "request_output_len": 12,
        "streaming": True,
        "random_seed": 42,
        "runtime_top_p": 0.95,
        "runtime_top_k": 50,
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        **given,
    }
    tensors = {
        name: value if isinstance(value, np.ndarray) else tensor(name, value)
        for name, value in values.items()
        if value is not None
    }
    return BACKEND.request(request_id, input_ids=tensor("input_ids", *ids), **tensors)


def ids_of(response: InferenceResponse) -> list[int]:
    ids = output(response, "output_ids")
    assert (ids.dtype, ids.shape[:2]) == (np.int32, (1, 1))
    assert output(response, "sequence_length").tolist() == [[ids.shape[2]]]
    assert output(response, "batch_index").tolist() == output(response, "sequence_index").tolist() == [[0]]
    found: list[int] = ids[0, 0].tolist()
    return found


def pieces(model: TensorrtLLM, request: InferenceRequest) -> list[list[int]]:
    assert model.execute([request]) is None
    return [ids_of(response) for response in request.answers()]


def heard(model: TensorrtLLM, request: InferenceRequest) -> list[int]:
    return [one for piece in pieces(model, request) for one in piece]


def refusal(model: TensorrtLLM, request: InferenceRequest, code: int = TritonError.INVALID_ARG) -> str:
    (answer,) = model.execute([request]) or request.answers()
    return refused(answer, code)


# --- tokens ---


def test_tokens_are_the_engines(
    streaming: TensorrtLLM, offline: TensorrtLLM, models: Models, vocabulary: MergedVocabulary
) -> None:
    sampling = SamplingParams(top_p=0.95, top_k=50, max_ratio=4.0)
    segment = SynthesisRequest(VOICE, text=(65, 66, 67), sampling=sampling, seed=42)
    with Engine(models, EngineSettings(slots=2, state_bytes=1 << 20)) as engine:
        (tokens,) = engine.submit(SpeechRequest((segment,))).result().tokens
    wanted = [vocabulary.speech(token) for token in tokens]
    request = ask(prompt(vocabulary), min_length=6)
    assert heard(streaming, request) == wanted
    assert pieces(streaming, ask(prompt(vocabulary), min_length=6, streaming=False)) == [wanted]
    (answer,) = offline.execute([ask(prompt(vocabulary), min_length=6, streaming=None)]) or ()
    assert ids_of(answer) == wanted


def test_a_stream_comes_in_pieces_and_ends_with_an_empty_one(
    streaming: TensorrtLLM, vocabulary: MergedVocabulary
) -> None:
    request = ask(prompt(vocabulary), request_output_len=40, end_id=-1)
    streaming.execute([request])
    sent = []
    while not sent or not sent[-1][1]:
        sent.append(request.get_response_sender().sent.get(timeout=PATIENCE_S))
    assert [flags for _, flags in sent] == [0] * (len(sent) - 1) + [RESPONSE_COMPLETE_FINAL]
    *some, last = [ids_of(response) for response, _ in sent if response is not None]
    assert len(some) > 1
    assert all(some)
    assert sum(map(len, some)) == 40
    assert last == []


def test_many_at_once_each_have_their_own(streaming: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    seeds = range(10)
    alone = [heard(streaming, ask(prompt(vocabulary, 2 + seed % 4), random_seed=seed)) for seed in seeds]
    requests = [ask(prompt(vocabulary, 2 + seed % 4), random_seed=seed) for seed in seeds]
    assert streaming.execute(requests) is None
    together = [[one for answer in request.answers() for one in ids_of(answer)] for request in requests]
    assert together == alone
    assert len({tuple(ids) for ids in alone}) == len(alone)


def test_a_batch_is_decoded_together_and_a_bad_one_harms_no_other(
    offline: TensorrtLLM, vocabulary: MergedVocabulary
) -> None:
    given = {"streaming": None}
    requests = [ask(prompt(vocabulary), random_seed=seed, **given) for seed in range(3)]
    alone = [ids_of((offline.execute([request]) or [])[0]) for request in requests]
    first, bad, *others = offline.execute([requests[0], ask([1, 2, 3], **given), *requests[1:]]) or ()
    assert "<|sos|>" in refused(bad)
    assert [ids_of(answer) for answer in (first, *others)] == alone


def test_seeds_of_64_bits(streaming: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    seeds = (0, 1, 2**63, 2**64 - 1)
    spoken = {
        seed: heard(streaming, ask(prompt(vocabulary), random_seed=np.array([[seed]], np.uint64))) for seed in seeds
    }
    assert len({tuple(ids) for ids in spoken.values()}) == len(seeds)
    assert heard(streaming, ask(prompt(vocabulary), random_seed=None)) == spoken[0]


def test_only_input_lengths_ids_count(streaming: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    ids = prompt(vocabulary)
    padded = [*ids, *[vocabulary.eos_ids[0]] * 5]
    assert heard(streaming, ask(padded, input_lengths=len(ids))) == heard(streaming, ask(ids))


def test_the_prompt_may_be_wanted_back(
    streaming: TensorrtLLM, offline: TensorrtLLM, vocabulary: MergedVocabulary
) -> None:
    """A stream is of new ids only, whatever is asked for: so TensorRT-LLM's backend has it."""
    ids = prompt(vocabulary)
    new = heard(streaming, ask(ids))
    assert pieces(streaming, ask(ids, streaming=False, exclude_input_in_output=False)) == [[*ids, *new]]
    assert heard(streaming, ask(ids, exclude_input_in_output=False)) == new
    (answer,) = offline.execute([ask(ids, streaming=None, exclude_input_in_output=False)]) or ()
    assert ids_of(answer) == [*ids, *new]


class Says:
    """So many speech tokens, then a control id as soon as it may be."""

    def __init__(self, after: int, control: int) -> None:
        self.after, self.control = after, control

    def __call__(self, scores: torch.Tensor, state: Any) -> torch.Tensor:
        may = (state.counts >= self.after) & (scores[:, self.control] > float("-inf"))
        return torch.where(may, self.control, state.counts)


@pytest.mark.parametrize(
    ("control", "given", "count"),
    [
        (6561, {"end_id": 0}, 3),
        (6563, {"end_id": 0}, 3),
        (6561, {"end_id": 2}, 3),
        (6561, {"end_id": None}, 3),
        (6561, {"end_id": -1}, 12),
        (6561, {"min_length": 7}, 7),
        (6561, {"min_length": 700}, 12),
        (6561, {"request_output_len": 2}, 2),
    ],
)
def test_lengths_and_ends(
    lm: LanguageModel, vocabulary: MergedVocabulary, control: int, given: dict[str, Any], count: int
) -> None:
    """end_id: which of the ids that end speech; it is not among the answer's."""
    if given.get("end_id") not in (None, -1):
        given = {"end_id": vocabulary.eos_ids[given["end_id"]]}
    model = serve(lm, vocabulary)
    model._source.engine = TokenEngine(lm, TokenSettings(slots=1), chooser=Says(3, control))  # type: ignore[attr-defined]
    try:
        assert heard(model, ask(prompt(vocabulary), **given)) == [vocabulary.speech(one) for one in range(count)]
    finally:
        model.close()


@pytest.mark.parametrize("least", [0, None])
def test_an_answer_may_be_empty(lm: LanguageModel, vocabulary: MergedVocabulary, least: int | None) -> None:
    """Only if that is asked for: without a word there is at least one token."""
    model = serve(lm, vocabulary)
    model._source.engine = TokenEngine(lm, TokenSettings(slots=1), chooser=Says(0, 6561))  # type: ignore[attr-defined]
    try:
        spoken = pieces(model, ask(prompt(vocabulary), min_length=least, streaming=False))
    finally:
        model.close()
    assert spoken == ([[]] if least == 0 else [[vocabulary.speech(0)]])


# --- what is refused ---


def test_prompts_that_are_none(streaming: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    sos, task = vocabulary.sos, vocabulary.task
    first, end = vocabulary.speech(0), vocabulary.eos_ids[0]
    wrong = {
        "begin with 65": [65, task],
        "no <|task_id|>": [sos, 65, 66],
        "no text between": [sos, task, first],
        f"{first} at place 2 is no text id": [sos, 65, first, task],
        f"{sos} at place 2 is no text id": [sos, 65, sos, task],
        "65 at place 3 is no speech id": [sos, 65, task, 65],
        f"{end} at place 4 is no speech id": [sos, 65, task, first, end],
        f"{task} at place 3 is no speech id": [sos, 65, task, task],
        f"{vocabulary.size} at place 1 is no text id": [sos, vocabulary.size, task],
        "-1 at place 1 is no text id": [sos, -1, task],
    }
    for words, ids in wrong.items():
        assert words in refusal(streaming, ask(ids))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input_lengths": 0}, "input_lengths: 0 is outside of 1"),
        ({"input_lengths": 1_000}, "input_lengths: 1000 is outside of 1"),
        ({"input_lengths": None}, "input_lengths: is missing"),
        ({"request_output_len": None}, "request_output_len: is missing"),
        ({"request_output_len": 0}, "request_output_len: 0"),
        ({"request_output_len": 6_000}, "request_output_len: 6000 beside 38 ids of prompt, there is room for 5081"),
        ({"min_length": -1}, "min_length: -1"),
        ({"end_id": 5}, "end_id: 5 ends no speech"),
        ({"runtime_top_p": 0.0}, "runtime_top_p: 0 is outside"),
        ({"runtime_top_p": 1.5}, "runtime_top_p: 1.5 is outside"),
        ({"runtime_top_k": -1}, "runtime_top_k: -1"),
        ({"runtime_top_k": np.array([[1, 2]], np.int32)}, "runtime_top_k: 2 values"),
        ({"streaming": np.array([[True], [True]])}, "streaming: a batch of 2"),
        ({"embedding_bias": np.full((1, 4), np.nan, np.float32)}, "embedding_bias: holds no numbers"),
        ({"embedding_bias": np.full((1, 4), np.inf, np.float32)}, "embedding_bias: holds no numbers, or +∞"),
        ({"embedding_bias": np.ones((1, 4), np.float32)}, "embedding_bias: is not that of this model's head"),
    ],
)
def test_numbers_out_of_their_limits(
    streaming: TensorrtLLM, vocabulary: MergedVocabulary, given: dict[str, Any], words: str
) -> None:
    assert words in refusal(streaming, ask(prompt(vocabulary), **given))


def test_no_prompt(streaming: TensorrtLLM) -> None:
    given = {name: tensor(name, 1) for name in ("input_lengths", "request_output_len")}
    assert "input_ids: is missing" in refusal(streaming, BACKEND.request("", **given))


def test_every_input_of_the_contract_has_a_rule() -> None:
    assert set(INPUT_RULES) == {one["name"] for one in CONTRACT["tensorrt_llm"]["inputs"]}


HARMLESS = [(name, value) for name, rule in INPUT_RULES.items() for value in rule.harmless]
WITHOUT_EFFECT = [name for name, rule in INPUT_RULES.items() if rule.vivavoce is Effect.NONE]
REFUSED = [name for name, rule in INPUT_RULES.items() if rule.vivavoce is Effect.REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(streaming: TensorrtLLM, vocabulary: MergedVocabulary, name: str) -> None:
    value = b"json" if "guide" in name else True if name.startswith(("return", "skip")) else 5
    said = refusal(streaming, ask(prompt(vocabulary), **{name: tensor(name, value)}))
    assert said == f"{name}: {INPUT_RULES[name].why}"
    assert ";" in said, "a way out"


def test_what_asks_for_nothing_is_taken(streaming: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    plain = heard(streaming, ask(prompt(vocabulary)))
    assert len(HARMLESS) > 10
    for name, value in HARMLESS:
        assert heard(streaming, ask(prompt(vocabulary), **{name: value})) == plain, name
    for name in WITHOUT_EFFECT:
        assert heard(streaming, ask(prompt(vocabulary), **{name: tensor(name, 1)})) == plain, name
    no_words = np.array([[[0, 0], [-1, -1]]], np.int32)
    assert heard(streaming, ask(prompt(vocabulary), stop_words_list=no_words, bad_words_list=no_words)) == plain
    assert heard(streaming, ask(prompt(vocabulary), draft_input_ids=np.zeros((1, 0), np.int32))) == plain
    some = np.array([[[7, 0], [1, -1]]], np.int32)
    assert "stop_words_list" in refusal(streaming, ask(prompt(vocabulary), stop_words_list=some))


def test_top_k_and_top_p_decide(streaming: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    def spoken(**given: Any) -> list[int]:
        return heard(streaming, ask(prompt(vocabulary), **given))

    greedy = [spoken(runtime_top_k=1, random_seed=seed)[0] for seed in range(3)]
    assert len(set(greedy)) == 1
    assert len({tuple(spoken(runtime_top_k=k)) for k in (1, 5, 0)}) == 3
    assert spoken(runtime_top_k=0, runtime_top_p=1.0) == spoken(runtime_top_k=6_564, runtime_top_p=1.0)
    unasked = {"runtime_top_k": None, "runtime_top_p": None}
    assert spoken(**unasked) == spoken(runtime_top_k=25, runtime_top_p=0.8)


def test_the_models_own_bias_may_be_sent_along(
    streaming: TensorrtLLM, lm: LanguageModel, vocabulary: MergedVocabulary
) -> None:
    """Engines without a biased head need it, and callers need not know which serves them."""
    bias = np.full((1, vocabulary.padded_size), -np.inf, np.float32)
    bias[0, vocabulary.text_size : vocabulary.sos] = lm.lm.speech_head.bias.numpy()
    plain = heard(streaming, ask(prompt(vocabulary)))
    assert heard(streaming, ask(prompt(vocabulary), embedding_bias=bias)) == plain
    assert heard(streaming, ask(prompt(vocabulary), embedding_bias=np.zeros_like(bias))) == plain
    bias[0, 65] = 0.0
    assert "embedding_bias" in refusal(streaming, ask(prompt(vocabulary), embedding_bias=bias))


def test_streaming_needs_a_decoupled_model(offline: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    assert "streaming: this model is not decoupled" in refusal(offline, ask(prompt(vocabulary)))


def test_who_finds_no_room_is_told(lm: LanguageModel, vocabulary: MergedVocabulary) -> None:
    model = serve(lm, vocabulary, slots=1, max_waiting=0)
    try:
        long = ask(prompt(vocabulary), request_output_len=4_000, end_id=-1)
        model.execute([long])
        next(long.answers())
        assert "come again" in refusal(model, ask(prompt(vocabulary)), TritonError.UNAVAILABLE)
        long.leave()
    finally:
        model.close()


# --- leaving ---


def is_free(model: TensorrtLLM, vocabulary: MergedVocabulary) -> bool:
    """With one slot: somebody else gets tokens, so whoever had it has it no more."""
    return bool(heard(model, ask(prompt(vocabulary))))


@pytest.fixture
def narrow(lm: LanguageModel, vocabulary: MergedVocabulary) -> Iterator[TensorrtLLM]:
    model = serve(lm, vocabulary, slots=1)
    yield model
    model.close()


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_slot(narrow: TensorrtLLM, vocabulary: MergedVocabulary, streams: bool) -> None:
    request = ask(prompt(vocabulary), request_output_len=4_000, end_id=-1, streaming=streams)
    narrow.execute([request])
    answers = request.answers()
    if streams:
        next(answers)
    request.leave()
    assert all(not response.has_error() for response in answers), "a final flag is all that is left to say"
    assert is_free(narrow, vocabulary)


def test_a_client_that_leaves_a_batch(lm: LanguageModel, vocabulary: MergedVocabulary) -> None:
    model = serve(lm, vocabulary, decoupled=False)
    given = {"streaming": None}
    gone = ask(prompt(vocabulary), request_output_len=4_000, end_id=-1, **given)
    gone.leave()
    try:
        left, other = model.execute([gone, ask(prompt(vocabulary), **given)]) or ()
    finally:
        model.close()
    assert "was cancelled" in refused(left, TritonError.CANCELLED)
    assert ids_of(other)


def stop(request_id: str) -> InferenceRequest:
    given = {"input_lengths": 0, "request_output_len": 0, "stop": True}
    return BACKEND.request(request_id, **{name: tensor(name, value) for name, value in given.items()})


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_is_stopped_by_its_id(narrow: TensorrtLLM, vocabulary: MergedVocabulary, begun: bool) -> None:
    """For callers inside the server, whose leaving is not passed on; also before it has any token."""
    request = ask(prompt(vocabulary), "one", request_output_len=4_000, end_id=-1)
    narrow.execute([request])
    answers = request.answers()
    if begun:
        next(answers)
    for number, stopping in enumerate((stop("other"), stop("one"), stop("one"))):
        narrow.execute([stopping])
        assert list(stopping.answers()) == [], number
    assert all(not response.has_error() for response in answers)
    assert is_free(narrow, vocabulary)
    assert narrow._running == {}


def test_a_stop_needs_an_id_and_a_stream(
    narrow: TensorrtLLM, offline: TensorrtLLM, vocabulary: MergedVocabulary
) -> None:
    assert "no id" in refusal(narrow, stop(""))
    assert "stop: this model is not decoupled" in refusal(
        offline, ask(prompt(vocabulary), "one", stop=True, streaming=None)
    )


def test_unloading_ends_what_runs(lm: LanguageModel, vocabulary: MergedVocabulary) -> None:
    before = set(threading.enumerate())
    model = serve(lm, vocabulary)
    requests = [ask(prompt(vocabulary), request_output_len=4_000, end_id=-1, random_seed=seed) for seed in range(6)]
    model.execute(requests)
    next(requests[0].answers())
    model.close()
    for request in requests:
        *_, last = request.answers()
        assert "unloaded" in refused(last, TritonError.UNAVAILABLE)
    assert set(threading.enumerate()) <= before


# --- a source that fails ---


class Stream:
    """Two ids, then an error."""

    def __init__(self, error: Exception) -> None:
        self.error, self.cancelled = error, False

    async def __aiter__(self) -> AsyncGenerator[list[int], None]:
        yield [1, 2]
        await asyncio.sleep(0)
        raise self.error

    def cancel(self) -> None:
        self.cancelled = True


class Source:
    def __init__(self, vocabulary: MergedVocabulary, error: Exception) -> None:
        self.vocabulary, self.error = vocabulary, error
        self.asked: list[tuple[tuple[int, ...], Sampling]] = []
        self.streams: list[Stream] = []
        self.closed = False

    def start(self, ids: tuple[int, ...], sampling: Sampling) -> Stream:
        self.asked.append((ids, sampling))
        self.streams.append(Stream(self.error))
        return self.streams[-1]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("out of luck"), TritonError.INTERNAL), (InvalidRequest("no"), TritonError.INVALID_ARG)],
)
def test_a_failing_source(
    vocabulary: MergedVocabulary, error: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(vocabulary, error)
    reader = InputReader(BACKEND, Flavour.VIVAVOCE, vocabulary, decoupled=True, excludes_prompt=True)
    model = TensorrtLLM(BACKEND, source, reader, batched=True)
    request = ask(prompt(vocabulary))
    model.execute([request])
    some, failed = request.answers()
    assert ids_of(some) == [1, 2]
    assert str(error) in refused(failed, code)
    assert source.streams[0].cancelled
    model.close()
    assert source.closed
    caplog.clear()


def test_a_request_that_was_cancelled_says_no_more(vocabulary: MergedVocabulary) -> None:
    reader = InputReader(BACKEND, Flavour.VIVAVOCE, vocabulary, decoupled=True, excludes_prompt=True)
    model = TensorrtLLM(BACKEND, Source(vocabulary, RequestCancelled("gone")), reader, batched=False)
    request = ask(prompt(vocabulary))
    model.execute([request])
    (only,) = request.answers()
    model.close()
    assert output(only, "output_ids").tolist() == [[1, 2]]
    assert output(only, "sequence_length").tolist() == [2]


# --- loading ---


def arguments(decoupled: bool = True, **parameters: str) -> dict[str, str]:
    given = {"device": "cpu", "exclude_input_in_output": "true", "kv_cache_free_gpu_mem_fraction": "0.5", **parameters}
    return initialize_args(given, name="tensorrt_llm", model_transaction_policy={"decoupled": decoupled})


@pytest.fixture(scope="module")
def merged(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = TextTokenizer.from_folder(babble / "CosyVoice-BlankEN")
    return export_hf(babble, tmp_path_factory.mktemp("hf") / "merged", tokenizer.to_json()).folder


def test_loading_an_official_or_a_merged_folder(
    streaming: TensorrtLLM, babble: Path, merged: Path, vocabulary: MergedVocabulary, tmp_path: Path
) -> None:
    """An engine_dir that holds a built engine is not this runtime's."""
    wanted = heard(streaming, ask(prompt(vocabulary)))
    official = {"model_dir": str(babble), "gpt_model_path": str(tmp_path)}
    for parameters in (official, {"llm_backend": "vivavoce", "gpt_model_path": str(merged)}):
        model = TensorrtLLM.load(arguments(**parameters), BACKEND)
        try:
            assert heard(model, ask(prompt(vocabulary))) == wanted
        finally:
            model.close()


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({}, ModelNotFound, "model_dir"),
        ({"llm_backend": "vllm"}, InvalidRequest, "llm_backend: 'vllm' is unknown; use one of vivavoce, llmapi"),
        ({"exclude_input_in_output": "perhaps"}, InvalidRequest, "exclude_input_in_output: 'perhaps'"),
        ({"kv_cache_free_gpu_mem_fraction": "half"}, InvalidRequest, "kv_cache_free_gpu_mem_fraction: 'half'"),
        ({"device": "abacus"}, InvalidRequest, "device: 'abacus'"),
    ],
)
def test_parameters_that_cannot_be(parameters: dict[str, str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TensorrtLLM.load(arguments(**parameters), BACKEND)


def test_the_servers_file(monkeypatch: pytest.MonkeyPatch, babble: Path, vocabulary: MergedVocabulary) -> None:
    from importlib import resources, util

    monkeypatch.setitem(__import__("sys").modules, "triton_python_backend_utils", BACKEND)
    path = resources.files("vivavoce.doors.triton") / "repository" / "tensorrt_llm" / "1" / "model.py"
    spec = util.spec_from_file_location("tensorrt_llm_model_file", str(path))
    assert spec is not None
    assert spec.loader is not None
    file = util.module_from_spec(spec)
    spec.loader.exec_module(file)
    model = file.TritonPythonModel()
    model.initialize(arguments(decoupled=False, model_dir=str(babble)))
    (answer,) = model.execute([ask(prompt(vocabulary), streaming=None)])
    model.finalize()
    assert ids_of(answer)
