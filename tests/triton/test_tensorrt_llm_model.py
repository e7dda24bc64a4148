"""The model `tensorrt_llm` over this package's own language model, driven as the server drives it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from fake_backend import PATIENCE_S, RESPONSE_COMPLETE_FINAL, TritonError, initialize_args, refused
from language_model_client import BACKEND, DEPLOYMENT, TYPES, VOICE, Client, ids_of, tensor

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest, ModelNotFound
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.build import build_language_model
from vivavoce_export.hf_folder import export_hf
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.models.backend import Parameters
from vivavoce_triton.models.tensorrt_llm import REFUSED, EngineSource, TensorrtLLM

ENDLESS = {"request_output_len": 4_000, "end_id": -1}


@pytest.fixture(scope="module")
def lm(babble):
    return build_language_model(babble, torch.device("cpu"))


def serve(lm, vocabulary, *, decoupled=True, chooser=None, slots=4, **always):
    """A client of a model as a loaded one is, without the seconds."""
    source = EngineSource(Engine(lm, EngineSettings(slots=slots), chooser=chooser), vocabulary)
    model = TensorrtLLM(BACKEND, source, decoupled=decoupled, excludes_prompt=True, batched=True)
    return Client(model, vocabulary, **always)


@pytest.fixture(scope="module")
def streaming(lm, vocabulary):
    with closing(serve(lm, vocabulary)) as client:
        yield client


@pytest.fixture(scope="module")
def offline(lm, vocabulary):
    with closing(serve(lm, vocabulary, decoupled=False, streaming=None)) as client:
        yield client


@pytest.fixture
def narrow(lm, vocabulary):
    """With one slot: if another request gets tokens, whoever had it has it no more."""
    with closing(serve(lm, vocabulary, slots=1)) as client:
        yield client


def test_tokens_are_the_engines(streaming, offline, models, vocabulary):
    sampling = SamplingParams(top_p=0.95, top_k=50, max_ratio=4.0)
    segment = SegmentRequest(VOICE, text=(65, 66, 67), sampling=sampling, seed=42)
    with Engine(models, EngineSettings(slots=2, state_bytes=1 << 20)) as engine:
        (tokens,) = engine.submit(EngineRequest((segment,))).result().tokens
    wanted = [vocabulary.speech(token) for token in tokens]
    assert streaming.heard(min_length=6) == wanted
    assert streaming.pieces(min_length=6, streaming=False) == offline.pieces(min_length=6) == [wanted]


def test_a_stream_comes_in_pieces_and_ends_with_an_empty_one(streaming):
    request, sent = streaming.begin(request_output_len=40, end_id=-1), []
    while not sent or not sent[-1][1]:
        sent.append(request.get_response_sender().sent.get(timeout=PATIENCE_S))
    assert [flags for _, flags in sent] == [0] * (len(sent) - 1) + [RESPONSE_COMPLETE_FINAL]
    *some, last = [ids_of(response) for response, _ in sent if response is not None]
    assert len(some) > 1
    assert all(some)
    assert (sum(map(len, some)), last) == (40, [])


def test_many_at_once_each_have_their_own(streaming):
    given = [(streaming.prompt(2 + seed % 4), seed) for seed in range(10)]
    alone = [streaming.heard(ids, random_seed=seed) for ids, seed in given]
    requests = [streaming.request(ids, random_seed=seed) for ids, seed in given]
    assert streaming.model.execute(requests) is None
    assert [[one for answer in request.answers() for one in ids_of(answer)] for request in requests] == alone
    assert len({tuple(ids) for ids in alone}) == len(alone)


def test_a_batch_is_decoded_together_and_a_bad_one_harms_no_other(offline):
    requests = [offline.request(random_seed=seed) for seed in range(3)]
    alone = [offline.heard(random_seed=seed) for seed in range(3)]
    first, bad, *others = offline.model.execute([requests[0], offline.request([1, 2, 3]), *requests[1:]])
    assert "<|sos|>" in refused(bad)
    assert [ids_of(answer) for answer in (first, *others)] == alone


def test_seeds_of_64_bits(streaming):
    seeds = (0, 1, 2**63, 2**64 - 1)
    spoken = [streaming.heard(random_seed=np.array([[seed]], np.uint64)) for seed in seeds]
    assert len({tuple(ids) for ids in spoken}) == len(seeds)
    assert streaming.heard(random_seed=None) == spoken[0]


def test_the_prompt_may_be_wanted_back(streaming, offline):
    """A stream is of new ids only, whatever is asked for: so TensorRT-LLM's backend has it."""
    new, whole = streaming.heard(), {"streaming": False, "exclude_input_in_output": False}
    with_prompt = [[*streaming.prompt(), *new]]
    assert streaming.pieces(**whole) == offline.pieces(**whole) == with_prompt
    assert streaming.heard(exclude_input_in_output=False) == new


class Says:
    """So many speech tokens, then a control id as soon as it may be."""

    def __init__(self, after, control):
        self.after, self.control = after, control

    def __call__(self, scores, state):
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
def test_lengths_and_ends(lm, vocabulary, control, given, count):
    """end_id: which of the ids that end speech; it is not among the answer's."""
    if given.get("end_id") not in (None, -1):
        given = {"end_id": vocabulary.eos_ids[given["end_id"]]}
    with closing(serve(lm, vocabulary, slots=1, chooser=Says(3, control))) as client:
        assert client.heard(**given) == [vocabulary.speech(one) for one in range(count)]


def test_prompts_that_are_none(streaming, vocabulary):
    sos, task = vocabulary.sos, vocabulary.task
    first, end = vocabulary.speech(0), vocabulary.eos_ids[0]
    wrong = {
        "begin with 65": [65, task],
        "no <|task_id|>": [sos, 65, 66],
        "no text between": [sos, task, first],
        f"{first} at place 2 is not a text id": [sos, 65, first, task],
        f"{sos} at place 2 is not a text id": [sos, 65, sos, task],
        "65 at place 3 is not a speech id": [sos, 65, task, 65],
        f"{end} at place 4 is not a speech id": [sos, 65, task, first, end],
        f"{task} at place 3 is not a speech id": [sos, 65, task, task],
        f"{vocabulary.size} at place 1 is not a text id": [sos, vocabulary.size, task],
        "-1 at place 1 is not a text id": [sos, -1, task],
    }
    for words, ids in wrong.items():
        assert words in streaming.refusal(ids)


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
        ({"end_id": 5}, "end_id: 5 is not an end id"),
        ({"runtime_top_p": 0.0}, "runtime_top_p: 0 is outside"),
        ({"runtime_top_p": 1.5}, "runtime_top_p: 1.5 is outside"),
        ({"runtime_top_k": -1}, "runtime_top_k: -1"),
        ({"runtime_top_k": np.array([[1, 2]], np.int32)}, "runtime_top_k: 2 values"),
        ({"streaming": np.array([[True], [True]])}, "streaming: a batch of 2"),
        ({"embedding_bias": np.full((1, 4), np.nan, np.float32)}, "embedding_bias: holds NaN"),
        ({"embedding_bias": np.full((1, 4), np.inf, np.float32)}, "embedding_bias: holds NaN or +∞"),
        ({"embedding_bias": np.ones((1, 4), np.float32)}, "embedding_bias: is not this model's own bias"),
    ],
)
def test_numbers_out_of_their_limits(streaming, given, words):
    assert words in streaming.refusal(**given)


HONOURED = """
    input_ids input_lengths request_output_len min_length end_id exclude_input_in_output streaming stop random_seed
    runtime_top_k runtime_top_p embedding_bias
"""
WITHOUT_EFFECT = """
    pad_id runtime_top_p_min runtime_top_p_reset_ids len_penalty early_stopping beam_search_diversity_rate
    retention_token_range_starts retention_token_range_ends retention_token_range_priorities
    retention_token_range_durations_ms retention_decode_priority retention_decode_duration_ms lookahead_window_size
    lookahead_ngram_size lookahead_verification_set_size
"""
"""Each answer is sent in its own length, there are no decays and beams, and how soon an answer comes is no matter."""


def test_every_input_of_the_contract_has_a_rule():
    assert sorted([*HONOURED.split(), *WITHOUT_EFFECT.split(), *REFUSED]) == sorted(TYPES)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(streaming, name):
    value = b"json" if "guide" in name else True if name.startswith(("return", "skip")) else 5
    said = streaming.refusal(**{name: value})
    assert said == f"{name}: {REFUSED[name].why}"
    assert ";" in said, "a way out"


def test_what_asks_for_nothing_is_taken(streaming):
    plain, harmless = streaming.heard(), [(name, one) for name, rule in REFUSED.items() for one in rule.harmless]
    assert len(harmless) > 10
    for name, value in (*harmless, *((name, 1) for name in WITHOUT_EFFECT.split())):
        assert streaming.heard(**{name: value}) == plain, name
    no_words = np.array([[[0, 0], [-1, -1]]], np.int32)
    assert streaming.heard(stop_words_list=no_words, bad_words_list=no_words) == plain
    assert streaming.heard(draft_input_ids=tensor("draft_input_ids")) == plain
    some = np.array([[[7, 0], [1, -1]]], np.int32)
    assert "stop_words_list" in streaming.refusal(stop_words_list=some)


def test_top_k_and_top_p_decide(streaming):
    assert len({streaming.heard(runtime_top_k=1, random_seed=seed)[0] for seed in range(3)}) == 1
    assert len({tuple(streaming.heard(runtime_top_k=k)) for k in (1, 5, 0)}) == 3
    everything = {"runtime_top_k": 6_564, "runtime_top_p": 1.0}
    assert streaming.heard(runtime_top_k=0, runtime_top_p=1.0) == streaming.heard(**everything)
    unasked = {"runtime_top_k": None, "runtime_top_p": None}
    assert streaming.heard(**unasked) == streaming.heard(runtime_top_k=25, runtime_top_p=0.8)


def test_the_models_own_bias_may_be_sent_along(streaming, lm, vocabulary):
    """Engines without a biased head need it, and callers need not know which serves them."""
    bias = np.full((1, vocabulary.padded_size), -np.inf, np.float32)
    bias[0, vocabulary.text_size : vocabulary.sos] = lm.lm.speech_head.bias.numpy()
    plain = streaming.heard()
    assert streaming.heard(embedding_bias=bias) == streaming.heard(embedding_bias=np.zeros_like(bias)) == plain
    bias[0, 65] = 0.0
    assert "embedding_bias" in streaming.refusal(embedding_bias=bias)


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_slot(narrow, streams):
    request = narrow.begin(streaming=streams, **ENDLESS)
    answers = request.answers()
    if streams:
        next(answers)
    request.leave()
    assert all(not response.has_error() for response in answers), "a final flag is all that is left to say"
    assert narrow.heard()


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_is_stopped_by_its_id(narrow, begun):
    """For callers inside the server, whose leaving is not passed on; also before it has any token."""
    answers = narrow.begin(None, "one", **ENDLESS).answers()
    if begun:
        next(answers)
    for number, stopping in enumerate((narrow.stop("other"), narrow.stop("one"), narrow.stop("one"))):
        narrow.model.execute([stopping])
        assert list(stopping.answers()) == [], number
    assert all(not response.has_error() for response in answers)
    assert narrow.heard()
    assert narrow.model._running == {}


def test_a_stop_needs_an_id_and_a_stream(narrow, offline):
    assert "no id" in narrow.refusal(None, "", stop=True)
    assert "stop: this model is not decoupled" in offline.refusal(None, "one", stop=True)


def test_unloading_ends_what_runs(lm, vocabulary):
    before = set(threading.enumerate())
    client = serve(lm, vocabulary)
    requests = [client.begin(random_seed=seed, **ENDLESS) for seed in range(6)]
    next(requests[0].answers())
    client.close()
    for request in requests:
        *_, last = request.answers()
        assert "unloaded" in refused(last, TritonError.UNAVAILABLE)
    assert set(threading.enumerate()) <= before


class FailingSource:
    """Its one stream gives two ids, then an error."""

    llmapi, first_id = False, 0

    def __init__(self, vocabulary, error):
        self.vocabulary, self.error = vocabulary, error
        self.cancelled = self.closed = False

    def start(self, request):
        return self

    async def __aiter__(self):
        yield [1, 2]
        await asyncio.sleep(0)
        raise self.error

    def cancel(self):
        self.cancelled = True

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("out of luck"), TritonError.INTERNAL), (InvalidRequest("no"), TritonError.INVALID_ARG)],
)
def test_a_failing_source(vocabulary, error, code):
    source = FailingSource(vocabulary, error)
    model = TensorrtLLM(BACKEND, source, decoupled=True, excludes_prompt=True, batched=True)
    with closing(Client(model, vocabulary)) as client:
        some, failed = client.answers()
        assert ids_of(some) == [1, 2]
        assert str(error) in refused(failed, code)
        assert source.cancelled
    assert source.closed


def load(**parameters):
    given = {"device": "cpu", "exclude_input_in_output": "true", "kv_cache_free_gpu_mem_fraction": "0.5", **parameters}
    return TensorrtLLM.load(Parameters(initialize_args(given, model_transaction_policy={"decoupled": True})), BACKEND)


def test_loading_an_official_or_a_merged_folder(streaming, babble, merged, vocabulary, tmp_path):
    """An engine_dir that holds a built engine is not this runtime's."""
    official = {"model_dir": str(babble), "gpt_model_path": str(tmp_path)}
    for parameters in (official, {"llm_backend": "vivavoce", "gpt_model_path": str(merged)}):
        with closing(Client(load(**parameters), vocabulary)) as client:
            assert client.heard() == streaming.heard()


def test_cosyvoice3_official_and_merged(babble_v3, tmp_path):
    tokenizer = TextTokenizer.from_folder(babble_v3 / BACKBONE)
    merged, heard = export_hf(babble_v3, tmp_path / "merged", tokenizer.to_json()).folder, []
    bias, vocabulary = np.load(merged / "embedding_bias.npy"), MergedVocabulary(len(tokenizer), 6_561, Generation.V3)
    for parameters in ({"model_dir": str(babble_v3)}, {"gpt_model_path": str(merged)}):
        with closing(Client(load(**parameters), vocabulary)) as client:
            heard.append(client.heard(end_id=-1, embedding_bias=bias[None]))
            assert "is not this model's own bias" in client.refusal(embedding_bias=bias[None] + 1)
    assert heard[0] == heard[1]
    assert len(heard[0]) == DEPLOYMENT["request_output_len"]
    assert all(map(vocabulary.is_speech, heard[0]))


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
def test_parameters_that_cannot_be(parameters, error, words):
    with pytest.raises(error, match=words):
        load(**parameters)
