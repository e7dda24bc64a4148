"""The model `tensorrt_llm` over TensorRT-LLM's LLM API: a stand-in for the package records what it is asked."""

from __future__ import annotations

import asyncio
import sys
import types
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_backend import TritonError, initialize_args, refused
from language_model_client import BACKEND, Client
from safetensors.torch import load_file

from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, ModelNotFound
from vivavoce_triton.models.backend import Parameters
from vivavoce_triton.models.tensorrt_llm import REFUSED, TensorrtLLM


class Result:
    """What `generate_async` gives: outputs with all ids so far, sometimes several more at once."""

    def __init__(self, steps):
        self.steps, self.count, self.aborted = steps, 0, False

    def abort(self):
        self.aborted = True

    async def __aiter__(self):
        ids = []
        for step in self.steps:
            await asyncio.sleep(0)
            if self.aborted:
                return
            ids = [*ids, *step]
            self.count += 1
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)])


class LLM:
    """Answers each prompt with the next of `script`."""

    def __init__(self, **given):
        self.given, self.down = given, False
        self.asked, self.script, self.results = [], [], []

    def generate_async(self, inputs, **given):
        asyncio.get_running_loop()  # outside of one the results could not be iterated in it
        self.asked.append({"inputs": inputs, **given})
        self.results.append(Result(self.script.pop(0)))
        return self.results[-1]

    def shutdown(self):
        self.down = True


@pytest.fixture
def package(monkeypatch):
    api, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")
    api.__version__, api.LLM, api.llmapi = "1.2.1", LLM, llmapi
    api.SamplingParams = llmapi.KvCacheConfig = lambda **given: given
    monkeypatch.setitem(sys.modules, "tensorrt_llm", api)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", llmapi)
    return api


def load(folder, **parameters):
    given = {"llm_backend": "llmapi", "gpt_model_path": str(folder), "exclude_input_in_output": "true", **parameters}
    return TensorrtLLM.load(Parameters(initialize_args(given, model_transaction_policy={"decoupled": True})), BACKEND)


@pytest.fixture
def client(package, merged, vocabulary):
    parameters = {
        "kv_cache_free_gpu_mem_fraction": "0.5",
        "max_tokens_in_paged_kv_cache": "2560",
        "enable_kv_cache_reuse": "false",
        "cuda_graph_mode": "",
    }
    with closing(Client(load(merged, **parameters), vocabulary)) as client:
        yield client
    assert client.model._source._llm.down


@pytest.fixture
def llm(client):
    return client.model._source._llm


def test_how_the_model_is_loaded(llm, merged):
    """What is left empty in the template is left to the package."""
    cache = {"free_gpu_memory_fraction": 0.5, "max_tokens": 2560, "enable_block_reuse": False}
    given = {"model": str(merged), "skip_tokenizer_init": True, "max_batch_size": 16, "kv_cache_config": cache}
    assert llm.given == given


def test_tokens_come_as_they_are_drawn_and_end_without_the_end(client, llm, vocabulary):
    """Some releases give the id that ends speech, others do not."""
    one, two, three = (vocabulary.speech(token) for token in (1, 2, 3))
    for ending in ([], *([end] for end in vocabulary.eos_ids)):
        llm.script = [[[one], [two, three], ending], [[one, two, *ending]]]
        assert client.pieces() == [[one], [two, three], []]
        assert client.pieces(streaming=False) == [[one, two]]
    assert not any(result.aborted for result in llm.results)


def test_what_is_handed_over(client, llm, vocabulary):
    llm.script = [[]]
    first, *others = vocabulary.eos_ids
    penalties = {"temperature": 0.25, "repetition_penalty": 1.5, "presence_penalty": 0.125, "frequency_penalty": 0.75}
    sampled = {"runtime_top_p": 0.5, "runtime_top_k": 0, "random_seed": np.array([[2**64 - 5]], np.uint64)}
    client.pieces(request_output_len=100, min_length=9, end_id=others[0], **sampled, **penalties)
    (asked,) = llm.asked
    assert (asked["inputs"], asked["streaming"]) == (client.prompt(), True)
    params = asked["sampling_params"]
    del params["embedding_bias"]
    assert params == {
        "max_tokens": 100,
        "min_tokens": 9,
        "top_p": 0.5,
        "top_k": 0,
        **penalties,
        "seed": 2**64 - 5,
        "end_id": first,
        "pad_id": first,
        "stop_token_ids": others,
        "detokenize": False,
    }


def test_the_heads_bias_goes_along(client, llm, vocabulary, merged):
    """The merged head has none; text ids are forbidden, and ends where speech may not end."""
    speech, ends = slice(vocabulary.text_size, vocabulary.sos), list(vocabulary.eos_ids)
    own = torch.from_numpy(np.load(merged / "embedding_bias.npy"))
    head = load_file(merged / "model.safetensors")["lm_head.weight"]
    assert len(own) == len(head) == vocabulary.padded_size
    given = np.zeros((1, vocabulary.padded_size), np.float32)
    llm.script = [[], [], []]
    client.pieces()
    client.pieces(end_id=-1)
    client.pieces(embedding_bias=given)
    plain, endless, asked = (one["sampling_params"] for one in llm.asked)
    torch.testing.assert_close(plain["embedding_bias"], own)
    assert torch.isfinite(own[speech]).all()
    assert (own[: vocabulary.text_size] == -torch.inf).all()
    assert (endless["embedding_bias"][ends] == -torch.inf).all()
    torch.testing.assert_close(endless["embedding_bias"][: ends[0]], own[: ends[0]])
    assert (endless["end_id"], "stop_token_ids" in endless) == (-1, False)
    assert not asked["embedding_bias"].any()
    assert f"the head has {vocabulary.padded_size} rows" in client.refusal(embedding_bias=given[:, :-1])


def test_what_cannot_be_done_is_refused(client, llm):
    for name in (name for name, rule in REFUSED.items() if not rule.llmapi):
        assert client.refusal(**{name: np.array([[5]], np.int32)}).startswith(f"{name}: ")
    assert llm.asked == []


@pytest.mark.parametrize("how", ["leaves", "stops"])
def test_who_goes_aborts(client, llm, vocabulary, how):
    endless = [[vocabulary.speech(1)]] * 1_000_000
    llm.script = [endless]
    request = client.begin(None, "one")
    answers = request.answers()
    next(answers)
    if how == "leaves":
        request.leave()
    else:
        client.model.execute([client.stop("one")])
    assert all(not response.has_error() for response in answers)
    (result,) = llm.results
    assert result.aborted
    assert result.count < len(endless)


def test_a_runtime_that_fails(client):
    (answer,) = client.answers()  # the script is empty
    assert "IndexError" in refused(answer, TritonError.INTERNAL)


@pytest.mark.parametrize("version", ["0.20.0", "2.0.0", "unknown"])
def test_another_version(package, merged, version):
    package.__version__ = version
    with pytest.raises(MissingDependency, match=f"tensorrt_llm: {version} is not supported; use NVIDIA's"):
        load(merged)


def test_folders_and_parameters_that_cannot_be(package, merged, tmp_path):
    for folder, parameters, error, words in (
        ("", {}, ModelNotFound, "gpt_model_path: ''"),
        (tmp_path, {}, CheckpointError, "no tokenizer file"),
        (merged, {"max_tokens_in_paged_kv_cache": "many"}, InvalidRequest, "max_tokens_in_paged_kv_cache: 'many'"),
        (merged, {"enable_kv_cache_reuse": "perhaps"}, InvalidRequest, "enable_kv_cache_reuse: 'perhaps'"),
    ):
        with pytest.raises(error, match=words):
            load(folder, **parameters)
