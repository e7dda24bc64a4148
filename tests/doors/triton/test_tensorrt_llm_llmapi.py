"""The model `tensorrt_llm` over TensorRT-LLM's LLM API: a stand-in for the package records what it is asked."""

from __future__ import annotations

import asyncio
import shutil
import sys
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend, InferenceRequest, TritonError, initialize_args, output, refused
from safetensors.torch import load_file

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.language_model.input_rules import INPUT_RULES, Effect
from vivavoce.doors.triton.models.language_model.llmapi_source import read_merged_model
from vivavoce.doors.triton.models.tensorrt_llm import TensorrtLLM
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, ModelNotFound
from vivavoce.export.hf.folder_settings import read_vocabulary
from vivavoce.export.hf.write import export_hf
from vivavoce.service.text.tokenizer import TextTokenizer

BACKEND = FakeBackend()


class Result:
    """What `generate_async` gives: outputs with all ids so far, sometimes several more at once."""

    def __init__(self, steps: list[list[int]]) -> None:
        self.steps, self.aborted = steps, asyncio.Event()
        self.count = 0

    def abort(self) -> None:
        self.aborted.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        ids: list[int] = []
        for step in self.steps:
            await asyncio.sleep(0)
            if self.aborted.is_set():
                return
            ids = [*ids, *step]
            self.count += 1
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)])


class LLM:
    """Answers each prompt with the next of `script`."""

    def __init__(self, **given: Any) -> None:
        self.given, self.down = given, False
        self.asked: list[dict[str, Any]] = []
        self.script: list[list[list[int]]] = []
        self.results: list[Result] = []

    def generate_async(self, inputs: list[int], **given: Any) -> Result:
        asyncio.get_running_loop()  # outside of one the results could not be iterated in it
        self.asked.append({"inputs": inputs, **given})
        self.results.append(Result(self.script.pop(0)))
        return self.results[-1]

    def shutdown(self) -> None:
        self.down = True


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    api, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")
    api.__version__ = "1.2.1"  # type: ignore[attr-defined]
    api.LLM, api.llmapi = LLM, llmapi  # type: ignore[attr-defined]
    api.SamplingParams = lambda **given: given  # type: ignore[attr-defined]
    llmapi.KvCacheConfig = lambda **given: given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt_llm", api)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", llmapi)
    return api


@pytest.fixture(scope="module")
def merged(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = TextTokenizer.from_folder(babble / "CosyVoice-BlankEN")
    return export_hf(babble, tmp_path_factory.mktemp("hf") / "merged", tokenizer.to_json()).folder


@pytest.fixture(scope="module")
def vocabulary(merged: Path) -> MergedVocabulary:
    return read_vocabulary(merged)


def load(folder: Path | str, **parameters: str) -> TensorrtLLM:
    given = {"llm_backend": "llmapi", "gpt_model_path": str(folder), "exclude_input_in_output": "true", **parameters}
    args = initialize_args(given, name="tensorrt_llm", model_transaction_policy={"decoupled": True})
    return TensorrtLLM.load(args, BACKEND)


@pytest.fixture
def model(package: types.ModuleType, merged: Path) -> Iterator[TensorrtLLM]:
    model = load(
        merged,
        kv_cache_free_gpu_mem_fraction="0.5",
        max_tokens_in_paged_kv_cache="2560",
        enable_kv_cache_reuse="false",
        cuda_graph_mode="",
    )
    yield model
    model.close()
    assert llm_of(model).down


def llm_of(model: TensorrtLLM) -> LLM:
    found = model._source._llm  # type: ignore[attr-defined]
    assert isinstance(found, LLM)
    return found


def ask(ids: list[int], request_id: str = "", **given: Any) -> InferenceRequest:
    tensors = {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": np.array([[len(ids)]], np.int32),
        "request_output_len": np.array([[750]], np.int32),
        "streaming": np.array([[True]]),
        **{name: value if isinstance(value, np.ndarray) else np.array([[value]]) for name, value in given.items()},
    }
    return BACKEND.request(request_id, **tensors)


def prompt(vocabulary: MergedVocabulary) -> list[int]:
    return [vocabulary.sos, 65, 66, vocabulary.task, vocabulary.speech(7)]


def pieces(model: TensorrtLLM, request: InferenceRequest) -> list[list[int]]:
    assert model.execute([request]) is None
    return [output(response, "output_ids")[0, 0].tolist() for response in request.answers()]


def test_how_the_model_is_loaded(model: TensorrtLLM, merged: Path) -> None:
    """What is left empty in the template is left to the package."""
    cache = {"free_gpu_memory_fraction": 0.5, "max_tokens": 2560, "enable_block_reuse": False}
    given = {"model": str(merged), "skip_tokenizer_init": True, "max_batch_size": 16, "kv_cache_config": cache}
    assert llm_of(model).given == given


def test_tokens_come_as_they_are_drawn_and_end_without_the_end(
    model: TensorrtLLM, vocabulary: MergedVocabulary
) -> None:
    """Some releases give the id that ends speech, others do not."""
    one, two, three = (vocabulary.speech(token) for token in (1, 2, 3))
    for ending in ([], *([end] for end in vocabulary.eos_ids)):
        llm_of(model).script = [[[one], [two, three], ending]]
        assert pieces(model, ask(prompt(vocabulary))) == [[one], [two, three], []]
        llm_of(model).script = [[[one, two, *ending]]]
        assert pieces(model, ask(prompt(vocabulary), streaming=False)) == [[one, two]]
    assert not any(result.aborted.is_set() for result in llm_of(model).results)


def test_what_is_handed_over(model: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    llm = llm_of(model)
    llm.script = [[]]
    given = {
        "request_output_len": np.array([[100]], np.int32),
        "min_length": np.array([[9]], np.int32),
        "end_id": np.array([[vocabulary.eos_ids[1]]], np.int32),
        "runtime_top_p": np.array([[0.5]], np.float32),
        "runtime_top_k": np.array([[0]], np.int32),
        "temperature": np.array([[0.25]], np.float32),
        "repetition_penalty": np.array([[1.5]], np.float32),
        "presence_penalty": np.array([[0.125]], np.float32),
        "frequency_penalty": np.array([[0.75]], np.float32),
        "random_seed": np.array([[2**64 - 5]], np.uint64),
    }
    pieces(model, ask(prompt(vocabulary), **given))
    (asked,) = llm.asked
    assert (asked["inputs"], asked["streaming"]) == (prompt(vocabulary), True)
    params = asked["sampling_params"]
    del params["embedding_bias"]
    first, *others = vocabulary.eos_ids
    assert params == {
        "max_tokens": 100,
        "min_tokens": 9,
        "top_p": 0.5,
        "top_k": 0,
        "temperature": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.125,
        "frequency_penalty": 0.75,
        "seed": 2**64 - 5,
        "end_id": first,
        "pad_id": first,
        "stop_token_ids": others,
        "detokenize": False,
    }


def test_what_a_request_leaves_open_the_model_decides(model: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    llm = llm_of(model)
    llm.script = [[]]
    pieces(model, ask(prompt(vocabulary)))
    params = llm.asked[0]["sampling_params"]
    assert (params["top_p"], params["top_k"], params["min_tokens"], params["seed"]) == (0.8, 25, 1, 0)
    assert not {"temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"} & set(params)


def test_the_heads_bias_goes_along(model: TensorrtLLM, vocabulary: MergedVocabulary, merged: Path) -> None:
    """The merged head has none; text ids are forbidden, and ends where speech may not end."""
    llm, speech = llm_of(model), slice(vocabulary.text_size, vocabulary.sos)
    weights = load_file(merged / "model.safetensors")
    own = torch.from_numpy(np.load(merged / "embedding_bias.npy"))
    assert len(own) == len(weights["lm_head.weight"]) == vocabulary.padded_size
    given = np.zeros((1, vocabulary.padded_size), np.float32)
    llm.script = [[], [], []]
    pieces(model, ask(prompt(vocabulary)))
    pieces(model, ask(prompt(vocabulary), end_id=np.array([[-1]], np.int32)))
    pieces(model, ask(prompt(vocabulary), embedding_bias=given))
    plain, endless, asked = (one["sampling_params"] for one in llm.asked)
    torch.testing.assert_close(plain["embedding_bias"], own)
    assert torch.isfinite(own[speech]).all()
    assert (own[: vocabulary.text_size] == -torch.inf).all()
    ends = list(vocabulary.eos_ids)
    assert (endless["embedding_bias"][ends] == -torch.inf).all()
    torch.testing.assert_close(endless["embedding_bias"][: ends[0]], own[: ends[0]])
    assert (endless["end_id"], "stop_token_ids" in endless) == (-1, False)
    assert not asked["embedding_bias"].any()
    short = ask(prompt(vocabulary), embedding_bias=given[:, :-1])
    model.execute([short])
    (answer,) = short.answers()
    assert f"the head has {vocabulary.padded_size} rows" in refused(answer)


def test_a_folder_whose_bias_is_lost_still_forbids_text(
    merged: Path, vocabulary: MergedVocabulary, tmp_path: Path
) -> None:
    folder = shutil.copytree(merged, tmp_path / "published")
    (folder / "embedding_bias.npy").unlink()
    bias = read_merged_model(folder).bias
    assert (bias[vocabulary.text_size : vocabulary.sos] == 0).all()
    assert (np.delete(bias, np.r_[vocabulary.text_size : vocabulary.sos]) == -np.inf).all()


@pytest.mark.parametrize("name", [name for name, rule in INPUT_RULES.items() if rule.llmapi is Effect.REFUSED])
def test_what_cannot_be_done_is_refused(model: TensorrtLLM, vocabulary: MergedVocabulary, name: str) -> None:
    request = ask(prompt(vocabulary), **{name: np.array([[5]], np.int32)})
    model.execute([request])
    (answer,) = request.answers()
    assert refused(answer).startswith(f"{name}: ")
    assert llm_of(model).asked == []


def test_numbers_out_of_their_limits(model: TensorrtLLM, vocabulary: MergedVocabulary) -> None:
    for name in ("temperature", "repetition_penalty"):
        request = ask(prompt(vocabulary), **{name: np.array([[-1.0]], np.float32)})
        model.execute([request])
        (answer,) = request.answers()
        assert f"{name}: -1 is outside" in refused(answer)


@pytest.mark.parametrize("how", ["leaves", "stops"])
def test_who_goes_aborts(model: TensorrtLLM, vocabulary: MergedVocabulary, how: str) -> None:
    endless = [[vocabulary.speech(1)]] * 1_000_000
    llm_of(model).script = [endless]
    request = ask(prompt(vocabulary), "one")
    model.execute([request])
    answers = request.answers()
    next(answers)
    if how == "leaves":
        request.leave()
    else:
        model.execute([BACKEND.request("one", stop=np.array([[True]]))])
    assert all(not response.has_error() for response in answers)
    (result,) = llm_of(model).results
    assert result.aborted.is_set()
    assert result.count < len(endless)


def test_a_runtime_that_fails(
    model: TensorrtLLM, vocabulary: MergedVocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    request = ask(prompt(vocabulary))
    model.execute([request])  # the script is empty
    (answer,) = request.answers()
    assert "IndexError" in refused(answer, TritonError.INTERNAL)
    caplog.clear()


@pytest.mark.parametrize("version", ["0.20.0", "2.0.0", "unknown"])
def test_another_version(package: types.ModuleType, merged: Path, version: str) -> None:
    package.__version__ = version  # type: ignore[attr-defined]
    with pytest.raises(MissingDependency, match=f"tensorrt_llm: {version} is not supported; use NVIDIA's"):
        load(merged)


def test_no_package(monkeypatch: pytest.MonkeyPatch, merged: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(MissingDependency, match=r"cannot be imported .* llm_backend vivavoce"):
        load(merged)


def test_folders_and_parameters_that_cannot_be(package: types.ModuleType, merged: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="gpt_model_path: ''"):
        load("")
    with pytest.raises(CheckpointError, match="no tokenizer file"):
        load(tmp_path)
    with pytest.raises(InvalidRequest, match="max_tokens_in_paged_kv_cache: 'many'"):
        load(merged, max_tokens_in_paged_kv_cache="many")
    with pytest.raises(InvalidRequest, match="enable_kv_cache_reuse: 'perhaps'"):
        load(merged, enable_kv_cache_reuse="perhaps")
