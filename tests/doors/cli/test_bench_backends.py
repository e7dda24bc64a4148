"""Runtimes of the language model: our own for real, others by their calls, transformers for real where it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from cli_harness import Run
from torch import Tensor

from vivavoce.bench.offline import Prompt, Sampling
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.cli.bench_backends.choosing import Backend, Load, check_installed, parse_backends
from vivavoce.doors.cli.bench_backends.hf import HuggingFaceModel
from vivavoce.doors.cli.bench_backends.merged import MergedModel, merged_model
from vivavoce.doors.cli.bench_backends.own import OwnModel
from vivavoce.doors.cli.bench_backends.trtllm import TensorRTModel
from vivavoce.doors.cli.bench_backends.vllm import VllmModel
from vivavoce.doors.cli.bench_studio import Studio, load_studio
from vivavoce.doors.cli.bench_texts import Line
from vivavoce.doors.cli.model import ModelChoice
from vivavoce.engine.lm_stage import LMStage, SamplingState, plain_run
from vivavoce.engine.request import SamplingParams, SynthesisRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency

CPU = torch.device("cpu")
VOCABULARY = MergedVocabulary(text_size=10, num_speech_tokens=5)
"""Speech is 10 … 14, its ends 15 … 17, sos 18, task 19; tables have 128 rows."""
PROMPTS = [Prompt((18, 1, 2, 19), seed=7, most=3), Prompt((18, 1, 19), seed=8, most=6)]
LOAD = Load(2, 11)


@pytest.fixture(scope="module")
def studio(babble: Path) -> Studio:
    return load_studio(ModelChoice(str(babble), device="cpu"))


@pytest.fixture
def merged() -> MergedModel:
    bias = torch.full((128,), -torch.inf)
    bias[10:18] = torch.arange(8) / 4
    return MergedModel("folder", VOCABULARY, bias)


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


class Recorder:
    """Remembers how it was called, and gives what it is told to."""

    def __init__(self, result: Callable[..., Any] = lambda *_, **__: None) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._result = result

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls.append((arguments, keywords))
        return self._result(*arguments, **keywords)


def keywords_of(*_: Any, **keywords: Any) -> SimpleNamespace:
    return SimpleNamespace(**keywords)


def test_names_are_known_or_refused() -> None:
    assert parse_backends(["hf", "torch", "hf"]) == [Backend.HF, Backend.TORCH]
    with pytest.raises(InvalidRequest, match="backend: 'onnx' is unknown; use one of torch, hf, vllm, trtllm"):
        parse_backends(["onnx"])


def test_a_merged_model_that_nobody_reads_is_refused(run: Run) -> None:
    error = run("bench", "offline", "--backend", "torch", "--llm-model-name-or-path", "folder").error
    assert error.startswith("error: llm_model_name_or_path: torch reads the model's own folder; add a --backend")


@pytest.mark.parametrize("backend", [Backend.HF, Backend.VLLM, Backend.TRTLLM])
def test_a_missing_package_is_named_with_what_to_do(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.doors.cli.bench_backends.choosing.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=f"backend: {backend.value} needs the package .*; (pip|run)"):
        check_installed(backend)
    check_installed(Backend.TORCH)


def test_our_own_stage_gives_what_the_engine_would(studio: Studio) -> None:
    jobs = studio.jobs([Line("a", "Good morning."), Line("b", "The key is under the mat.")], 3, None)
    prompts = [job.prompt for job in jobs]
    together = OwnModel(studio.models, studio.vocabulary, EngineSettings(), Load.of(prompts, 2)).generate(prompts)
    alone = OwnModel(studio.models, studio.vocabulary, EngineSettings(), Load.of(prompts, 1))
    assert together == [alone.generate([prompt])[0] for prompt in prompts], "whoever shares the batch"
    assert together == [
        _spoken(studio, job.voice, text, job.prompt.seed)
        for job, text in zip(jobs, ("Good morning.", "The key is under the mat."), strict=True)
    ]


def test_speech_of_a_forced_length(studio: Studio) -> None:
    jobs = studio.jobs([Line("a", "Good morning."), Line("b", "Yes, it is.")], 0, 9)
    prompts = [job.prompt for job in jobs]
    assert [(one.least, one.most, one.seed) for one in prompts] == [(9, 9, 0), (9, 9, 1)]
    model = OwnModel(studio.models, studio.vocabulary, EngineSettings(), Load.of(prompts, 2))
    assert [len(tokens) for tokens in model.generate(prompts)] == [9, 9]
    assert [len(tokens) for tokens in model.generate(prompts[:1])] == [9], "its slots are free again"


def test_prompts_are_of_the_merged_vocabulary(studio: Studio) -> None:
    vocabulary = studio.vocabulary
    (job,) = studio.jobs([Line("a", "Good morning.")], 0, None)
    ids = job.prompt.ids
    assert ids[0] == vocabulary.sos
    text = ids[1 : ids.index(vocabulary.task)]
    assert text[-len(studio.front_end.text.encode("Good morning.")) :] == studio.front_end.text.encode("Good morning.")
    speech = ids[ids.index(vocabulary.task) + 1 :]
    assert speech == tuple(vocabulary.speech(one) for one in job.voice.lm_prompt_tokens)
    assert job.prompt.most == 20 * len(studio.front_end.text.encode("Good morning."))


def test_transformers_is_called_with_all_that_speech_needs(
    merged: MergedModel, package: Callable[..., ModuleType]
) -> None:
    generate = Recorder(
        lambda **asked: torch.cat((asked["input_ids"], torch.tensor([[11, 12, 13, 14], [14, 15, 15, 15]])), 1)
    )
    network = SimpleNamespace(config=SimpleNamespace(vocab_size=130), generate=generate)
    network.to = network.eval = lambda *_: network
    load = Recorder(lambda *_, **__: network)
    package(
        "transformers",
        AutoModelForCausalLM=SimpleNamespace(from_pretrained=load),
        LogitsProcessor=object,
        LogitsProcessorList=list,
        RepetitionPenaltyLogitsProcessor=lambda penalty: ("penalty", penalty),
        utils=SimpleNamespace(logging=SimpleNamespace(disable_progress_bar=lambda: None)),
    )
    model = HuggingFaceModel(merged, CPU, torch.float32)
    assert load.calls == [(("folder",), {"dtype": torch.float32})]
    assert model.generate(PROMPTS) == [[1, 2, 3], [4]], "to its own length, and to what ends it"
    ((_, asked),) = generate.calls
    assert asked["input_ids"].tolist() == [[18, 1, 2, 19], [18, 18, 1, 19]], "padded with what is never drawn"
    assert asked["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]
    plain = {name: value for name, value in asked.items() if name not in ("input_ids", "attention_mask")}
    bias, penalty = plain.pop("logits_processor")
    assert plain == {
        "do_sample": True,
        "top_p": 0.95,
        "top_k": 50,
        "temperature": 0.8,
        "repetition_penalty": 1.0,
        "min_new_tokens": 1,
        "max_new_tokens": 6,
        "eos_token_id": [15, 16, 17],
        "pad_token_id": 15,
    }
    assert penalty == ("penalty", 1.1)
    scores = bias(None, torch.zeros(2, 130))
    assert scores[1, 10:18].tolist() == [place / 4 for place in range(8)]
    assert scores[:, :10].max() == scores[:, 18:].max() == -torch.inf


def test_a_head_that_is_too_small_is_another_models(merged: MergedModel) -> None:
    with pytest.raises(CheckpointError, match="'folder' has 19 ids, this model's vocabulary 20"):
        merged.bias_for(19)


def test_speech_ends_at_the_first_id_that_is_none(merged: MergedModel) -> None:
    assert merged.speech([10, 14, 15, 11]) == [0, 4]
    assert merged.speech([9, 10]) == []


def test_vllm_is_called_with_all_that_speech_needs(
    merged: MergedModel, package: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    answers = [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[11, 12, 15])]) for _ in PROMPTS]
    generate = Recorder(lambda *_, **__: answers)
    load = Recorder(lambda **_: SimpleNamespace(generate=generate))
    package("vllm", __version__="0.33.0", LLM=load, SamplingParams=keywords_of)
    model = VllmModel(merged, torch.bfloat16, LOAD)
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0", "the newer runner takes too few biased ids"
    assert load.calls[0][1] == {
        "model": "folder",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 11,
        "max_num_seqs": 2,
        "gpu_memory_utilization": 0.5,
        "seed": 0,
    }
    assert model.generate(PROMPTS) == [[1, 2], [1, 2]]
    (((prompts, parameters), keywords),) = generate.calls
    assert prompts == [{"prompt_token_ids": [18, 1, 2, 19]}, {"prompt_token_ids": [18, 1, 19]}]
    assert keywords == {"use_tqdm": False}
    assert vars(parameters[1]) == {
        "top_p": 0.95,
        "top_k": 50,
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        "seed": 8,
        "min_tokens": 1,
        "max_tokens": 6,
        "stop_token_ids": [15, 16, 17],
        "logit_bias": {10 + place: place / 4 for place in range(8)},
        "allowed_token_ids": list(range(10, 18)),
        "detokenize": False,
    }


@pytest.mark.parametrize("version", ["0.29.1", "0.34.0", "1.0"])
def test_an_untried_vllm_is_refused(version: str, merged: MergedModel, package: Callable[..., ModuleType]) -> None:
    package("vllm", __version__=version)
    with pytest.raises(MissingDependency, match=f"vllm {version} was never tried; pip install 'vllm>=0.30,<0.34'"):
        VllmModel(merged, torch.float16, LOAD)


@pytest.mark.parametrize("engine_dir", [None, Path("engine")])
def test_tensorrt_llm_is_called_with_all_that_speech_needs(
    engine_dir: Path | None, merged: MergedModel, package: Callable[..., ModuleType]
) -> None:
    answers = [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[13])]) for _ in PROMPTS]
    generate, shutdown = Recorder(lambda *_, **__: answers), Recorder()
    load = Recorder(lambda **_: SimpleNamespace(generate=generate, shutdown=shutdown))
    package("tensorrt_llm", LLM=load, SamplingParams=keywords_of)
    package("tensorrt_llm.llmapi", KvCacheConfig=lambda **memory: ("cache", memory))
    engine = Recorder(lambda **_: SimpleNamespace(generate=generate, shutdown=shutdown))
    package("tensorrt_llm._tensorrt_engine", LLM=engine)
    model = TensorRTModel(merged, torch.float16, LOAD, engine_dir)
    settings = {"skip_tokenizer_init": True, "kv_cache_config": ("cache", {"free_gpu_memory_fraction": 0.5})}
    if engine_dir is None:
        limits = {"model": "folder", "dtype": "float16", "max_batch_size": 2, "max_seq_len": 11}
        assert load.calls == [((), {**limits, **settings})]
    else:
        assert engine.calls == [((), {"model": "engine", **settings})]
    assert model.generate(PROMPTS) == [[3], [3]]
    (((prompts, parameters), keywords),) = generate.calls
    assert (prompts, keywords) == ([[18, 1, 2, 19], [18, 1, 19]], {"use_tqdm": False})
    asked = vars(parameters[0])
    assert asked.pop("embedding_bias") is merged.bias
    assert asked == {
        "top_p": 0.95,
        "top_k": 50,
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        "seed": 7,
        "min_tokens": 1,
        "max_tokens": 3,
        "end_id": 15,
        "pad_id": 15,
        "stop_token_ids": [15, 16, 17],
        "detokenize": False,
    }
    model.close()
    assert shutdown.calls == [((), {})]


def test_engines_of_older_releases_have_the_only_class(merged: MergedModel, package: Callable[..., ModuleType]) -> None:
    load = Recorder(lambda **_: SimpleNamespace())
    package("tensorrt_llm", LLM=load, __path__=[])
    package("tensorrt_llm.llmapi", KvCacheConfig=keywords_of)
    TensorRTModel(merged, torch.float16, LOAD, Path("engine"))
    assert load.calls[0][1]["model"] == "engine"


def test_the_merged_folder_is_made_once(studio: Studio, home: Path) -> None:
    first = merged_model(studio, None, None)
    folder = Path(first.name_or_path)
    assert folder.parent == home / "merged"
    made_at = (folder / "config.json").stat().st_mtime_ns
    assert merged_model(studio, None, None).name_or_path == first.name_or_path
    assert (folder / "config.json").stat().st_mtime_ns == made_at
    head = studio.models.lm.speech_head.bias
    assert torch.equal(first.bias[first.allowed], head)
    assert torch.isneginf(first.bias[: studio.vocabulary.text_size]).all()
    assert merged_model(studio, None, str(folder)).name_or_path == str(folder)
    assert merged_model(studio, None, "someone/model").name_or_path == "someone/model", "a hub's name"


def test_a_folder_of_another_model_is_refused(studio: Studio, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json; make the folder with `vivavoce convert hf`"):
        merged_model(studio, None, str(folder))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert merged_model(studio, None, str(folder)).name_or_path == str(folder), "nothing speaks against it"
    (folder / "added_tokens.json").write_text(json.dumps({"<|s_0|>": 151663}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"speech begins at id 151663 .* at {studio.vocabulary.text_size};"):
        merged_model(studio, None, str(folder))


@pytest.mark.filterwarnings("default")
def test_transformers_speaks_as_our_own_network_does(studio: Studio) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    jobs = studio.jobs([Line("a", "Good morning."), Line("b", "The key is under the mat.")], 0, 12)
    greedy = Sampling(top_p=1.0, top_k=1, temperature=1.0, repetition_penalty=1.0)
    model = HuggingFaceModel(merged_model(studio, None, None), CPU, torch.float32, greedy)
    texts = ("Good morning.", "The key is under the mat.")
    expected = [_spoken(studio, jobs[place].voice, text, 0, _largest, 12) for place, text in enumerate(texts)]
    assert model.generate([job.prompt for job in jobs]) == expected
    assert len(set(map(tuple, expected))) == 2
    model.close()


def _largest(scores: Tensor, state: SamplingState) -> Tensor:
    return scores.argmax(-1)


@torch.inference_mode()
def _spoken(
    studio: Studio, voice: Any, text: str, seed: int, chooser: Any = None, exact_tokens: int | None = None
) -> list[int]:
    """Speech tokens by the rules of the engine."""
    sampling = SamplingParams(min_ratio=0.0, exact_tokens=exact_tokens)
    request = SynthesisRequest(voice, text=studio.front_end.text.encode(text), sampling=sampling, seed=seed)
    stage = LMStage(studio.models, slots=1, capacity=2000, chooser=chooser)
    slot = stage.open(sampling, seed)
    stage.feed(slot, plain_run(studio.models.config.lm, request, official=False, room=None))
    stage.prefill([slot])
    ids: list[int] = []
    while stage.decoding or stage.in_flight:
        stage.decode()
        for one in stage.collect(wait=True):
            ids.extend(one.ids[:-1] if one.ended else one.ids)
    return ids
