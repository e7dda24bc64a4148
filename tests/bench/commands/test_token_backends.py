"""Runtimes of the language model: our own for real, others by their calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest, TokenRequest
from vivavoce.engine.settings import EngineSettings, has_language_model
from vivavoce.errors import CheckpointError, MissingDependency
from vivavoce.models.build import Models
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce_bench.halves import (
    BenchModel,
    OwnModel,
    TensorRTModel,
    check_backends,
    merged_model,
    open_backend,
)
from vivavoce_runtimes import registry as table
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_runtimes.streamed_lm import merged_ids
from vivavoce_triton.client.utterance import Utterance

VOCABULARY = MergedVocabulary(text_size=10, num_speech_tokens=5, generation=Generation.V2)
"""Speech is 10 … 14, its ends 15 … 17, sos 18, task 19; tables have 128 rows."""
SOS, TASK = VOCABULARY.own.sos, VOCABULARY.own.task
PROMPTS = [
    TokenRequest((Row(RowKind.CONTROL, SOS), *texts, Row(RowKind.CONTROL, TASK)), most, seed=seed)
    for texts, most, seed in (
        ((Row(RowKind.TEXT, 1), Row(RowKind.TEXT, 2)), 3, 7),
        ((Row(RowKind.TEXT, 1),), 6, 8),
    )
]
SEEDED = {
    "top_p": 0.95,
    "top_k": 50,
    "temperature": 0.8,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "stop_token_ids": [15, 16, 17],
    "detokenize": False,
}
"""What each request of a runtime with seeds has."""


@pytest.fixture(scope="module")
def studio(babble: Path) -> BenchModel:
    return BenchModel.load(str(babble), "cpu")


@pytest.fixture
def bias() -> torch.Tensor:
    bias = torch.full((128,), -torch.inf)
    bias[10:18] = torch.arange(8) / 4
    return bias


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Put a package in the place of one that is not installed."""

    def make(name: str, **content: Any) -> ModuleType:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


@pytest.mark.parametrize("backend", ["vllm", "trtllm"])
def test_a_missing_package_is_named_with_what_to_do(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_bench.halves.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=f"backend: {backend} needs the package .*; (pip|run)"):
        check_backends(["torch", backend])
    assert check_backends(["torch", "torch"]) == ["torch"]


def test_our_own_stage_gives_what_the_engine_would(studio: BenchModel, models: Models) -> None:
    texts = ("Good morning.", "The key is under the mat.")
    jobs = studio.jobs([Utterance(text, text) for text in texts], 3, None)
    prompts = [job.prompt for job in jobs]
    together = OwnModel(studio.language_model(), EngineSettings(), 2).generate(prompts)
    alone = OwnModel(studio.language_model(), EngineSettings(), 1)
    assert together == [alone.generate([prompt])[0] for prompt in prompts], "whoever shares the batch"
    sampling = SamplingParams(min_ratio=0.0)
    with Engine(models, EngineSettings(slots=2)) as engine:
        for job, tokens in zip(jobs, together, strict=True):
            text = studio.front_end.text.encode(job.id)
            segment = SegmentRequest(job.voice, text=text, sampling=sampling, seed=job.seed)
            assert engine.submit(EngineRequest((segment,))).result().tokens == (tuple(tokens),)


def test_speech_of_a_forced_length(studio: BenchModel) -> None:
    jobs = studio.jobs([Utterance("a", "Good morning."), Utterance("b", "Yes, it is.")], 0, 9)
    prompts = [job.prompt for job in jobs]
    assert [(one.min_tokens, one.max_tokens, one.seed) for one in prompts] == [(9, 9, 0), (9, 9, 1)]
    model = OwnModel(studio.language_model(), EngineSettings(), 2)
    assert [len(tokens) for tokens in model.generate(prompts)] == [9, 9]
    assert [len(tokens) for tokens in model.generate(prompts[:1])] == [9], "its slots are free again"


def test_prompts_are_of_the_merged_vocabulary(studio: BenchModel) -> None:
    vocabulary = studio.vocabulary
    (job,) = studio.jobs([Utterance("a", "Good morning.")], 0, None)
    ids, text = merged_ids(vocabulary, job.prompt.rows), studio.front_end.text.encode("Good morning.")
    task = ids.index(vocabulary.task)
    assert ids[0] == vocabulary.sos
    assert tuple(ids[1:task][-len(text) :]) == text
    assert ids[task + 1 :] == [vocabulary.speech(one) for one in job.voice.lm_prompt_tokens]
    assert job.prompt.max_tokens == 20 * len(text)


def runtime(ids: list[int]) -> Mock:
    """A class of models that answer every prompt so."""
    answer = SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)])
    return Mock(return_value=Mock(generate=Mock(side_effect=lambda prompts, *_, **__: [answer] * len(prompts))))


def test_other_runtimes_are_backends_of_our_engine(studio: BenchModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(side_effect=MissingDependency("lm_backend: is not here"))
    for backend in ("vllm", "trtllm"):
        monkeypatch.setitem(table.LM, backend, made)
        with pytest.raises(MissingDependency, match="is not here"):
            open_backend(backend, studio, EngineSettings(), 3)
        models, settings, memory = made.call_args.args
        assert (settings.lm_backend, memory.slots) == (backend, 3)
        assert str(models.merged) == merged_model(studio, None)
    assert not has_language_model(models)


def test_a_tensorrt_engine_is_called_with_all_that_speech_needs(
    bias: torch.Tensor, package: Callable[..., ModuleType]
) -> None:
    engine = runtime([13, 15])
    package("tensorrt_llm", SamplingParams=dict, __path__=[])
    package("tensorrt_llm.llmapi", KvCacheConfig=dict)
    package("tensorrt_llm._tensorrt_engine", LLM=engine)
    model = TensorRTModel(VOCABULARY, bias, Path("engine"))
    cache = {"free_gpu_memory_fraction": 0.5}
    engine.assert_called_once_with(model="engine", skip_tokenizer_init=True, kv_cache_config=cache)
    assert model.generate(PROMPTS) == [[3], [3]]
    prompts, parameters = engine().generate.call_args.args
    assert prompts == [[18, 1, 2, 19], [18, 1, 19]]
    assert engine().generate.call_args.kwargs == {"use_tqdm": False}
    assert parameters[0].pop("embedding_bias") is bias
    assert parameters[0] == {**SEEDED, "seed": 7, "max_tokens": 3, "end_id": 15, "pad_id": 15}
    model.close()
    engine().shutdown.assert_called_once_with()


def test_of_cosyvoice3_s_long_silence_an_engine_says_as_much_as_ours(
    bias: torch.Tensor, package: Callable[..., ModuleType]
) -> None:
    said = [10 + one for one in (7, *[2] * 9, 7)]
    package("tensorrt_llm", LLM=runtime([*said, 7000, 10]), SamplingParams=dict, __path__=[])
    package("tensorrt_llm.llmapi", KvCacheConfig=dict)
    model = TensorRTModel(MergedVocabulary(10, 6_561, Generation.V3), bias, Path("engine"))
    assert model.generate(PROMPTS[:1]) == [[7, *[2] * 5, 7]]


def test_engines_of_older_releases_have_the_only_class(bias: torch.Tensor, package: Callable[..., ModuleType]) -> None:
    load = Mock()
    package("tensorrt_llm", LLM=load, SamplingParams=dict, __path__=[])
    package("tensorrt_llm.llmapi", KvCacheConfig=dict)
    TensorRTModel(VOCABULARY, bias, Path("engine"))
    assert load.call_args.kwargs["model"] == "engine"


def test_the_merged_folder_is_made_once(studio: BenchModel, home: Path) -> None:
    first = merged_model(studio, None)
    folder = Path(first)
    assert folder.parent == home / "merged"
    made_at = (folder / "config.json").stat().st_mtime_ns
    assert merged_model(studio, None) == first
    assert (folder / "config.json").stat().st_mtime_ns == made_at
    assert merged_model(studio, str(folder)) == str(folder)
    assert merged_model(studio, "someone/model") == "someone/model", "a hub's name"


def test_a_folder_of_another_model_is_refused(studio: BenchModel, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json; make the folder with `vivavoce export hf`"):
        merged_model(studio, str(folder))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert merged_model(studio, str(folder)) == str(folder), "nothing speaks against it"
    (folder / "added_tokens.json").write_text(json.dumps({"<|s_0|>": 151663}), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=f"speech ids begin at 151663 in .* at {studio.vocabulary.text_size} in this"
    ):
        merged_model(studio, str(folder))
